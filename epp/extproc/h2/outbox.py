"""
The outbox: how much the peer lets us send, and which calls wait for more (RFC 9113, section 5.2).

A call sends as far as three things allow: the connection's window, the stream's own, which is the
initial one and what was granted to it alone, and the largest frame that the peer takes.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from epp.extproc.h2 import frames
from epp.extproc.h2.frames import ErrorCode, Violation

if TYPE_CHECKING:
    from epp.extproc.h2.call import Call


class Outbox:
    """The peer's windows, and the calls whose output waits for them."""

    __slots__ = (
        "_largest_grant",
        "blocked",
        "initial_window",
        "max_frame_bytes",
        "thirsty",
        "window",
    )

    def __init__(self) -> None:
        self.window = frames.DEFAULT_WINDOW
        """How many bytes the peer lets us send in all."""
        self.initial_window = frames.DEFAULT_WINDOW
        """How many bytes it lets us send on each stream, beside what it grants to that stream."""
        self.max_frame_bytes = frames.DEFAULT_FRAME_BYTES
        self.blocked: dict[int, Call] = {}
        """The calls whose output waits."""
        self.thirsty: dict[int, Call] = {}
        """Those of them that wait for the connection's window, not for their own."""
        self._largest_grant = 0
        """No less than any open stream was granted: where it cannot overflow, none can."""

    def grant(self, increment: int) -> None:
        """Let more be sent in all."""
        self.window += increment
        if self.window > frames.MAX_WINDOW:
            raise Violation(ErrorCode.FLOW_CONTROL_ERROR, "the connection's window overflows")
        self._pump_thirsty()

    def grant_to(self, call: "Call", increment: int) -> None:
        """Let more be sent on one stream."""
        call.granted += increment
        if self.initial_window + call.granted > frames.MAX_WINDOW:
            what = "the stream's window overflows"
            raise Violation(ErrorCode.FLOW_CONTROL_ERROR, what, call.id)
        self._largest_grant = max(self._largest_grant, call.granted)
        if call.id in self.blocked:
            call.pump()
            call.deliver()

    def set(self, settings: Iterable[tuple[int, int]], calls: Iterable["Call"]) -> None:
        """Take the peer's settings, as far as they concern what it is sent."""
        before = self.initial_window
        for name, value in settings:
            if name == frames.INITIAL_WINDOW_SIZE:
                self._set_initial_window(value, calls)
            elif name == frames.MAX_FRAME_SIZE:
                if not frames.DEFAULT_FRAME_BYTES <= value <= frames.MAX_FRAME_BYTES:
                    what = "MAX_FRAME_SIZE is out of its range"
                    raise Violation(ErrorCode.PROTOCOL_ERROR, what)
                self.max_frame_bytes = value
            elif name == frames.ENABLE_PUSH and value > 1:
                raise Violation(ErrorCode.PROTOCOL_ERROR, "ENABLE_PUSH is neither 0 nor 1")
        if self.initial_window > before:
            self.thirsty.update(self.blocked)
            self._pump_thirsty()

    def _set_initial_window(self, value: int, calls: Iterable["Call"]) -> None:
        if value > frames.MAX_WINDOW:
            raise Violation(ErrorCode.FLOW_CONTROL_ERROR, "INITIAL_WINDOW_SIZE is too large")
        self.initial_window = value
        if value + self._largest_grant > frames.MAX_WINDOW:
            # RFC 9113, section 6.9.2: it counts for every stream that is open.
            self._largest_grant = max((call.granted for call in calls), default=0)
            if value + self._largest_grant > frames.MAX_WINDOW:
                what = "INITIAL_WINDOW_SIZE makes a window overflow"
                raise Violation(ErrorCode.FLOW_CONTROL_ERROR, what)

    def _pump_thirsty(self) -> None:
        """Send what waits, a frame of each stream in turn, while the window lasts."""
        while self.thirsty and self.window > 0:
            for call in list(self.thirsty.values()):
                call.pump(1)
                call.deliver()

    def unblock(self, call: "Call") -> None:
        """Note that nothing of a call waits any more."""
        self.blocked.pop(call.id, None)
        self.thirsty.pop(call.id, None)

    def clear(self) -> None:
        """Let nothing wait any more."""
        self.blocked.clear()
        self.thirsty.clear()
