"""
Decoding: bodies into structs, or a refusal that says in the real server's words where it failed.

vLLM reads bodies with pydantic, which takes "5" for 5 and reports each mistake as a dictionary of
its type, place, message and input. The mistakes that clients make are reported alike; for rare ones
the decoder's own words stand in the same place.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from epp.simulator.api.errors import APIError, of_parameter, validation

T = TypeVar("T")

_PLACE = re.compile(r" - at `\$(.*)`$")
_EXPECTED = re.compile(r"^Expected `([a-z]+)[^`]*`, got `([a-z]+)`")
_MISSING = re.compile(r"^Object missing required field `(.*?)`")

_DEEPEST_ECHO = 100
"""How deeply what an answer repeats may be nested; to write it takes more stack than to read it."""
_LONGEST_NUMBER = 1000
"""How many digits a number in a refusal may have."""

_VALID = "Input should be a valid"
_COMPLAINTS = {
    ("int", "str"): ("int_parsing", f"{_VALID} integer, unable to parse string as an integer"),
    ("int", "float"): ("int_from_float", f"{_VALID} integer, got a number with a fractional part"),
    ("float", "str"): ("float_parsing", f"{_VALID} number, unable to parse string as a number"),
    ("bool", "str"): ("bool_parsing", f"{_VALID} boolean, unable to interpret input"),
}
_GENERAL = {
    "int": ("int_type", f"{_VALID} integer"),
    "float": ("float_type", f"{_VALID} number"),
    "bool": ("bool_type", f"{_VALID} boolean"),
    "str": ("string_type", f"{_VALID} string"),
    "array": ("list_type", f"{_VALID} list"),
    "object": ("dict_type", f"{_VALID} dictionary"),
}


def decoder_of(kind: type[T]) -> msgspec.json.Decoder[T]:
    """Return a decoder as lenient about numbers in quotes as the real server."""
    return msgspec.json.Decoder(kind, strict=False)


def decode(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    """Return what a body says; APIError where it cannot be read."""
    try:
        return _decode(decoder, body)
    except RecursionError:
        raise validation("The body is nested too deeply", "body") from None


def check_echo(value: object, name: str) -> None:
    """Refuse what could be read but not be written into an answer."""
    level = [value]
    for _ in range(_DEEPEST_ECHO):
        level = [inner for outer in level for inner in _inside(outer)]
        if not level:
            return
    raise of_parameter(f"{name} is nested too deeply.", name, _shown(value))


def _inside(value: object) -> Any:
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, list) else ()


def _decode(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    try:
        return decoder.decode(body)
    except msgspec.ValidationError as error:
        raise _invalid(str(error), body) from error
    except msgspec.DecodeError as error:
        raise _malformed(body) from error


def _invalid(message: str, body: bytes) -> APIError:
    place = _PLACE.search(message)
    steps = re.findall(r"[^.\[\]]+", place[1]) if place else []
    try:
        value = _at(json.loads(body, parse_int=_number), steps)
    except ValueError:  # what comes behind the mistake is no JSON at all
        return _malformed(body)
    if missing := _MISSING.match(message):
        steps.append(missing[1])
        kind, said = "missing", "Field required"
    elif expected := _EXPECTED.match(message):
        kind, said = _COMPLAINTS.get((expected[1], expected[2])) or _GENERAL.get(
            expected[1], ("value_error", message)
        )
    else:
        kind, said = "value_error", message[: place.start()] if place else message
    where = ".".join(["body", *steps])
    return validation({"type": kind, "loc": where, "msg": said, "input": _shown(value)}, where)


def _at(document: Any, steps: list[str]) -> Any:
    """Return what is at a place; nothing where a name that is there twice leads elsewhere."""
    try:
        for step in steps:
            document = document[int(step) if isinstance(document, list) else step]
    except (LookupError, TypeError, ValueError):
        return None
    return document


def _number(digits: str) -> int | str:
    return int(digits) if len(digits) <= _LONGEST_NUMBER else f"<int of {len(digits)} digits>"


def _shown(value: object) -> object:
    """Return an input as refusals quote it: collections only by their size."""
    if isinstance(value, dict | list):
        return f"<{type(value).__name__} of {len(value)} items>"
    return value


def _malformed(body: bytes) -> APIError:
    """Return the refusal of what is no JSON; the standard library knows where it goes wrong."""
    at, reason = len(body), "Invalid JSON"
    try:
        json.loads(body, parse_int=_number)
    except json.JSONDecodeError as error:
        at, reason = error.pos, error.msg
    except ValueError:
        reason = "Invalid UTF-8"
    where = f"body.{at}"
    complaint = {
        "type": "json_invalid",
        "loc": where,
        "msg": "JSON decode error",
        "input": "<dict of 0 items>",
        "ctx": {"error": reason},
    }
    return validation(complaint, where)
