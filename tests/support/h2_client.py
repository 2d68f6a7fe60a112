"""
The `h2` library as the client of a connection: strict about every frame, and at the test's pace.

Bytes of either direction wait until the test lets some of them arrive, so that any of the client's
acts may cross any of ours.
"""

from dataclasses import dataclass, field

from h2 import events
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.settings import SettingCodes

from epp.extproc.h2.call import Call, Handler
from epp.extproc.h2.connection import Connection
from epp.extproc.h2.frames import Violation
from epp.extproc.h2.limits import Limits
from support import h2_frames as f
from support.h2_peer import Echo

LIMITS = {
    "stream_window_bytes": 70_000,
    "connection_window_bytes": 90_000,
    "max_queued_bytes": 1_000,
}


@dataclass
class Talk:
    """One stream as the client sees it."""

    sent: bytearray = field(default_factory=bytearray)
    """What is to come back."""
    waiting: bytearray = field(default_factory=bytearray)
    """What the windows did not let out yet."""
    heard: bytearray = field(default_factory=bytearray)
    closing: str = ""
    """How the client ends its side once nothing waits: by `data` or by `trailers`."""
    closed: bool = False
    reset: bool = False
    status: str | None = None
    ended: bool = False


class Client:
    """A client with many streams."""

    def __init__(self, slice_seconds: float) -> None:
        self.h2 = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
        self.violations: list[Violation] = []
        self.talks: dict[int, Talk] = {}
        self.handlers: dict[int, Echo] = {}
        self.limits = Limits(**LIMITS, slice_seconds=slice_seconds)
        self._now = 0.0
        self.connection = Connection(
            self._accept,
            limits=self.limits,
            clock=self._clock,
            violated=self.violations.append,
        )
        self.to_server = bytearray()
        self.to_client = bytearray()
        self.h2.initiate_connection()
        self._unacknowledged = True
        self.settle()

    def _clock(self) -> float:
        self._now += 1.0
        return self._now

    def _accept(self, call: Call) -> Handler:
        self.handlers[call.id] = Echo(call)
        return self.handlers[call.id]

    # Acts

    def open(self, filler: int) -> None:
        stream = self.h2.get_next_available_stream_id()
        self.talks[stream] = Talk()
        self.h2.send_headers(stream, [*f.fields(), ("x-filler", "a" * filler)])

    def say(self, stream: int, size: int) -> None:
        """Send a message, as far as the windows allow."""
        talk = self.talks[stream]
        if talk.closing or talk.reset:
            return
        content = f.message(bytes(((stream + len(talk.sent)) % 251,)) * size)
        talk.sent += content
        talk.waiting += content
        self.push(stream)

    def push(self, stream: int, padding: int = 0) -> None:
        """Send what waits; every second frame is padded."""
        talk = self.talks[stream]
        if talk.closed or talk.reset:
            return
        while talk.waiting:
            room = self.h2.local_flow_control_window(stream)
            size = min(len(talk.waiting), self.h2.max_outbound_frame_size, room) - padding
            if size <= 0:
                return
            padded = padding - 1 if padding else None
            self.h2.send_data(stream, bytes(talk.waiting[:size]), pad_length=padded)
            del talk.waiting[:size]
            padding = 0 if padding else 8
        if talk.closing:
            talk.closed = True
            if talk.closing == "data":
                self.h2.end_stream(stream)
            else:
                self.h2.send_headers(stream, [("x-sum", "a" * 30_000)], end_stream=True)

    def close(self, stream: int, how: str) -> None:
        talk = self.talks[stream]
        talk.closing = talk.closing or how
        self.push(stream)

    def reset(self, stream: int) -> None:
        talk = self.talks[stream]
        if not talk.reset and not talk.ended:
            talk.reset = True
            self.h2.reset_stream(stream, 8)

    def widen(self, stream: int, increment: int) -> None:
        """Let us send more on a stream."""
        talk = self.talks[stream]
        if not talk.reset and not talk.ended:
            self.h2.increment_flow_control_window(increment, stream)

    def widen_connection(self, increment: int) -> None:
        if self.h2.inbound_flow_control_window < 1 << 20:
            self.h2.increment_flow_control_window(increment)

    def set(self, name: int, value: int) -> None:
        """Change a setting, one after the other: h2 takes any acknowledgement for all of them."""
        if self._unacknowledged:
            return
        self._unacknowledged = True
        self.h2.update_settings({SettingCodes(name): value})

    # Bytes under way

    def deliver(self, size: int) -> None:
        """Let bytes arrive at our side, and have it work for one slice."""
        self.to_server += self.h2.data_to_send()
        if self.to_server:
            self.connection.receive(bytes(self.to_server[:size]))
            del self.to_server[:size]
        self.work()

    def work(self) -> bool:
        more = self.connection.work()
        self.to_client += self.connection.take_output()
        return more

    def hear(self, size: int) -> None:
        """Let bytes arrive at the client."""
        # h2 looks up its MAX_FRAME_SIZE once a piece: an acknowledgement has to be a piece's end.
        ack = self.to_client.find(f.raw(f.SETTINGS, f.ACK, 0))
        if 0 <= ack < size:
            self._hear(ack + 9)
            size = max(0, size - ack - 9)
        self._hear(size)

    def _hear(self, size: int) -> None:
        for event in self.h2.receive_data(bytes(self.to_client[:size])):
            self._note(event)
        del self.to_client[:size]

    def _note(self, event: events.Event) -> None:
        assert not isinstance(event, events.ConnectionTerminated)
        if isinstance(event, events.DataReceived):
            self.talks[event.stream_id].heard += event.data
        elif isinstance(event, events.TrailersReceived):
            self.talks[event.stream_id].status = dict(event.headers)["grpc-status"]
        elif isinstance(event, events.ResponseReceived):
            self.talks[event.stream_id].status = dict(event.headers).get("grpc-status")
        elif isinstance(event, events.StreamEnded):
            self.talks[event.stream_id].ended = True
        elif isinstance(event, events.SettingsAcknowledged):
            self._unacknowledged = False
        elif isinstance(event, events.StreamReset):
            assert not event.remote_reset

    def settle(self) -> None:
        """Let everything arrive that is under way."""
        for _ in range(10_000):
            self.deliver(1 << 20)
            while self.work():
                pass
            self.hear(1 << 20)
            for stream in self.talks:
                self.push(stream)
            self.to_server += self.h2.data_to_send()
            if not self.to_server and not self.to_client:
                return
        raise AssertionError("the two never stop talking")

    def finish(self) -> None:
        """End every stream, and let everything out."""
        self.settle()
        self.set(SettingCodes.INITIAL_WINDOW_SIZE, 65_535)
        for stream in self.talks:
            self.close(stream, "data")
            self.handlers_release(stream)
        for _ in range(1_000):
            self.settle()
            open_talks = [
                stream for stream, talk in self.talks.items() if not talk.ended and not talk.reset
            ]
            if not open_talks:
                return
            self.widen_connection(50_000)
            for stream in open_talks:
                self.handlers_release(stream)
                if self.h2.streams[stream].inbound_flow_control_window < 50_000:
                    self.widen(stream, 50_000)
        raise AssertionError("a stream never ends")

    def handlers_release(self, stream: int) -> None:
        handler = self.handlers.get(stream)
        if handler is not None:
            handler.call.release()
