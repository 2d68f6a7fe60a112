"""
Request handling: parsers, which turn the bytes of one API dialect into facts and back.
"""

from abc import abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import msgspec


class ParsedRequest(msgspec.Struct, frozen=True):
    """
    The facts of a request body; the fields are those of InferenceRequest.

    `model` is None where the dialect has no model, and "" where the body should name one but does
    not (a rewrite may still fill it in). `response_matters` False says that nothing in the response
    is worth reading.
    """

    model: str | None = None
    prompt: bytes = b""
    cache_salt: str = ""
    stream: bool = False
    max_output_tokens: int | None = None
    response_matters: bool = True


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of a response; None where the response does not say."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None

    def merged(self, later: "Usage") -> "Usage":
        """Return both, field by field, the later one winning where it says something."""
        return Usage(
            self.prompt_tokens if later.prompt_tokens is None else later.prompt_tokens,
            self.completion_tokens if later.completion_tokens is None else later.completion_tokens,
            self.cached_tokens if later.cached_tokens is None else later.cached_tokens,
        )


@runtime_checkable
class Parser(Protocol):
    """
    Reads requests and responses of one API dialect.

    `claims` are the path suffixes it understands, such as "v1/completions"; the longest claim that
    matches a path at a "/" or "." wins. A parser without claims is the fallback for every other
    path.
    """

    claims: Collection[str]

    @abstractmethod
    def parse_request(self, path: str, headers: Mapping[str, str], body: bytes) -> ParsedRequest:
        """Return the facts of the body; raise BadRequest where it is not of this dialect."""
        ...

    @abstractmethod
    def parse_usage(self, document: bytes) -> Usage | None:
        """
        Return the token counts in one JSON document: a whole response, or one event's data.

        None where it has none, or they are malformed: this never raises.
        """
        ...

    @abstractmethod
    def rewrite_model(self, body: bytes, model: str) -> bytes:
        """
        Return the body with its model replaced and every other byte kept.

        May raise BadRequest where that would cost more than any honest request is worth.
        """
        ...
