"""
Prompts as bytes for hashing: equal prompts give equal bytes, and more of one only adds to them.

Nobody reads these bytes as text. They follow the order in which a chat template writes a prompt:
tools, instructions, then the turns. A NUL parts each piece from the next, and the
bytes of a conversation begin with those of its earlier turns.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from struct import pack
from typing import Any

import msgspec
from xxhash import xxh64, xxh64_hexdigest

MAX_PIECES = 100_000
"""Beyond any conversation; a body of a million empty messages must not hold up other requests."""

CHUNK_CHARACTERS = 65536


class Turn(msgspec.Struct, gc=False):
    """What is rendered of one message; what else it says does not matter here."""

    role: Any = None
    content: Any = None
    tool_calls: Any = None


def of_turns(tools: Any, turns: Iterable[Turn], instructions: Any = None) -> bytes:
    """Return a conversation's bytes."""
    pieces = [_text(one) for one in (tools, instructions) if one]
    pieces += islice(_pieces(turns), MAX_PIECES)
    return "\0".join(pieces).encode()


def of_items(tools: Any, items: str | Sequence[dict[str, Any]], instructions: Any) -> bytes:
    """Return the bytes of an input to the Responses API, whose items need not be messages."""
    if isinstance(items, str):
        return of_turns(tools, [Turn("user", items)], instructions)
    turns = (
        Turn(item["role"], item.get("content")) if "role" in item else Turn(content=item)
        for item in items
    )
    return of_turns(tools, turns, instructions)


def of_token_ids(ids: Sequence[int]) -> bytes:
    """Return four bytes an id, in the same order on every machine; raise ValueError beyond them."""
    if not 0 <= min(ids) <= max(ids) < 2**32:
        message = "a token id must be from 0 to 4294967295"
        raise ValueError(message)
    return pack(f"<{len(ids)}I", *ids)


def _pieces(turns: Iterable[Turn]) -> Iterator[str]:
    for turn in turns:
        yield _text(turn.role)
        if isinstance(turn.content, list):
            yield from map(_part, turn.content)
        else:
            yield _text(turn.content)
        yield _text(turn.tool_calls)


def _part(part: Any) -> str:
    """Return a text part as it is, and any other (an image, a recording) as its digest."""
    if isinstance(part, dict):
        if isinstance(text := part.get("text"), str):
            return text
        image = part.get("image_url")
        url = image.get("url") if isinstance(image, dict) else image
        if isinstance(url, str):
            return _digest(url)
    return xxh64_hexdigest(msgspec.json.encode(part))


def _digest(text: str) -> str:
    """
    Return the digest of all of a text: two images may differ in their last byte only.

    Piece by piece, since an image is megabytes and no copy of it should stand beside it.
    """
    digest = xxh64()
    for at in range(0, len(text), CHUNK_CHARACTERS):
        digest.update(text[at : at + CHUNK_CHARACTERS].encode())
    return digest.hexdigest()


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "" if value is None else msgspec.json.encode(value).decode()
