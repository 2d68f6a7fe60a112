"""
Token counts in responses, whatever state they are in.

The counts only feed metrics, so what cannot be read is passed over, field by field, and never
disturbs a response.
"""

from typing import Any

import msgspec

from epp.framework import Usage

MAX_COUNT = 2**53
"""Above this a count is no count, and no longer exact as a metric."""


class _Document(msgspec.Struct, gc=False):
    """A whole response, or an event: the Responses API puts the response inside its events."""

    usage: Any = None
    response: Any = None


_DECODER = msgspec.json.Decoder(_Document)


def parse(document: bytes) -> Usage | None:
    """Return the token counts, or None where there are none to be read."""
    if b'"usage"' not in document:  # nearly every event of a stream
        return None
    try:
        decoded = _DECODER.decode(document)
    except (msgspec.MsgspecError, RecursionError):
        return None
    counts = decoded.usage
    if not isinstance(counts, dict):
        counts = decoded.response.get("usage") if isinstance(decoded.response, dict) else None
    if not isinstance(counts, dict):
        return None
    found = Usage(
        prompt_tokens=_count(counts, "prompt_tokens", "input_tokens"),
        completion_tokens=_count(counts, "completion_tokens", "output_tokens"),
        cached_tokens=_cached(counts),
    )
    return None if found == Usage() else found


def _cached(counts: dict[str, Any]) -> int | None:
    for name in ("prompt_tokens_details", "input_tokens_details"):
        details = counts.get(name)
        if isinstance(details, dict):
            return _count(details, "cached_tokens")
    return None


def _count(counts: dict[str, Any], *names: str) -> int | None:
    """Return the first that is a count: an integer, or one written as a string."""
    for name in names:
        value = counts.get(name)
        if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 17:
            value = int(value)
        if type(value) is int and 0 <= value <= MAX_COUNT:
            return value
    return None
