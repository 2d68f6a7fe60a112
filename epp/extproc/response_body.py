"""
The body of one response on its way through the picker: forwarded, held together, or renamed.

In full duplex the picker must send on what it gets. A stream is forwarded piece by piece; a JSON
document is held and sent on whole, which costs one reply instead of many and lets its `usage` be
read in one go, but only up to `HOLD_BYTES`. Where the model was renamed for the model server, the
client's name is put back.
"""

import msgspec

from epp.extproc import messages

HOLD_BYTES = 1 << 20
"""A response held longer than this would cost more memory than its usage counts are worth."""


class ResponseBody:
    """Takes the pieces of a response body and says what to answer for each."""

    __slots__ = ("_held", "_held_bytes", "_mode", "_renamer")

    def __init__(self, mode: int, *, holds: bool, restore: tuple[str, str] | None) -> None:
        duplex = mode == messages.FULL_DUPLEX_STREAMED
        self._mode = mode
        self._held: list[bytes] | None = [] if holds and duplex else None
        self._held_bytes = 0
        self._renamer = ModelRenamer(*restore) if restore and mode != messages.NONE else None

    @property
    def changes_length(self) -> bool:
        """Whether the body may end up longer or shorter than its headers said."""
        return self._renamer is not None

    @property
    def passes_on(self) -> bool:
        """Whether pieces are sent on as they come."""
        duplex = self._mode == messages.FULL_DUPLEX_STREAMED
        return duplex and self._held is None and self._renamer is None

    def take(self, piece: bytes, replies: list[bytes], *, end_of_stream: bool) -> bytes:
        """
        Take a piece, append the replies due for it, and return what now can be read of the body.

        A held body is returned whole, once it is.
        """
        if self._mode != messages.FULL_DUPLEX_STREAMED:
            self._answer_in_place(piece, replies)
            return piece
        if self._held is not None:
            self._held.append(piece)
            self._held_bytes += len(piece)
            if not end_of_stream and self._held_bytes <= HOLD_BYTES:
                return b""
            piece, self._held = b"".join(self._held), None
        sent = self._renamer.feed(piece, last=end_of_stream) if self._renamer else piece
        replies.extend(messages.streamed_body("response_body", sent, end_of_stream=end_of_stream))
        return piece

    def flush(self, replies: list[bytes]) -> bytes:
        """End the body by trailers: send on what is still held, without an end of stream."""
        if self._mode != messages.FULL_DUPLEX_STREAMED:
            return b""
        piece = b"".join(self._held) if self._held else b""
        self._held = None
        sent = self._renamer.feed(piece, last=True) if self._renamer else piece
        if sent:
            replies.extend(messages.streamed_body("response_body", sent, end_of_stream=False))
        return piece

    def _answer_in_place(self, piece: bytes, replies: list[bytes]) -> None:
        # Nothing may wait for the next piece here: if trailers came instead, it could not go on.
        sent = self._renamer.feed(piece, last=True) if self._renamer else piece
        if sent == piece:
            replies.append(messages.plain("response_body"))
        else:
            replies.append(messages.replaced_body("response_body", sent))


class ModelRenamer:
    """
    Replaces the model server's name of the model by the client's, in a body that comes in pieces.

    It replaces `"model":"<name>"` with at most one blank after the colon, as every server writes
    it. Where a piece ends in what may be the beginning of that, those bytes wait for the next
    piece.
    """

    def __init__(self, served: str, asked: str) -> None:
        self._names = [
            (b'"model":' + blank + _json(served), b'"model":' + blank + _json(asked))
            for blank in (b"", b" ")
        ]
        self._tail = b""

    def feed(self, piece: bytes, *, last: bool) -> bytes:
        """Return the bytes to send on now."""
        data = self._tail + piece
        for old, new in self._names:
            if old in data:
                data = data.replace(old, new)
        waiting = 0 if last else max(_overlap(data, old) for old, _ in self._names)
        self._tail = data[len(data) - waiting :] if waiting else b""
        return data[: len(data) - waiting]


_json = msgspec.json.encode


def _overlap(data: bytes, pattern: bytes) -> int:
    """How many bytes at the end of the data begin the pattern."""
    start = data.rfind(pattern[:1], max(0, len(data) - len(pattern) + 1))
    longest = 0
    while start != -1:
        if pattern.startswith(data[start:]):
            longest = len(data) - start
        start = data.rfind(pattern[:1], max(0, len(data) - len(pattern) + 1), start)
    return longest
