"""
One HTTP/2 connection as its server sees it: bytes in, calls served, bytes out; no I/O.

It serves a subset of RFC 9113 that gRPC's clients need: no push, no priorities, no dynamic table
in what it sends. One `receive` brings frames of many streams; `work` handles them, in slices of
bounded time, and all that is to be sent collects in `out`, so that one write carries it.

A violation costs the peer its stream or the connection, with the error code that the RFC asks for.
"""

from collections.abc import Callable

from epp.extproc.h2 import frames
from epp.extproc.h2.call import Call, Handler
from epp.extproc.h2.ended import End, EndedStreams
from epp.extproc.h2.field_blocks import FieldBlocks, PendingBlock
from epp.extproc.h2.frames import ErrorCode, Violation
from epp.extproc.h2.limits import Limits, Rate
from epp.extproc.h2.outbox import Outbox

Accept = Callable[[Call], Handler | None]
"""Returns what serves a call, or ends the call and returns None."""

_HEADER_BYTES = frames.HEADER_BYTES
_DRAIN_PING = b"draining"


class Connection:
    """The state of a connection; the door feeds it, lets it work, and writes what it has to say."""

    def __init__(
        self,
        accept: Accept,
        *,
        limits: Limits,
        clock: Callable[[], float],
        violated: Callable[[Violation], None] = lambda _: None,
        flush: Callable[[], None] = lambda: None,
    ) -> None:
        """
        `violated` is told of each violation, to count it; `flush` writes `out`, for what is sent
        between two reads.
        """
        self._accept = accept
        self.limits = limits
        self.clock = clock
        self._violated = violated
        self.flush = flush
        self.calls: dict[int, Call] = {}
        self.outbox = Outbox()
        self.closing = False
        """Whether nothing more will be said: the transport is to be closed after `out`."""
        self.out: list[bytes] = [_greeting(limits)]
        self._buffer = b""
        self._last_id = 0
        self.unacknowledged = 0
        """Bytes of DATA that the peer was not yet allowed to send anew."""
        self.half_window = limits.connection_window_bytes // 2
        self.half_stream_window = limits.stream_window_bytes // 2
        self._greeted = False
        self._settled = False
        self._fields = FieldBlocks(limits)
        self._block: PendingBlock | None = None
        self._began = clock()
        self._ended = EndedStreams()
        self._draining = False
        self._refusing = False
        self._peer_leaves = False
        self._settings_rate = Rate(limits.settings_rate, clock)
        self._ping_rate = Rate(limits.ping_rate, clock)
        self._reset_rate = Rate(limits.reset_rate, clock)
        self._idle_rate = Rate(limits.idle_frame_rate, clock)
        self._kinds: dict[int, Callable[[int, int, bytes], None]] = {
            frames.HEADERS: self._headers,
            frames.PRIORITY: self._priority,
            frames.RST_STREAM: self._rst_stream,
            frames.SETTINGS: self._settings,
            frames.PUSH_PROMISE: self._push_promise,
            frames.PING: self._ping,
            frames.GOAWAY: self._goaway,
            frames.WINDOW_UPDATE: self._window_update,
            frames.CONTINUATION: self._continuation,
        }

    def receive(self, data: bytes) -> None:
        """Take bytes from the peer; `work` handles them."""
        self._buffer = self._buffer + data if self._buffer else data

    def take_output(self) -> bytes:
        """Return what is to be written now, and forget it."""
        out = b"".join(self.out)
        self.out.clear()
        return out

    def work(self) -> bool:
        """Handle what was received, for a slice of time; return whether there is more to handle."""
        if self.closing:
            self._buffer = b""
            return False
        position = 0
        try:
            if not self._greeted:
                position = self._greet()
                if not self._greeted:
                    return False
            position, more = self._work(position)
        except Violation as violation:
            self._fail(violation)
            return False
        self._buffer = self._buffer[position:] if position else self._buffer
        if not more and not self.calls:
            self._close_if_idle()
        return more

    def _greet(self) -> int:
        """Check the preface (RFC 9113, section 3.4); return where the frames begin."""
        size = len(frames.PREFACE)
        if self._buffer[:size] == frames.PREFACE:
            self._greeted = True
            return size
        if not frames.PREFACE.startswith(self._buffer):
            raise Violation(ErrorCode.PROTOCOL_ERROR, "this is no HTTP/2 connection preface")
        return 0

    def _work(self, position: int) -> tuple[int, bool]:
        """Handle whole frames; return where the first begins that was not, and whether it could."""
        buffer = self._buffer
        size = len(buffer)
        until = self.clock() + self.limits.slice_seconds
        unpack = frames.unpack_header
        calls = self.calls
        while size - position >= _HEADER_BYTES:
            head, flags, stream_id = unpack(buffer, position)
            start = position + _HEADER_BYTES
            length = head >> 8
            end = start + length
            if length > frames.DEFAULT_FRAME_BYTES:
                raise Violation(ErrorCode.FRAME_SIZE_ERROR, "a frame larger than announced")
            if end > size:
                break
            position = end
            try:
                # Nearly all frames are like this one: it is spared what the others need.
                if head & 0xFF == flags == 0 and self._block is None and stream_id in calls:
                    calls[stream_id].data(length, buffer, start, end)
                else:
                    self._frame(
                        head & 0xFF, flags, stream_id & frames.MAX_STREAM_ID, buffer, start, end
                    )
            except Violation as violation:
                self._reset(violation)
            if self.closing:
                return size, False
            if size > position and self.clock() > until:
                return position, True
        return position, False

    def _frame(
        self, kind: int, flags: int, stream_id: int, buffer: bytes, start: int, end: int
    ) -> None:
        if self._block is not None and kind != frames.CONTINUATION:
            raise Violation(ErrorCode.PROTOCOL_ERROR, "a field block was interrupted")
        if kind == frames.DATA and self._settled:
            self._data(flags, stream_id, buffer, start, end)
        else:
            self._other(kind, flags, stream_id, buffer[start:end])

    def _other(self, kind: int, flags: int, stream_id: int, payload: bytes) -> None:
        if not self._settled:
            if kind != frames.SETTINGS or flags & frames.ACK:
                raise Violation(ErrorCode.PROTOCOL_ERROR, "the first frame is not SETTINGS")
            self._settled = True
        handle = self._kinds.get(kind)
        if handle is not None:
            handle(flags, stream_id, payload)
        else:
            self.idle_frame()

    def idle_frame(self) -> None:
        """Note a frame that carries nothing; a peer may send only so many."""
        if self._idle_rate.exceeded():
            raise Violation(ErrorCode.ENHANCE_YOUR_CALM, "too many frames that carry nothing")

    # DATA

    def _data(self, flags: int, stream_id: int, buffer: bytes, start: int, end: int) -> None:
        length = end - start
        if flags & frames.PADDED:
            start, end = frames.unpadded(buffer, start, end)
        call = self.calls.get(stream_id)
        if call is None:
            self.unacknowledged += length
            self.account()
            self._check_begun(stream_id, "DATA")
            self._ended.judge(stream_id, "DATA")
            self.idle_frame()
            return
        if not call.remote_closed:
            call.ending = bool(flags & frames.END_STREAM)
        call.data(length, buffer, start, end)
        if call.ending:
            self._end_of_stream(call)

    def _end_of_stream(self, call: Call) -> None:
        if call.id in self.calls:  # else what serves it has ended it, in the frame that ends it
            call.end_of_stream()

    def account(self) -> None:
        """Hold the peer to the connection's window, and open it anew at half."""
        if self.unacknowledged > self.limits.connection_window_bytes:
            raise Violation(ErrorCode.FLOW_CONTROL_ERROR, "beyond the connection's window")
        if self.unacknowledged >= self.half_window:
            self.out.append(frames.window_update(0, self.unacknowledged))
            self.unacknowledged = 0

    def acknowledge(self, call: Call) -> None:
        """Open a stream's window anew, unless its messages wait or it is over."""
        if call.unacknowledged and not call.waiting and not call.ending:
            if call.id in self.calls:
                self.out.append(frames.window_update(call.id, call.unacknowledged))
            call.unacknowledged = 0

    # HEADERS

    def _headers(self, flags: int, stream_id: int, payload: bytes) -> None:
        if not stream_id & 1:
            raise Violation(ErrorCode.PROTOCOL_ERROR, "HEADERS on a stream id not the client's")
        start, end = 0, len(payload)
        if flags & frames.PADDED:
            start, end = frames.unpadded(payload, start, end)
        if flags & frames.HAS_PRIORITY:
            start += 5
            if start > len(payload):
                raise Violation(ErrorCode.FRAME_SIZE_ERROR, "HEADERS too short for its flags")
            if start > end:
                raise Violation(ErrorCode.PROTOCOL_ERROR, "padding is longer than its frame")
        if flags & frames.END_HEADERS:
            self._end_block(flags, stream_id, payload[start:end])
            return
        self._block = PendingBlock(flags, stream_id, payload[start:end])
        self._began = self.clock()

    def _continuation(self, flags: int, stream_id: int, payload: bytes) -> None:
        block = self._block
        if block is None or stream_id != block.stream_id:
            raise Violation(ErrorCode.PROTOCOL_ERROR, "CONTINUATION without its HEADERS")
        block.add(payload, self.limits)
        if flags & frames.END_HEADERS:
            self._block = None
            self._end_block(block.flags, stream_id, b"".join(block.pieces))

    def _end_block(self, flags: int, stream_id: int, block: bytes) -> None:
        ended = bool(flags & frames.END_STREAM)
        if stream_id > self._last_id:
            self._open(stream_id, block, ended=ended)
            return
        well_formed = self._fields.trailers(block)
        call = self.calls.get(stream_id)
        if call is None:
            if not self._ended.may_hold(stream_id):
                raise Violation(ErrorCode.PROTOCOL_ERROR, "HEADERS on a stream id passed over")
            self._ended.judge(stream_id, "HEADERS")
            self.idle_frame()
        elif call.remote_closed:
            what = "HEADERS after the end of the stream"
            raise Violation(ErrorCode.STREAM_CLOSED, what, stream_id)
        elif not ended or not well_formed:
            raise Violation(ErrorCode.PROTOCOL_ERROR, "malformed trailers", stream_id)
        else:
            call.end_of_stream()

    def _open(self, stream_id: int, block: bytes, *, ended: bool) -> None:
        head = self._fields.request(block)
        if self._refusing:
            return
        self._last_id = stream_id
        if head.fault:
            raise Violation(ErrorCode.PROTOCOL_ERROR, head.fault, stream_id)
        if len(self.calls) >= self.limits.max_streams:
            raise Violation(ErrorCode.REFUSED_STREAM, "too many streams at once", stream_id)
        call = Call(self, stream_id, head)
        self.calls[stream_id] = call
        call.ending = ended
        call.handler = self._accept(call)
        if ended:
            self._end_of_stream(call)

    def forget(self, call: Call) -> None:
        """Note that both sides of a stream are closed."""
        self.calls.pop(call.id, None)
        self._ended.remember(call.id, End.BY_PEER if call.ending else End.BY_US)
        if self.outbox.blocked:
            self.outbox.unblock(call)
        if not self.calls:
            self._close_if_idle()

    # Frames of a stream

    def _priority(self, _: int, stream_id: int, payload: bytes) -> None:
        if not stream_id:
            raise Violation(ErrorCode.PROTOCOL_ERROR, "PRIORITY on stream 0")
        if len(payload) != 5:
            # An idle stream cannot be reset (RFC 9113, section 6.4).
            begun = stream_id & 1 and stream_id <= self._last_id
            what = "PRIORITY of a wrong size"
            raise Violation(ErrorCode.FRAME_SIZE_ERROR, what, stream_id if begun else 0)
        self.idle_frame()

    def _rst_stream(self, _: int, stream_id: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise Violation(ErrorCode.FRAME_SIZE_ERROR, "RST_STREAM of a wrong size")
        self._check_begun(stream_id, "RST_STREAM")
        if self._reset_rate.exceeded():
            raise Violation(ErrorCode.ENHANCE_YOUR_CALM, "too many streams are reset")
        call = self.calls.get(stream_id)
        if call is not None:
            self.forget(call)
            self._ended.remember(stream_id, End.BY_RESET)
            call.cancel()

    def _check_begun(self, stream_id: int, what: str) -> None:
        passed_over = stream_id > self._last_id and not self._refusing
        if stream_id == 0 or not stream_id & 1 or passed_over:
            raise Violation(ErrorCode.PROTOCOL_ERROR, f"{what} on a stream that never began")

    def _push_promise(self, _: int, __: int, ___: bytes) -> None:
        raise Violation(ErrorCode.PROTOCOL_ERROR, "PUSH_PROMISE from a client")

    def _window_update(self, _: int, stream_id: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise Violation(ErrorCode.FRAME_SIZE_ERROR, "WINDOW_UPDATE of a wrong size")
        increment = frames.unpack_number(payload)[0] & frames.MAX_WINDOW
        if stream_id:
            self._check_begun(stream_id, "WINDOW_UPDATE")
        if not increment:
            what = "WINDOW_UPDATE of nothing"
            raise Violation(ErrorCode.PROTOCOL_ERROR, what, stream_id)
        if not stream_id:
            self.outbox.grant(increment)
            return
        call = self.calls.get(stream_id)
        if call is None:
            self.idle_frame()
        else:
            self.outbox.grant_to(call, increment)

    # Frames of the connection

    def _settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise Violation(ErrorCode.PROTOCOL_ERROR, "SETTINGS on a stream")
        if len(payload) % 6 or (flags & frames.ACK and payload):
            raise Violation(ErrorCode.FRAME_SIZE_ERROR, "SETTINGS of a wrong size")
        if self._settings_rate.exceeded():
            raise Violation(ErrorCode.ENHANCE_YOUR_CALM, "too many SETTINGS")
        if flags & frames.ACK:
            return
        self.out.append(frames.SETTINGS_ACK)
        self.outbox.set(frames.unpack_setting(payload), self.calls.values())

    def _ping(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise Violation(ErrorCode.PROTOCOL_ERROR, "PING on a stream")
        if len(payload) != 8:
            raise Violation(ErrorCode.FRAME_SIZE_ERROR, "PING of a wrong size")
        if self._ping_rate.exceeded():
            raise Violation(ErrorCode.ENHANCE_YOUR_CALM, "too many PINGs")
        if not flags & frames.ACK:
            self.out.append(frames.frame(frames.PING, frames.ACK, 0, payload))
        elif payload == _DRAIN_PING and self._draining:
            self.refuse_new()

    def _goaway(self, _: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise Violation(ErrorCode.PROTOCOL_ERROR, "GOAWAY on a stream")
        if len(payload) < 8:
            raise Violation(ErrorCode.FRAME_SIZE_ERROR, "GOAWAY of a wrong size")
        self._peer_leaves = True

    # Ends

    def drain(self) -> None:
        """
        Ask the peer to open no more streams here (RFC 9113, section 6.8: GOAWAY twice).

        The second, which names the last stream that is served, follows when the peer has answered
        a PING, and so has read the first; or when `refuse_new` is called, for want of patience.
        """
        if not self._draining and not self.closing:
            self._draining = True
            self.out.append(frames.goaway(frames.MAX_STREAM_ID, ErrorCode.NO_ERROR))
            self.out.append(frames.frame(frames.PING, 0, 0, _DRAIN_PING))

    def refuse_new(self) -> None:
        """Serve no stream that is not open yet; close as soon as none is."""
        if not self._refusing and not self.closing:
            self._refusing = True
            self.out.append(frames.goaway(self._last_id, ErrorCode.NO_ERROR))
        self._close_if_idle()

    def _close_if_idle(self) -> None:
        """Close where either side has said that no stream is to follow, and none is left."""
        if self.calls or self.closing:
            return
        if self._peer_leaves and not self._refusing:
            self.refuse_new()
        self.closing = self._refusing

    def _fail(self, violation: Violation) -> None:
        """Give the connection up, and say why."""
        self._violated(violation)
        self.out.append(frames.goaway(self._last_id, violation.code, violation.what))
        self.lost()

    def shut_down(self) -> None:
        """Cut every call, and say that it is not the peer's fault."""
        for call in list(self.calls.values()):
            self.cut(call.id, ErrorCode.CANCEL)
        if not self.closing:
            self.out.append(frames.goaway(self._last_id, ErrorCode.NO_ERROR))
            self.closing = True

    def lost(self) -> None:
        """Note that nothing can be said or heard any more: every call is over."""
        self.closing = True
        self._buffer = b""
        calls, self.calls = self.calls, {}
        self.outbox.clear()
        for call in calls.values():
            call.cancel()

    def _reset(self, violation: Violation) -> None:
        """Take its stream from the peer; too many of that, or no stream, cost it the connection."""
        if not violation.stream_id:
            raise violation
        self._violated(violation)
        self.cut(violation.stream_id, violation.code)
        if self._reset_rate.exceeded():
            raise Violation(ErrorCode.ENHANCE_YOUR_CALM, "too many streams had to be reset")

    def cut(self, stream_id: int, code: ErrorCode) -> None:
        """Reset a stream."""
        self.out.append(frames.rst_stream(stream_id, code))
        call = self.calls.get(stream_id)
        if call is None:
            self._ended.remember(stream_id, End.BY_US)
            return
        call.ending = False
        self.forget(call)
        call.cancel()

    def look(self) -> None:
        """
        Cut what the peer lets wait for too long: called from time to time.

        Output that it does not read costs it that stream; a preface or a field block that it does
        not complete, the connection.
        """
        now = self.clock()
        limits = self.limits
        begins = not self._settled or self._block is not None
        if begins and not self.closing and now - self._began > limits.preface_seconds:
            self._fail(Violation(ErrorCode.ENHANCE_YOUR_CALM, "what began was not completed"))
        for call in list(self.outbox.blocked.values()):
            if now - call.stalled_since > limits.stall_seconds:
                self._violated(Violation(ErrorCode.CANCEL, "output was not read", call.id))
                self.cut(call.id, ErrorCode.CANCEL)


def _greeting(limits: Limits) -> bytes:
    values = {
        frames.MAX_CONCURRENT_STREAMS: limits.max_streams,
        frames.INITIAL_WINDOW_SIZE: limits.stream_window_bytes,
        frames.MAX_HEADER_LIST_SIZE: limits.max_field_list_bytes,
    }
    grown = limits.connection_window_bytes - frames.DEFAULT_WINDOW
    return frames.settings(values) + (frames.window_update(0, grown) if grown > 0 else b"")
