"""
Attributes: typed facts that data producers attach to a request for scorers and filters to read.

A key is a constant shared by the producer and its consumers; the value's type travels with it. An
attribute may always be absent: a producer can fail or not be configured.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

if TYPE_CHECKING:
    from epp.framework.endpoint import Endpoint

T = TypeVar("T")


@dataclass(frozen=True)
class AttributeKey(Generic[T]):
    """The name of an attribute, with the type of its value."""

    name: str


class Attributes:
    """What is known about one request: each key is written once, and only by the framework."""

    __slots__ = ("_values",)

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}

    def get(self, key: AttributeKey[T]) -> T | None:
        """Return the value under the key, or None where no producer wrote it."""
        value: T | None = self._values.get(key.name)
        return value

    def put(self, key: AttributeKey[T], value: T) -> None:
        """Write the value; raise ValueError where the key is taken."""
        if key.name in self._values:
            message = f"attribute {key.name!r} is already written"
            raise ValueError(message)
        self._values[key.name] = value


class PrefixMatch(msgspec.Struct, frozen=True):
    """
    How much of a request's prompt each candidate is expected to hold in its KV cache.

    `matched_blocks` counts leading blocks, one number per endpoint of `candidates`, in their order;
    `total_blocks` is the number of blocks of the prompt, `block_bytes` the size of one.
    """

    matched_blocks: Sequence[int]
    total_blocks: int
    block_bytes: int
    candidates: Sequence["Endpoint"] = ()

    def blocks_of(self, endpoints: Sequence["Endpoint"]) -> Sequence[int]:
        """Return the matched blocks of these endpoints, which filters may have made fewer."""
        return of_endpoints(self.matched_blocks, self.candidates, endpoints)


PREFIX_MATCH: AttributeKey[PrefixMatch] = AttributeKey("prefix-match")

PROMPT_TOKENS: AttributeKey[int] = AttributeKey("prompt-tokens")
"""How many tokens the prompt has, or is taken to have."""


class InFlightLoad(msgspec.Struct, frozen=True):
    """
    What this picker has in flight on each candidate, and what the request itself would add.

    `requests` counts those whose response has not ended, `tokens` the uncached prompt tokens of
    those whose response has not begun; `uncached_tokens` are the request's own tokens that each
    candidate would have to compute. All are in the order of `candidates`.
    """

    requests: Sequence[int]
    tokens: Sequence[int]
    uncached_tokens: Sequence[int]
    prompt_tokens: int
    candidates: Sequence["Endpoint"] = ()

    def requests_of(self, endpoints: Sequence["Endpoint"]) -> Sequence[int]:
        """Return the requests in flight on these endpoints, which filters may have made fewer."""
        return of_endpoints(self.requests, self.candidates, endpoints)

    def tokens_of(self, endpoints: Sequence["Endpoint"]) -> Sequence[int]:
        """Return the uncached tokens in flight on these endpoints."""
        return of_endpoints(self.tokens, self.candidates, endpoints)

    def uncached_tokens_of(self, endpoints: Sequence["Endpoint"]) -> Sequence[int]:
        """Return the request's own tokens that these endpoints would have to compute."""
        return of_endpoints(self.uncached_tokens, self.candidates, endpoints)


INFLIGHT_LOAD: AttributeKey[InFlightLoad] = AttributeKey("inflight-load")


def of_endpoints(
    values: Sequence[int], candidates: Sequence["Endpoint"], endpoints: Sequence["Endpoint"]
) -> Sequence[int]:
    """Return the values of these endpoints, of one value for each candidate; 0 for strangers."""
    # Filters keep the order and only remove, so equal lengths mean the same endpoints.
    if len(endpoints) == len(values):
        return values
    known = {id(one): value for one, value in zip(candidates, values, strict=False)}
    return [known.get(id(endpoint), 0) for endpoint in endpoints]
