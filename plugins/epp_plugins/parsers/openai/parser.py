"""
Read requests to the OpenAI APIs, and the token counts in their responses.

The path tells the API. Of a body only the fields that routing reads are decoded. What is wrong with
it is said in terms of the fields' names and types; nothing that a client wrote is ever repeated.
"""

from collections.abc import Mapping
from functools import lru_cache

import msgspec
from msgspec import UNSET

from epp.framework import BadRequest, ParsedRequest, Parser, Usage
from epp_plugins.parsers.openai import model_name, strictness, usage
from epp_plugins.parsers.openai.bodies import BODIES, Body

DECODERS = [
    (claim, msgspec.json.Decoder(BODIES[claim])) for claim in sorted(BODIES, key=len, reverse=True)
]
"""The APIs with the longest path first, so that the first that fits is the right one."""

ANY_DECODER = msgspec.json.Decoder(Body)


class OpenAIParser(Parser):
    """
    Reads the model, prompt, limits and cache salt of OpenAI requests, and usage of responses.

    It refuses what is not JSON, anywhere in the body, and a field of the wrong type where it needs
    the field; whatever else a body holds is the model server's business and reaches it byte for
    byte. A path that it does not know is read for its model alone. However a body is made, its size
    alone decides how long it takes to read, some 30 ms a megabyte at worst: little of it is built.
    """

    claims = tuple(BODIES)

    def parse_request(self, path: str, headers: Mapping[str, str], body: bytes) -> ParsedRequest:
        """Return the facts of the body; raise BadRequest where it is not of this dialect."""
        try:
            return _facts(path, body)
        except msgspec.ValidationError as error:
            raise BadRequest(_wrong_field(error)) from error
        except msgspec.DecodeError as error:
            reason = str(error).removeprefix("JSON is malformed: ")
            message = f"the body is not valid JSON: {_lower(reason)}"
            raise BadRequest(message) from error
        except RecursionError as error:
            message = "the body is nested too deeply"
            raise BadRequest(message) from error
        except UnicodeDecodeError as error:
            message = f"the body is not valid JSON: invalid UTF-8 (byte {error.start})"
            raise BadRequest(message) from error
        except ValueError as error:
            raise BadRequest(str(error)) from error

    def parse_usage(self, document: bytes) -> Usage | None:
        """Return the token counts of a response or of one event's data, None without any."""
        return usage.parse(document)

    def rewrite_model(self, body: bytes, model: str) -> bytes:
        """
        Return a body that was parsed before, with its model replaced or put in.

        Raises BadRequest where the body has thousands of keys of this name.
        """
        return model_name.replace(body, model)


def _facts(path: str, body: bytes) -> ParsedRequest:
    """Return the facts of the body; raise whatever is wrong with it."""
    document = _decoder(path).decode(body)
    strictness.check(body)
    model = document.model
    return ParsedRequest(
        model=("" if document.needs_model else None) if model is UNSET else model,
        prompt=document.prompt_bytes(),
        cache_salt=document.cache_salt or "",
        stream=document.streams(),
        max_output_tokens=document.output_limit(),
    )


@lru_cache(maxsize=256)
def _decoder(path: str) -> msgspec.json.Decoder[Body]:
    """Return what decodes the bodies of the path's API."""
    path = path.partition("?")[0].rstrip("/")
    for claim, decoder in DECODERS:
        if path.endswith(claim) and path[: -len(claim)][-1:] in ("", "/", "."):
            return decoder
    return ANY_DECODER


def _wrong_field(error: msgspec.ValidationError) -> str:
    """Return msgspec's message, which has types and places but no values, in our words."""
    text, _, place = str(error).partition(" - at ")
    place = place.strip("`").removeprefix("$.")
    return f"{place or 'the body'}: {_lower(text)}"


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]
