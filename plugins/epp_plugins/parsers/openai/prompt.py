"""
Prompts as bytes for hashing: equal prompts give equal bytes, and more of one only adds to them.

Nobody reads these bytes as text. They follow the order in which a chat template writes a prompt:
tools, instructions, then the turns. A NUL parts each piece from the next, and the bytes of a
conversation begin with those of its earlier turns.

Everything comes here as the JSON that the client wrote, and only texts are decoded. What is no text
goes in as it is written: to build a value only to hash it costs more than all else that is done for
a request, and seconds where a client means harm. So the same tools with other white space are
other bytes, which costs such a client a cache hit, no more. For the same reason all that is counted
here is bounded: each bound is beyond any conversation, and what lies behind it is not hashed.
"""

from collections.abc import Iterable, Iterator
from itertools import islice
from struct import pack
from typing import Annotated

import msgspec
from msgspec import Meta, Raw
from xxhash import xxh64_hexdigest

MAX_PIECES = 50_000
"""Of a conversation; a body of a million empty messages must not hold up other requests."""

MAX_COMMAS = 1_000_000
"""A list with more than these, in texts or between elements, is one piece, as its digest."""

MAX_TOKEN_BYTES = 1 << 22
"""How much of a list of token ids is read: half a million of usual ones."""

NULL = Raw(b"null")
EMPTY = Raw(b'""')
NOTHING = (b"null", b'""', b"[]", b"{}")

TokenId = Annotated[int, Meta(ge=0, lt=2**32)]


class Turn(msgspec.Struct, gc=False):
    """What is rendered of one message; what else it says does not matter here."""

    role: Raw = EMPTY
    content: Raw = EMPTY
    tool_calls: Raw = EMPTY


class _Part(msgspec.Struct, gc=False):
    """A part of a message that is a text."""

    text: str


_USER = Raw(b'"user"')
_NO_INPUT = "input must be a text or a list of objects, and not empty"
_decode_text = msgspec.json.Decoder(str).decode
_decode_texts = msgspec.json.Decoder(list[str]).decode
_decode_token_ids = msgspec.json.Decoder(list[TokenId]).decode
_decode_list = msgspec.json.Decoder(list[Raw]).decode
_decode_turn = msgspec.json.Decoder(Turn).decode
_decode_part = msgspec.json.Decoder(_Part).decode


def given(value: Raw) -> bool:
    """Return whether there is anything in a value at all."""
    return value is not NULL and bytes(value) not in NOTHING


def of_turns(tools: Raw, turns: Iterable[Turn], instructions: Raw = NULL) -> bytes:
    """Return a conversation's bytes."""
    pieces = [_text(one) for one in (tools, instructions) if given(one)]
    pieces += islice(_pieces(turns), MAX_PIECES)
    return "\0".join(pieces).encode()


def of_items(tools: Raw, items: Raw, instructions: Raw) -> bytes:
    """
    Return the bytes of an input to the Responses API, whose items need not be messages.

    Raises ValueError where the input is none.
    """
    try:
        turns = _turns(items)
    except msgspec.ValidationError as error:
        raise ValueError(_NO_INPUT) from error
    if not turns:
        raise ValueError(_NO_INPUT)
    return of_turns(tools, turns, instructions)


def of_text_or_tokens(field: str, value: Raw) -> bytes:
    """
    Return the bytes of a text or of token ids; of a batch, those of the first.

    Raises ValueError where the value is none of these.
    """
    try:
        return _first(bytes(value))
    except (msgspec.DecodeError, IndexError) as error:
        message = (
            f"{field} must be a text, a list of token ids from 0 to 4294967295,"
            " or a list of either, and not empty"
        )
        raise ValueError(message) from error


def _first(written: bytes) -> bytes:
    if not written.startswith(b"["):
        return _decode_text(written).encode()
    inside = written[1:].lstrip()
    if inside.startswith(b'"'):
        return _decode_texts(written)[0].encode()
    if inside.startswith(b"["):  # a list of integers ends with the first bracket that closes
        written = inside[: inside.index(b"]") + 1]
    if len(written) > MAX_TOKEN_BYTES:
        written = written[:MAX_TOKEN_BYTES].rpartition(b",")[0] + b"]"
    ids = _decode_token_ids(written)
    return pack(f"<{len(ids)}I", ids[0], *ids[1:])


def _turns(items: Raw) -> list[Turn]:
    if _begins(items, b'"'):
        return [Turn(_USER, items)]
    if _countless(items):
        return [Turn(content=items)]
    return [_turn(item) for item in _decode_list(items)[:MAX_PIECES]]


def _turn(item: Raw) -> Turn:
    turn = _decode_turn(item)
    return Turn(content=item) if turn.role is EMPTY else turn


def _pieces(turns: Iterable[Turn]) -> Iterator[str]:
    for turn in turns:
        yield _text(turn.role)
        try:
            yield _decode_text(turn.content)
        except msgspec.ValidationError:
            yield from _parts(turn.content)
        yield _text(turn.tool_calls)


def _parts(content: Raw) -> Iterable[str]:
    """Return the pieces of a content that is no text."""
    if not _begins(content, b"["):
        return (_text(content),)
    if _countless(content):
        return (xxh64_hexdigest(content),)
    return map(_part, _decode_list(content))


def _part(part: Raw) -> str:
    """Return a text part as it is, and any other (an image, a recording) as its digest."""
    try:
        return _decode_part(part).text
    except msgspec.ValidationError:
        return xxh64_hexdigest(part)


def _begins(value: Raw, byte: bytes) -> bool:
    """Return whether a value begins with a byte; a copy of one with images takes megabytes."""
    return bytes(memoryview(value)[:1]) == byte


def _countless(listed: Raw) -> bool:
    return len(memoryview(listed)) > MAX_COMMAS and bytes(listed).count(b",") > MAX_COMMAS


def _text(value: Raw) -> str:
    """Return a text without its quotes and escapes, and anything else as it is written."""
    if value is EMPTY:
        return ""
    try:
        return _decode_text(value)
    except msgspec.ValidationError:
        return "" if value == NULL else bytes(value).decode()
