"""
Token counts read from a response as it passes by.

The per-piece path does as little as can be: a piece of an event stream is only looked into where it
holds the word `usage`, or the end of a line that a piece before it cut off. Memory is bounded: one
incomplete line, or one JSON document, each up to a cap beyond which nothing is counted.
"""

from typing import Literal

from epp.framework import Parser, Usage

Media = Literal["events", "json", "opaque"]

MAX_LINE_BYTES = 1 << 16
"""A line longer than this is no usage event."""

MAX_DOCUMENT_BYTES = 1 << 20
"""As long as a response is held together elsewhere."""


class UsageReader:
    """Reads one response body, in pieces cut anywhere."""

    __slots__ = ("_cap", "_media", "_parser", "_tail", "usage")

    def __init__(self, parser: Parser, media: Media) -> None:
        self._parser = parser
        self._media = media
        self._cap = MAX_LINE_BYTES if media == "events" else MAX_DOCUMENT_BYTES
        self._tail = bytearray()
        self.usage: Usage | None = None
        """What the response has said so far; None where it has said nothing."""

    def feed(self, piece: bytes) -> None:
        """Take the next piece."""
        if self._media == "events":
            if not self._tail and b'"usage"' not in piece and piece.endswith(b"\n"):
                return
            self._feed_lines(piece)
        elif self._media == "json":
            self._tail += piece
            if len(self._tail) > self._cap:
                self._media = "opaque"
                self._tail.clear()

    def end(self) -> None:
        """Note that the body is complete."""
        tail, self._tail = bytes(self._tail), bytearray()
        if tail:
            self._read(tail.removeprefix(b"data:") if self._media == "events" else tail)

    def _feed_lines(self, piece: bytes) -> None:
        data = bytes(self._tail) + piece
        cut = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        tail = data[cut:]
        self._tail = bytearray(tail if len(tail) <= self._cap else b"")
        complete = data[:cut]
        if b'"usage"' not in complete:
            return
        for line in complete.splitlines():
            if line.startswith(b"data:") and b'"usage"' in line:
                self._read(line[5:])

    def _read(self, document: bytes) -> None:
        if b'"usage"' not in document:
            return
        found = self._parser.parse_usage(document)
        if found is not None:
            self.usage = found if self.usage is None else self.usage.merged(found)
