"""
Streams that ended: how the latest of them did, to judge what still comes for them.

What crossed our own end of a stream is ignored, what follows the peer's own is its error (RFC 9113,
section 5.1). Only so many are remembered; what comes for one ended longer ago is taken to have
crossed.
"""

from enum import Enum, auto

from epp.extproc.h2.frames import ErrorCode, Violation

_REMEMBERED = 1_000


class End(Enum):
    """Who ended a stream, and how."""

    BY_PEER = auto()
    BY_RESET = auto()
    """The peer's too, by RST_STREAM."""
    BY_US = auto()


class EndedStreams:
    """The ends of a connection's streams, the oldest forgotten first."""

    __slots__ = ("_ends", "_forgotten_id")

    def __init__(self) -> None:
        self._ends: dict[int, End] = {}
        self._forgotten_id = 0

    def remember(self, stream_id: int, end: End) -> None:
        """Note how a stream ended."""
        ends = self._ends
        ends[stream_id] = end
        if len(ends) > _REMEMBERED:
            oldest = next(iter(ends))
            del ends[oldest]
            self._forgotten_id = max(self._forgotten_id, oldest)

    def may_hold(self, stream_id: int) -> bool:
        """Say whether a stream that is not open ever was, as far as is remembered."""
        return stream_id in self._ends or stream_id <= self._forgotten_id

    def judge(self, stream_id: int, what: str) -> None:
        """Raise Violation where a frame follows the peer's own end of its stream."""
        end = self._ends.get(stream_id)
        if end is End.BY_PEER:
            raise Violation(ErrorCode.STREAM_CLOSED, f"{what} on a stream that the peer ended")
        if end is End.BY_RESET:
            text = f"{what} on a stream that the peer reset"
            raise Violation(ErrorCode.STREAM_CLOSED, text, stream_id)
