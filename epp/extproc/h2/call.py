"""
One gRPC call on one HTTP/2 stream: messages cut out of DATA, replies sent as windows allow.

What serves the call is a `Service`'s object; it is told of each message, of the half-close and of
a cancellation, in the read that brought them. Where it cannot go on at once it holds the call, and
messages wait; they wait too while the peer leaves too much output unread.
"""

from collections import deque
from typing import TYPE_CHECKING, Protocol

from epp.extproc.h2 import field_blocks, frames
from epp.extproc.h2.field_blocks import RequestHead
from epp.extproc.h2.frames import ErrorCode, Violation

if TYPE_CHECKING:
    from epp.extproc.h2.connection import Connection

OK, CANCELLED, UNKNOWN, INVALID_ARGUMENT, DEADLINE_EXCEEDED, NOT_FOUND = range(6)
RESOURCE_EXHAUSTED = 8
UNIMPLEMENTED = 12
INTERNAL = 13

_PREFIX_BYTES = 5


class Handler(Protocol):
    """What serves one call; nothing of it is called after `Call.end` or `cancelled`."""

    def message(self, data: bytes) -> None:
        """Take the next message."""

    def half_closed(self) -> None:
        """Note that the peer will send no more messages."""

    def cancelled(self) -> None:
        """Note that the call is over: reset by the peer, cut by us, or its connection is lost."""


class Call:
    """A stream of the connection, from its HEADERS to the end of both its sides."""

    __slots__ = (
        "_held",
        "_inbox",
        "_offset",
        "_partial",
        "_queue",
        "_trailers",
        "connection",
        "ending",
        "granted",
        "handler",
        "head",
        "id",
        "queued",
        "received",
        "remote_closed",
        "responded",
        "stalled_since",
        "unacknowledged",
    )

    def __init__(self, connection: "Connection", stream_id: int, head: RequestHead) -> None:
        self.connection = connection
        self.id = stream_id
        self.head = head
        self.handler: Handler | None = None
        """None once the call is over for what serves it."""
        self.granted = 0
        """How many bytes the peer lets us send beyond the connection's initial window."""
        self.received = 0
        """Bytes of DATA without padding, to be compared with the announced content-length."""
        self.unacknowledged = 0
        """Bytes that the peer sent and was not yet allowed to send anew."""
        self.ending = False
        """Whether the peer has closed its side, be it with what is being delivered."""
        self.remote_closed = False
        """Whether it has, and all that came before is delivered or waits."""
        self.responded = False
        self.queued = 0
        self.stalled_since = 0.0
        self._partial: bytearray | None = None
        self._inbox: deque[bytes] | None = None
        self._held = False
        self._queue: deque[bytes] | None = None
        self._offset = 0
        self._trailers: bytes | None = None

    # What the peer sends

    def data(self, length: int, buffer: bytes, start: int, end: int) -> None:
        """Take DATA, `length` bytes with its padding; deliver messages complete with it."""
        connection = self.connection
        connection.unacknowledged += length
        if connection.unacknowledged >= connection.half_window:
            connection.account()
        if self.remote_closed:
            raise Violation(ErrorCode.STREAM_CLOSED, "DATA after the end of the stream", self.id)
        self.unacknowledged += length
        self.received += end - start
        # Most frames hold one whole message, most messages do not have to wait, and most windows
        # are wide.
        body = start + _PREFIX_BYTES
        size = end - body
        if (
            size >= 0
            and not (buffer[start] or self._held or self.queued)
            and self._inbox is None
            and self._partial is None
            and self.handler is not None
            and int.from_bytes(buffer[start + 1 : body]) == size
            and self.unacknowledged < connection.half_stream_window
        ):
            self.handler.message(buffer[body:end])
        else:
            self._other_data(buffer, start, end)

    def _other_data(self, buffer: bytes, start: int, end: int) -> None:
        connection = self.connection
        if self.unacknowledged > connection.limits.stream_window_bytes:
            raise Violation(ErrorCode.FLOW_CONTROL_ERROR, "beyond the stream's window", self.id)
        if start == end and not self.ending:
            connection.idle_frame()
        self._cut(buffer, start, end)
        if self.unacknowledged >= connection.half_stream_window:
            connection.acknowledge(self)

    def _cut(self, buffer: bytes, start: int, end: int) -> None:
        """Cut messages out of what came."""
        if self.handler is None:
            return
        if self._partial is None:
            start = self._whole_messages(buffer, start, end)
            if start < end:
                self._partial = bytearray(memoryview(buffer)[start:end])
                self._check(self._partial)
            return
        partial = self._partial
        partial += memoryview(buffer)[start:end]
        if len(partial) >= _PREFIX_BYTES and len(partial) - _PREFIX_BYTES >= self._check(partial):
            self._partial = None
            self._cut(bytes(partial), 0, len(partial))

    def _whole_messages(self, buffer: bytes, start: int, end: int) -> int:
        """Deliver whole messages; return where the first begins that is not."""
        while end - start >= _PREFIX_BYTES:
            size = int.from_bytes(buffer[start + 1 : start + _PREFIX_BYTES])
            body = start + _PREFIX_BYTES
            if buffer[start] or body + size > end:
                break
            start = body + size
            self._take(buffer[body:start])
        return start

    def _check(self, partial: bytearray) -> int:
        """Return the size of the message that begins here; end the call if it cannot be taken."""
        if partial[0] == 1:
            # No grpc-accept-encoding is sent: nothing but identity was ever offered.
            known = self.head.encoding == "identity"
            text = f"compressed messages ({self.head.encoding}) are not understood; send identity"
            self._cut_short(INTERNAL if known else UNIMPLEMENTED, text)
        elif partial[0]:
            self._cut_short(INTERNAL, "a message's first byte is neither 0 nor 1")
        if len(partial) < _PREFIX_BYTES:
            return 0
        size = int.from_bytes(partial[1:_PREFIX_BYTES])
        most = self.connection.limits.max_message_bytes
        if size > most:
            self._cut_short(RESOURCE_EXHAUSTED, f"a message of {size} bytes is larger than {most}")
        return size

    def _cut_short(self, status: int, text: str) -> None:
        """End a call that cannot go on, and tell what serves it."""
        handler = self.handler
        self.end(status, text)
        if handler is not None:
            handler.cancelled()

    def _take(self, message: bytes) -> None:
        if self.handler is None:
            return
        if self._inbox is not None:
            self._inbox.append(message)
        elif self._held or self.queued > self.connection.limits.max_queued_bytes:
            self._inbox = deque((message,))
        else:
            self.handler.message(message)

    def end_of_stream(self) -> None:
        """Note that the peer closed its side; what serves the call hears of it after all else."""
        self.ending = self.remote_closed = True
        if self.head.content_length is not None and self.received != self.head.content_length:
            what = "the body is not as long as its content-length says"
            raise Violation(ErrorCode.PROTOCOL_ERROR, what, self.id)
        if self.handler is None:
            return
        if self._partial is not None:
            self._cut_short(INTERNAL, "the stream ended in the middle of a message")
        elif self._inbox is None and self._held:
            self._inbox = deque()
        elif self._inbox is None:
            self.handler.half_closed()

    # What waits

    @property
    def waiting(self) -> bool:
        """Whether messages, or the half-close, wait to be delivered."""
        return self._inbox is not None

    def hold(self) -> None:
        """Deliver nothing more until `release`."""
        self._held = True

    def release(self) -> None:
        """Go on delivering, first what came meanwhile."""
        self._held = False
        self.deliver()

    def deliver(self) -> None:
        """Deliver what waits, as far as neither the service nor the peer's window is in the way."""
        most = self.connection.limits.max_queued_bytes
        while self._inbox is not None and not self._held and self.queued <= most:
            assert self.handler is not None  # with it, what waits is dropped
            if self._inbox:
                self.handler.message(self._inbox.popleft())
                continue
            self._inbox = None
            self.connection.acknowledge(self)
            if self.remote_closed:
                self.handler.half_closed()

    # What we send

    def send(self, message: bytes) -> None:
        """Send a message, now or when the windows allow."""
        connection = self.connection
        outbox = connection.outbox
        if self.handler is None:
            return
        if not self.responded:
            self.responded = True
            connection.out.append(
                frames.frame(frames.HEADERS, frames.END_HEADERS, self.id, field_blocks.RESPONSE)
            )
        length = len(message) + _PREFIX_BYTES
        if (
            self._queue is None
            and length <= outbox.initial_window + self.granted
            and length <= outbox.window
            and length <= outbox.max_frame_bytes
        ):
            self.granted -= length
            outbox.window -= length
            out = connection.out
            out.append(frames.pack_message_head(length << 8, 0, self.id, 0, len(message)))
            out.append(message)
            return
        if self._queue is None:
            self._queue = deque()
            self.stalled_since = connection.clock()
            outbox.blocked[self.id] = self
        self._queue.append(b"\0" + len(message).to_bytes(4) + message)
        self.queued += length
        self.pump()

    def pump(self, most_frames: int = 1 << 30) -> None:
        """Send so many frames of what is queued, as far as the windows allow."""
        outbox = self.connection.outbox
        queue = self._queue
        while queue and most_frames > 0:
            size = min(
                len(queue[0]) - self._offset,
                outbox.initial_window + self.granted,
                outbox.window,
                outbox.max_frame_bytes,
            )
            if size <= 0:
                break
            self._send_piece(queue, size)
            most_frames -= 1
        if queue:
            self._note_thirst()
        elif queue is not None:
            self._queue = None
            outbox.unblock(self)
            if self._trailers is not None:
                self._close(self._trailers)

    def _send_piece(self, queue: deque[bytes], size: int) -> None:
        connection = self.connection
        outbox = connection.outbox
        piece = queue[0][self._offset : self._offset + size]
        connection.out.append(frames.frame(frames.DATA, 0, self.id, piece))
        outbox.window -= size
        self.granted -= size
        self.queued -= size
        self._offset += size
        if self._offset == len(queue[0]):
            queue.popleft()
            self._offset = 0
        self.stalled_since = connection.clock()

    def _note_thirst(self) -> None:
        outbox = self.connection.outbox
        if outbox.initial_window + self.granted > 0:
            outbox.thirsty[self.id] = self
        else:
            outbox.thirsty.pop(self.id, None)

    def end(self, status: int, text: str = "") -> None:
        """End the call with a gRPC status, after what is queued."""
        if self.handler is None:
            return
        self.handler = None
        self._inbox = self._partial = None
        fields = field_blocks.trailers(status, text)
        if not self.responded:
            fields = field_blocks.RESPONSE + fields
        if self._queue is None:
            self._close(fields)
        else:
            self._trailers = fields

    def refuse(self, status: int, text: str) -> None:
        """End a call that nothing serves."""
        self._close(field_blocks.RESPONSE + field_blocks.trailers(status, text))

    def flush(self) -> None:
        """Write what was sent; only what is sent between two reads needs it."""
        self.connection.flush()

    def end_without_grpc(self, status: int) -> None:
        """Answer a request that is none of gRPC's with an HTTP status."""
        self._close(field_blocks.only_status(status))

    def _close(self, fields: bytes) -> None:
        flags = frames.END_HEADERS | frames.END_STREAM
        self.connection.out.append(frames.frame(frames.HEADERS, flags, self.id, fields))
        if not self.ending:
            # RFC 9113, section 8.1: the response is complete, the rest of the request not needed.
            self.connection.out.append(frames.rst_stream(self.id, ErrorCode.NO_ERROR))
        self.connection.forget(self)

    def cancel(self) -> None:
        """Tell what serves the call that it is over, and drop what was queued."""
        handler, self.handler = self.handler, None
        self._inbox = self._queue = self._partial = None
        self.queued = 0
        if handler is not None:
            handler.cancelled()
