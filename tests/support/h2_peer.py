"""A client of one connection, without sockets: what it sends, what it is told, what it broke."""

from collections.abc import Callable
from typing import Any

import hpack
from hyperframe.frame import DataFrame, Frame, GoAwayFrame, HeadersFrame, RstStreamFrame

from epp.extproc.h2.call import OK, Call, Handler
from epp.extproc.h2.connection import Connection
from epp.extproc.h2.frames import Violation
from epp.extproc.h2.limits import Limits
from support import h2_frames as f


class Echo:
    """Sends every message back, and ends with the peer; minds that it is not called after."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.messages: list[bytes] = []
        self.over = ""

    def message(self, data: bytes) -> None:
        assert not self.over
        self.messages.append(data)
        self.call.send(data)

    def half_closed(self) -> None:
        assert not self.over
        self.over = "ended"
        self.call.end(OK)

    def cancelled(self) -> None:
        assert not self.over
        self.over = "cancelled"


class Listener(Echo):
    """Takes notes and says nothing, until a test speaks through its call."""

    def message(self, data: bytes) -> None:
        assert not self.over
        self.messages.append(data)

    def half_closed(self) -> None:
        assert not self.over
        self.messages.append(b"<end>")


class Peer:
    """The client's side of a connection; its clock stands until a test moves it."""

    def __init__(
        self,
        *,
        serve: Callable[[Call], Handler | None] = Echo,
        greeted: bool = True,
        settings: dict[int, int] | None = None,
        **limits: Any,
    ) -> None:
        self.now = 1000.0
        self.handlers: dict[int, Any] = {}
        self.violations: list[Violation] = []
        self.told: list[Frame] = []
        self._serve = serve
        self.connection = Connection(
            self._accept,
            limits=Limits(**limits),
            clock=lambda: self.now,
            violated=self.violations.append,
            flush=self._flush,
        )
        if greeted:
            self.send(f.PREFACE, f.settings(settings))

    def _accept(self, call: Call) -> Handler | None:
        handler = self._serve(call)
        if handler is not None:
            self.handlers[call.id] = handler
        return handler

    def _flush(self) -> None:
        self.hear()

    def send(self, *wire: bytes) -> list[Frame]:
        """Send bytes; return the frames that answer them."""
        for piece in wire:
            self.connection.receive(piece)
        while self.connection.work():
            pass
        return self.hear()

    def hear(self) -> list[Frame]:
        """Return the frames that were not read yet."""
        frames = f.read(self.connection.take_output())
        self.told += frames
        return frames

    def goaways(self) -> list[tuple[int, int]]:
        """The last stream and the error code of each GOAWAY."""
        return [
            (one.last_stream_id, one.error_code)
            for one in self.told
            if isinstance(one, GoAwayFrame)
        ]

    def resets(self, stream: int) -> list[int]:
        """The error codes with which a stream was reset."""
        return [
            one.error_code
            for one in self.told
            if isinstance(one, RstStreamFrame) and one.stream_id == stream
        ]

    def body(self, stream: int) -> bytes:
        """All DATA of a stream."""
        return b"".join(
            one.data for one in self.told if isinstance(one, DataFrame) and one.stream_id == stream
        )

    def trailers(self, stream: int) -> dict[str, str]:
        """The fields with which a stream ended; none if it did not."""
        for one in self.told:
            if one.stream_id == stream and isinstance(one, HeadersFrame):
                fields = dict(hpack.Decoder().decode(one.data))
                if "END_STREAM" in one.flags:
                    return fields
        return {}

    def echoes(self, stream: int, text: bytes = b"still here") -> bool:
        """Send a last message on a stream; return whether it came back and all ended well."""
        self.send(f.data(stream, f.message(text), end=True))
        return self.body(stream) == f.message(text) and (
            self.trailers(stream).get("grpc-status") == "0"
        )
