"""
The services behind the lean door: ext_proc's Process, and gRPC's health.

Process is the stream boundary of this door, one of the places that contain any exception: its
client gets a 500 with a fixed text, the log a traceback. A decision is begun in the read that
brought its request, and becomes a task only if it has to wait for something.
"""

import asyncio
import types
from collections.abc import Callable, Coroutine, Generator
from typing import Any

import structlog

from epp.extproc import health, messages
from epp.extproc.door import Busy
from epp.extproc.exchange import Exchange, RequestReceived
from epp.extproc.h2 import call as grpc_status
from epp.extproc.h2.call import Call, Handler
from epp.extproc.health import Health
from epp.extproc.stream import Stream
from epp.framework import BadRequest, EPPError
from epp.observability.metrics import Metrics
from epp.requestcontrol.director import Director

PROCESS = f"/{messages.SERVICE}/Process"
_HEALTH = "/grpc.health.v1.Health/"

_log = structlog.get_logger("epp.extproc")


class Services:
    """Accepts calls: finds what serves each, or says that nothing does."""

    def __init__(
        self, director: Director, metrics: Metrics, health: Health, *, max_body_bytes: int
    ) -> None:
        self.director = director
        self.metrics = metrics
        self.health = health
        self.max_body_bytes = max_body_bytes
        self.busy = Busy()
        self.stopping = False
        """Whether streams that end from now on are cut by the picker itself."""

    def accept(self, call: Call) -> Handler | None:
        """Return what serves a call to any service."""
        if call.head.path == PROCESS and _is_grpc(call):
            return Processing(self, call)
        return self.accept_health(call)

    def accept_health(self, call: Call) -> Handler | None:
        """Return what serves a call to the health service."""
        head = call.head
        if not _is_grpc(call):
            call.end_without_grpc(405 if head.method != "POST" else 415)
        elif head.path == _HEALTH + "Watch":
            return HealthWatch(self.health, call)
        elif head.path in (_HEALTH + "Check", _HEALTH + "List"):
            return HealthQuestion(self.health, call)
        else:
            call.refuse(grpc_status.UNIMPLEMENTED, "the endpoint picker has no such method")
        return None


def _is_grpc(call: Call) -> bool:
    head = call.head
    return head.method == "POST" and head.content_type.startswith("application/grpc")


class Processing:
    """One Process call."""

    __slots__ = ("_begun", "_call", "_deadline", "_of", "_stream", "_task", "_timer")

    def __init__(self, services: Services, call: Call) -> None:
        self._of = services
        self._call = call
        self._stream = Stream(services.director, Exchange(max_body_bytes=services.max_body_bytes))
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._begun = False
        services.metrics.stream_opened()
        if call.head.timeout_seconds is not None:
            loop = asyncio.get_running_loop()
            self._deadline = loop.call_later(call.head.timeout_seconds, self._overdue)

    def message(self, data: bytes) -> None:
        """Give the stream a message, and send what it has to say to it."""
        if not self._begun:
            self._begun = True
            self._of.busy.add()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        stream = self._stream
        try:
            message = messages.ProcessingRequest.FromString(data)
            if stream.passes and (reply := stream.pass_on(message)) is not None:
                self._call.send(reply)
            else:
                self._go_on(stream.receive(message))
        except messages.DecodeError:
            self._stream.refuse(BadRequest("the gateway's message is not one of ext_proc"))
            self._end("INVALID_ARGUMENT", failed=False)
        except Exception:  # noqa: BLE001 - the stream boundary contains whatever is raised
            self._fail()

    def half_closed(self) -> None:
        """Let the stream say its last words."""
        try:
            self._go_on(self._stream.half_closed() if self._begun else None)
        except Exception:  # noqa: BLE001 - the stream boundary contains whatever is raised
            self._fail()

    def _nothing_came(self) -> None:
        self._timer = None
        try:
            self._go_on(self._stream.nothing_came())
        except Exception:  # noqa: BLE001 - the stream boundary contains whatever is raised
            self._fail()
        self._call.flush()

    def _go_on(self, request: RequestReceived | None) -> None:
        for reply in self._stream.take_replies():
            self._call.send(reply)
        if request is not None:
            deciding = self._stream.decide(request)
            try:
                awaited = deciding.send(None)
            except StopIteration:
                self._send()
            else:
                self._call.hold()
                loop = asyncio.get_running_loop()
                self._task = loop.create_task(_resumed(deciding, awaited), name="decision")
                self._task.add_done_callback(self._decided)
                return
        if self._stream.finished or (self._call.remote_closed and not self._call.waiting):
            self._end("OK", failed=False)
        elif (patience := self._stream.patience) is not None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(patience, self._nothing_came)

    def _decided(self, task: asyncio.Task[None]) -> None:
        """Send what came of a decision that had to wait."""
        if task.cancelled() or self._task is None:
            return
        self._task = None
        try:
            task.result()
            self._go_on(None)
        except Exception:  # noqa: BLE001 - the stream boundary contains whatever is raised
            self._fail()
        self._call.release()
        self._call.flush()

    def _send(self) -> None:
        send = self._call.send
        for reply in self._stream.take_replies():
            send(reply)

    def _fail(self) -> None:
        _log.exception("stream failed", request_id=self._stream.request_id)
        self._stream.refuse(EPPError("the endpoint picker failed; its log says why"))
        self._end("INTERNAL", failed=True)

    def _end(self, code: str, *, failed: bool) -> None:
        self._send()
        self._call.end(grpc_status.OK)
        self._finish(code, failed=failed)

    def _overdue(self) -> None:
        self._call.end(grpc_status.DEADLINE_EXCEEDED, "the call's grpc-timeout is over")
        self._finish("DEADLINE_EXCEEDED", failed=False)
        self._call.flush()

    def cancelled(self) -> None:
        """Give back what the request took."""
        self._finish("CANCELLED", failed=False)

    def _finish(self, code: str, *, failed: bool) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
        try:
            self._stream.finish(failed=failed, stopping=self._of.stopping)
        except Exception:  # noqa: BLE001 - the stream boundary contains whatever is raised
            _log.exception("stream failed", request_id=self._stream.request_id)
        if self._begun:
            self._begun = False
            self._of.busy.remove()
        self._of.metrics.stream_closed(code)


@types.coroutine
def _resumed(coroutine: Coroutine[Any, Any, None], awaited: Any) -> Generator[Any, Any, None]:
    """Go on, in a task, with a coroutine that was begun outside one and awaits this."""
    while True:
        act: Callable[[Any], Any] = coroutine.send
        try:
            value = yield awaited
        except BaseException as error:  # noqa: BLE001 - what the task is told, the coroutine is
            act, value = coroutine.throw, error
        try:
            awaited = act(value)
        except StopIteration:
            return


class HealthQuestion:
    """One call of Check or List: a message in, a message out."""

    __slots__ = ("_call", "_health")

    def __init__(self, state: Health, call: Call) -> None:
        self._health = state
        self._call = call

    def message(self, data: bytes) -> None:
        """Answer."""
        if self._call.head.path.endswith("List"):
            self._call.send(health.list_response(self._health.statuses))
            self._call.end(grpc_status.OK)
            return
        try:
            status = self._health.statuses.get(health.asked_service(data))
        except messages.DecodeError:
            self._call.end(grpc_status.INTERNAL, "the message is no HealthCheckRequest")
            return
        if status is None:
            self._call.end(grpc_status.NOT_FOUND, "unknown service")
        else:
            self._call.send(health.response(status))
            self._call.end(grpc_status.OK)

    def half_closed(self) -> None:
        """Say that a message was to come first."""
        self._call.end(grpc_status.INTERNAL, "the call ended without a message")

    def cancelled(self) -> None:
        """Nothing is to be given back."""


class HealthWatch:
    """One call of Watch: the status now, and after each change, until the peer leaves."""

    __slots__ = ("__weakref__", "_call", "_health", "_name", "_told")

    def __init__(self, state: Health, call: Call) -> None:
        self._health = state
        self._call = call
        self._name: str | None = None
        self._told: int | None = None

    def message(self, data: bytes) -> None:
        """Begin to tell of one name."""
        if self._name is not None:
            return
        try:
            self._name = health.asked_service(data)
        except messages.DecodeError:
            self._call.end(grpc_status.INTERNAL, "the message is no HealthCheckRequest")
            return
        self._health.watch(self._tell)
        self._tell()

    def _tell(self) -> None:
        assert self._name is not None  # watches only once it has a name
        status = self._health.statuses.get(self._name, health.SERVICE_UNKNOWN)
        if status != self._told:
            self._told = status
            self._call.send(health.response(status))
            self._call.flush()

    def half_closed(self) -> None:
        """A gRPC client closes its side after its one message, and goes on listening."""
        if self._name is None:
            self._call.end(grpc_status.INTERNAL, "the call ended without a message")

    def cancelled(self) -> None:
        """Tell no more."""
        self._health.unwatch(self._tell)
