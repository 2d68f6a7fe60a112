"""
Replace the model in a body and leave every other byte as the client wrote it.

Decoding and encoding again would lose the order of keys, the spelling of numbers and doubled keys.
So the body is cut open where the name stands. The places where a `model` key stands at all are
found by a search, which is quick. Only where there are several do brackets have to be counted, to
tell the body's own key from nested ones. That takes no step for each string, since a body may hold
millions; it takes one for each key, so these are bounded.

All patterns are possessive: without that a long string full of escapes costs gigabytes.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import islice

import msgspec
from msgspec import UNSET, Raw, UnsetType

from epp.framework import BadRequest

MAX_KEYS = 10_000
"""How many `model` keys, nested ones too, are looked at before the body is refused."""

CHUNK_BYTES = 1 << 14
"""How much is split at its quotes at a time: a million pieces at once are slow to allocate."""


class _Body(msgspec.Struct):
    """The one field that tells whether a body has a model of its own."""

    model: Raw | UnsetType = UNSET


STRING = rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
SPACE = rb"[ \t\n\r]*+"

_BRACKETS_AND_QUOTES = b'{}[]"'
_OTHERS = bytes(byte for byte in range(256) if byte not in _BRACKETS_AND_QUOTES)
# Any letter of the key may be written as an escape. A quote behind a backslash begins no key: it is
# inside of a string. A value in brackets is no model's name; nobody could serve such a request.
_MODEL = re.compile(
    rb'"(?<!\\")'
    rb"(?:m|\\u006[dD])(?:o|\\u006[fF])(?:d|\\u0064)(?:e|\\u0065)(?:l|\\u006[cC])"
    rb'"' + SPACE + rb":" + SPACE + rb"(" + STRING + rb"|[^ \t\n\r\"\[\]{},]++)",
    re.DOTALL,
)
_DECODER = msgspec.json.Decoder(_Body)
_OPENING = re.compile(SPACE + rb"\{" + SPACE)


def replace(body: bytes, model: str) -> bytes:
    """
    Return the body with each `model` of its outermost object replaced, or with one put in first.

    The body is valid JSON, as the parser has made sure; one that is no object comes back as it is.
    Raises BadRequest where there are too many of them to look at.
    """
    opening = _OPENING.match(body)
    if opening is None:
        return body
    name = msgspec.json.encode(model)
    pieces = []
    copied = 0
    keys = list(islice(_MODEL.finditer(body), MAX_KEYS + 1))
    if len(keys) > MAX_KEYS:
        message = f"the body has more than {MAX_KEYS} keys named model, too many to replace"
        raise BadRequest(message)
    for found in _own(body, keys):
        pieces += [body[copied : found.start(1)], name]
        copied = found.end(1)
    if not pieces:
        start = opening.end()
        comma = b"" if body[start : start + 1] == b"}" else b","
        return b"".join([body[:start], b'"model":', name, comma, body[start:]])
    pieces.append(body[copied:])
    return b"".join(pieces)


def _own(body: bytes, found: Sequence[re.Match[bytes]]) -> Iterator[re.Match[bytes]]:
    """Yield those of the keys found that are the outermost object's own."""
    if len(found) == 1:
        if _DECODER.decode(body).model is not UNSET:
            yield found[0]
        return
    depth, counted = 0, 0
    for key in found:
        # Both ends of the stretch are outside of strings, so it holds whole strings.
        depth += _brackets(body[counted : key.start()])
        counted = key.start()
        if depth == 1:
            yield key


def _brackets(stretch: bytes) -> int:
    """Return how many more brackets the stretch opens than it closes."""
    bare = stretch.replace(rb"\\", b"").replace(rb"\"", b"").translate(None, _OTHERS)
    # Two quotes side by side are an empty string, or end one and begin the next: without them the
    # same brackets are inside of strings. Millions of them are gone at once.
    bare = bare.replace(b'""', b"")
    depth, inside = 0, 0
    for at in range(0, len(bare), CHUNK_BYTES):
        pieces = bare[at : at + CHUNK_BYTES].split(b'"')
        outside = b"".join(pieces[inside::2])
        depth += outside.count(b"{") + outside.count(b"[")
        depth -= outside.count(b"}") + outside.count(b"]")
        inside = (inside + len(pieces) - 1) % 2
    return depth
