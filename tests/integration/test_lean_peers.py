"""
The lean door's real clients: both of grpcio's, against a whole picker in this process.
"""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme
from grpc_health.v1 import health_pb2, health_pb2_grpc

from epp.app import App, Options, running
from epp.extproc import messages
from epp.extproc.certificates import Certificate
from epp.extproc.messages import SERVICE, ProcessingRequest, ProcessingResponse
from support import h2_frames as f
from support import wire
from support.lean import call, opened, peer, sent
from support.simulated import until

pytestmark = [
    pytest.mark.looptime(False),  # noqa: FBT003 - real sockets need real time
    pytest.mark.timeout(30),
]

PROCESS = f"/{SERVICE}/Process"
ANY_STREAM = (1 << 31) - 1
SERVING = health_pb2.HealthCheckResponse.SERVING
Answer = tuple[list[ProcessingResponse], grpc.StatusCode]
Client = Callable[..., Awaitable[Answer]]


def started(channel: Any, method: str = PROCESS, **more: Any) -> Any:
    return channel.stream_stream(
        method,
        request_serializer=ProcessingRequest.SerializeToString,
        response_deserializer=ProcessingResponse.FromString,
    )(**more)


async def asynchronous(
    port: int, sent: Sequence[ProcessingRequest], *, method: str = PROCESS, **more: Any
) -> Answer:
    """Send messages through grpc.aio, half-close, and return what came and the status."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", **more) as channel:
        call = started(channel, method, request_iterator=sent)
        replies = []
        with contextlib.suppress(grpc.aio.AioRpcError):
            replies = [reply async for reply in call]
        return replies, await call.code()


async def synchronous(
    port: int, sent: Sequence[ProcessingRequest], *, method: str = PROCESS, **more: Any
) -> Answer:
    """Do the same through grpcio's other half, in a thread."""

    def ask() -> Answer:
        replies = []
        with grpc.insecure_channel(f"127.0.0.1:{port}", **more) as channel:
            call = started(channel, method, request_iterator=iter(sent))
            with contextlib.suppress(grpc.RpcError):
                replies.extend(call)
            return replies, call.code()

    return await asyncio.to_thread(ask)


@pytest.fixture(params=[asynchronous, synchronous], ids=["grpc.aio", "grpc"])
def client(request: pytest.FixtureRequest) -> Client:
    given: Client = request.param
    return given


@contextlib.asynccontextmanager
async def picker(tmp_path: Path, **changes: Any) -> AsyncIterator[tuple[App, int]]:
    """A whole picker with the lean door, and its ext_proc port."""
    endpoints = tmp_path / "endpoints.yaml"
    endpoints.write_text("endpoints: [{name: a, address: 127.0.0.1, port: 1}]\n")
    given: dict[str, Any] = {
        "transport": "lean",
        "bind_address": "127.0.0.1",
        "grpc_port": 0,
        "grpc_health_port": 0,
        "metrics_port": 0,
        "endpoints_file": endpoints,
        "secure_serving": False,
        "drain_timeout": 10.0,
    }
    async with running(Options(**(given | changes))) as app:
        assert app.ports is not None
        yield app, app.ports.grpc


def count(app: App, name: str, **labels: str) -> float:
    return app.metrics.registry.get_sample_value(name, labels) or 0.0


async def until_idle(app: App) -> None:
    """Wait until no stream is open and nothing is in flight."""
    endpoints = app.datastore.endpoints
    await until(
        lambda: (
            not count(app, "epp_streams_open")
            and not any(one.load.in_flight for one in endpoints())
        )
    )


def request(mode: int, prompt: str = "hello") -> list[ProcessingRequest]:
    body = b'{"model":"m","prompt":"%s"}' % prompt.encode()
    return [wire.headers(mode=mode), wire.body(body)]


class TestARequest:
    async def test_is_answered_in_full_duplex(self, tmp_path: Path, client: Client) -> None:
        prompt = "x" * 200_000
        async with picker(tmp_path) as (app, port):
            replies, code = await client(port, request(messages.FULL_DUPLEX_STREAMED, prompt))
            await until_idle(app)

        assert code is grpc.StatusCode.OK
        assert wire.destination(replies[0]) == "127.0.0.1:1"
        assert wire.streamed(replies, "request_body") == (
            b'{"model":"m","prompt":"%s"}' % prompt.encode(),
            1,
        )

    async def test_is_answered_buffered(self, tmp_path: Path, client: Client) -> None:
        async with picker(tmp_path) as (app, port):
            replies, code = await client(port, request(messages.BUFFERED))
            await until_idle(app)

        assert code is grpc.StatusCode.OK
        assert wire.kinds(replies) == ["request_headers", "request_body"]
        assert wire.destination(replies[1]) == "127.0.0.1:1"

    async def test_is_one_of_many(self, tmp_path: Path) -> None:
        asked = [request(mode) for mode in (messages.BUFFERED, messages.FULL_DUPLEX_STREAMED)] * 100
        async with (
            picker(tmp_path) as (app, port),
            grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
        ):

            async def over_one_connection(sent: list[ProcessingRequest]) -> Answer:
                call = started(channel, request_iterator=sent)
                return [reply async for reply in call], await call.code()

            answers = await asyncio.gather(
                *[over_one_connection(sent) for sent in asked],
                *[synchronous(port, sent) for sent in asked[:10]],
            )
            await until_idle(app)

        assert {code for _, code in answers} == {grpc.StatusCode.OK}
        assert [wire.kinds(replies) for replies, _ in answers] == (
            [["request_headers", "request_body"]] * 210
        )


class TestACall:
    async def test_that_its_client_cancels_gives_its_request_back(self, tmp_path: Path) -> None:
        async with (
            picker(tmp_path) as (app, port),
            grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
        ):
            call = started(channel)
            for message in request(messages.BUFFERED):
                await call.write(message)
                await call.read()
            in_flight = app.datastore.endpoints()[0].load.in_flight
            call.cancel()
            await until_idle(app)

            assert in_flight == 1
            assert count(app, "epp_streams_total", code="CANCELLED") == 1

    async def test_that_a_thread_cancels_gives_its_request_back(self, tmp_path: Path) -> None:
        def ask_and_leave(port: int) -> str:
            with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
                call = started(channel, request_iterator=iter([wire.headers(end=True)]))
                destination = wire.destination(next(call))
                call.cancel()
                return destination or ""

        async with picker(tmp_path) as (app, port):
            destination = await asyncio.to_thread(ask_and_leave, port)
            await until_idle(app)

        assert destination == "127.0.0.1:1"

    async def test_beyond_its_deadline_is_over(self, tmp_path: Path) -> None:
        async def one_and_no_end() -> AsyncIterator[ProcessingRequest]:
            yield wire.headers(end=True)
            await asyncio.Event().wait()

        async with (
            picker(tmp_path) as (app, port),
            grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
        ):
            call = started(channel, request_iterator=one_and_no_end(), timeout=0.05)
            code = await call.code()
            await until_idle(app)

        assert code is grpc.StatusCode.DEADLINE_EXCEEDED

    async def test_is_told_of_its_deadline_by_the_door_too(self) -> None:
        late = f.headers(1, f.fields({":path": PROCESS, "grpc-timeout": "1m"}))
        async with opened() as door, peer(door.port) as one:
            await one.send(late)
            await one.hear(lambda _: one.trailers(1))
            await door.until_idle(connections=1)

            assert one.trailers(1)["grpc-status"] == "4"

    async def test_of_a_method_that_nobody_has_is_unimplemented(
        self, tmp_path: Path, client: Client
    ) -> None:
        async with picker(tmp_path) as (_, port):
            # grpc.aio makes an INTERNAL of a call that ends while it still writes, at any server.
            replies, code = await client(port, [], method=f"/{SERVICE}/Nothing")

        assert (replies, code) == ([], grpc.StatusCode.UNIMPLEMENTED)

    async def test_with_a_compressed_message_is_unimplemented(
        self, tmp_path: Path, client: Client
    ) -> None:
        sent = request(messages.FULL_DUPLEX_STREAMED, "x" * 10_000)
        async with picker(tmp_path) as (app, port):
            _, code = await client(port, sent, compression=grpc.Compression.Gzip)
            again = await client(port, sent)
            await until_idle(app)

        assert code is grpc.StatusCode.UNIMPLEMENTED
        assert again[1] is grpc.StatusCode.OK

    async def test_with_too_large_a_message_has_exhausted_its_resources(
        self, client: Client
    ) -> None:
        async with opened(max_message_bytes=100_000) as door:
            _, code = await client(door.port, request(messages.BUFFERED, "x" * 100_000))
            await door.until_idle()

        assert code is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_health_is_told_to_a_client_of_threads(tmp_path: Path) -> None:
    def ask(port: int) -> tuple[int, int, set[str]]:
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            asked = health_pb2.HealthCheckRequest(service=SERVICE)
            watch = stub.Watch(asked)
            watched = next(watch).status
            watch.cancel()
            listed = stub.List(health_pb2.HealthListRequest()).statuses
            return stub.Check(asked).status, watched, set(listed)

    async with picker(tmp_path) as (app, port):
        assert app.ports is not None
        told = [await asyncio.to_thread(ask, one) for one in (port, app.ports.health)]

    assert told == [(SERVING, SERVING, {"", "liveness", "readiness", SERVICE})] * 2


def issued(authority: trustme.CA, folder: Path, name: str) -> None:
    one = authority.issue_cert(name)
    one.private_key_pem.write_to_path(folder / "tls.key")
    one.cert_chain_pems[0].write_to_path(folder / "tls.crt")


def trusting(authority: trustme.CA, *protocols: str) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    context.check_hostname = False
    context.set_alpn_protocols(list(protocols))
    return context


class TestTLS:
    async def test_grpc_finds_h2_by_alpn(self, tmp_path: Path) -> None:
        authority = trustme.CA()
        issued(authority, tmp_path, "picker.example.net")
        trust = grpc.ssl_channel_credentials(authority.cert_pem.bytes())
        name = [("grpc.ssl_target_name_override", "picker.example.net")]
        async with (
            picker(tmp_path, secure_serving=True, cert_path=tmp_path) as (app, port),
            grpc.aio.secure_channel(f"127.0.0.1:{port}", trust, name) as channel,
        ):
            call = started(channel, request_iterator=request(messages.FULL_DUPLEX_STREAMED))
            replies = [reply async for reply in call]
            await until_idle(app)

        assert wire.kinds(replies) == ["request_headers", "request_body"]

    async def test_a_new_certificate_is_for_new_connections(self, tmp_path: Path) -> None:
        authority = trustme.CA()
        issued(authority, tmp_path, "first.example.net")
        certificate = await asyncio.to_thread(Certificate, tmp_path)
        context = trusting(authority, "h2")

        async def connect(port: int) -> tuple[str, asyncio.StreamReader, asyncio.StreamWriter]:
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
            ((_, name),) = writer.get_extra_info("peercert")["subjectAltName"]
            return name, reader, writer

        async def is_served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
            check = call(1, "/grpc.health.v1.Health/Check")
            writer.write(f.PREFACE + f.settings() + check + f.data(1, f.message(b""), end=True))
            return b"grpc-status" in await reader.readuntil(b"grpc-status")

        async with opened(certificate=certificate, look_seconds=0.01) as door:
            first, reader, writer = await connect(door.port)
            issued(authority, tmp_path, "second.example.net")
            name = first
            while name == first:
                name, _, other = await connect(door.port)
                other.close()

            assert (first, name) == ("first.example.net", "second.example.net")
            assert await is_served(reader, writer)
            writer.close()


class TestADrain:
    async def test_asks_twice_finishes_what_runs_and_closes_what_is_idle(self) -> None:
        async with opened() as door, peer(door.port) as busy, peer(door.port) as idle:
            await busy.send(call(1), sent(1, *request(messages.FULL_DUPLEX_STREAMED)))
            await busy.hear(lambda _: busy.replies(1))
            await idle.hear(lambda _: idle.frames)
            drain = asyncio.create_task(door.door.drain(10))
            for one in (busy, idle):
                await one.hear(lambda one: one.pings())
                await one.send(f.ping(one.pings()[-1], ack=True))
            last_of_idle = await idle.until_closed()
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection("127.0.0.1", door.port)
            await busy.send(call(3))  # beyond the last that is served: nobody hears it
            await busy.send(sent(1, wire.response_headers(end=True)))
            last_of_busy = await busy.until_closed()
            await drain
            await door.until_idle()

        assert last_of_idle == [(ANY_STREAM, 0), (0, 0)]
        assert last_of_busy == [(ANY_STREAM, 0), (1, 0)]
        assert wire.kinds(busy.replies(1))[-1] == "response_headers"
        assert busy.trailers(1)["grpc-status"] == "0"
        assert not busy.trailers(3)

    async def test_serves_what_crosses_its_first_word(self) -> None:
        async with opened() as door, peer(door.port) as one:
            await one.hear(lambda _: one.frames)
            drain = asyncio.create_task(door.door.drain(10))
            await one.hear(lambda _: one.goaways())

            assert await one.is_served(1)
            await one.send(f.ping(one.pings()[-1], ack=True))
            assert (await one.until_closed())[-1] == (1, 0)
            await drain

    async def test_does_not_wait_for_an_answer_to_its_first_word(self) -> None:
        async with opened(goaway_seconds=0.01) as door, peer(door.port) as one:
            await one.hear(lambda _: one.frames)
            drain = asyncio.create_task(door.door.drain(10))
            goaways = await one.until_closed()
            await drain

        assert goaways == [(ANY_STREAM, 0), (0, 0)]

    async def test_lets_a_call_of_grpc_finish_and_takes_no_other(self, tmp_path: Path) -> None:
        async with (
            picker(tmp_path) as (app, port),
            grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
        ):
            running_call = started(channel)
            for message in request(messages.BUFFERED):
                await running_call.write(message)
                await running_call.read()
            app.stop()
            (connection,) = [one._connection for one in app.door.connections if one.drains]
            await until(lambda: connection._refusing)
            late = started(channel, request_iterator=[wire.headers(end=True)])
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await late.read()
            await running_call.write(wire.response_headers(end=True))
            reply = await running_call.read()
            code = await running_call.code()

        assert wire.kinds([reply]) == ["response_headers"]
        assert code is grpc.StatusCode.OK
        assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
