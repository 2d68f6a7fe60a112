"""The whole picker in this process, spoken to over real gRPC connections."""

import asyncio
import contextlib
import io
import json
import ssl
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme

from epp.app import TRANSPORTS, App, Options, running
from epp.extproc import messages
from epp.extproc.messages import SERVICE
from epp.framework import ConfigError
from epp.observability import logs
from support import wire
from support.doors import TRANSPORT

pytestmark = [
    pytest.mark.looptime(False),  # noqa: FBT003 - real sockets need real time
    pytest.mark.timeout(30),
]

ENDPOINTS = "endpoints: [{name: a, address: 127.0.0.1, port: 1}]\n"


@pytest.fixture(autouse=True, params=TRANSPORTS)
def transport(request: pytest.FixtureRequest) -> Iterator[str]:
    """Every test runs through both doors."""
    token = TRANSPORT.set(request.param)
    yield request.param
    TRANSPORT.reset(token)


def options(tmp_path: Path, **changes: Any) -> Options:
    endpoints = tmp_path / "endpoints.yaml"
    endpoints.write_text(ENDPOINTS)
    given: dict[str, Any] = {
        "transport": TRANSPORT.get(),
        "bind_address": "127.0.0.1",
        "grpc_port": 0,
        "grpc_health_port": 0,
        "metrics_port": 0,
        "endpoints_file": endpoints,
        "secure_serving": False,
        "drain_timeout": 1.0,
    }
    return Options(**(given | changes))


@contextlib.asynccontextmanager
async def stream(port: int) -> AsyncIterator[Any]:
    unlimited = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}", unlimited) as channel:
        yield channel.stream_stream(
            f"/{SERVICE}/Process",
            request_serializer=messages.ProcessingRequest.SerializeToString,
            response_deserializer=messages.ProcessingResponse.FromString,
        )()


def ports(app: App) -> Any:
    assert app.ports is not None
    return app.ports


BIG = json.dumps({"model": "m", "prompt": "0123456789abcdef" * 1_310_720}).encode()


async def test_twenty_megabytes_pass_in_one_buffered_message(tmp_path: Path) -> None:
    async with running(options(tmp_path)) as app, stream(ports(app).grpc) as call:
        await call.write(wire.headers(mode=messages.BUFFERED))
        first = await call.read()
        await call.write(wire.body(BIG))
        second = await call.read()

    assert wire.kinds([first, second]) == ["request_headers", "request_body"]
    assert wire.destination(second) == "127.0.0.1:1"


async def test_twenty_megabytes_pass_full_duplex_byte_for_byte(tmp_path: Path) -> None:
    async with running(options(tmp_path)) as app, stream(ports(app).grpc) as call:
        await call.write(wire.headers())
        for start in range(0, len(BIG), 1 << 20):
            await call.write(wire.body(BIG[start : start + (1 << 20)], end=False))
        await call.write(wire.body(b""))
        replies = [await call.read()]
        while not wire.streamed(replies[-1:], "request_body")[1]:
            replies.append(await call.read())

    assert wire.streamed(replies, "request_body") == (BIG, 1)


async def test_beyond_the_limit_is_a_413_and_not_an_error_of_grpc(tmp_path: Path) -> None:
    limit = options(tmp_path, max_request_bytes=1 << 20)
    async with running(limit) as app, stream(ports(app).grpc) as call:
        await call.write(wire.headers(mode=messages.BUFFERED))
        await call.read()
        await call.write(wire.body(BIG))
        reply = await call.read()

    assert reply.immediate_response.status.code == 413


async def test_tls_is_the_default_and_offers_h2(tmp_path: Path) -> None:
    async with running(options(tmp_path, secure_serving=True)) as app:
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        context.set_alpn_protocols(["h2", "http/1.1"])
        _, writer = await asyncio.open_connection("127.0.0.1", ports(app).grpc, ssl=context)
        chosen = writer.get_extra_info("ssl_object").selected_alpn_protocol()
        writer.close()
        async with stream(ports(app).grpc) as call:
            refused = await call.code()

    assert chosen == "h2"
    assert refused is grpc.StatusCode.UNAVAILABLE


async def test_a_certificate_of_the_users_is_served(tmp_path: Path) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert("picker.example.net")
    issued.private_key_pem.write_to_path(tmp_path / "tls.key")
    issued.cert_chain_pems[0].write_to_path(tmp_path / "tls.crt")

    async with running(options(tmp_path, secure_serving=True, cert_path=tmp_path)) as app:
        context = ssl.create_default_context()
        authority.configure_trust(context)
        _, writer = await asyncio.open_connection(
            "127.0.0.1", ports(app).grpc, ssl=context, server_hostname="picker.example.net"
        )
        subject = writer.get_extra_info("peercert")["subjectAltName"]
        writer.close()

    assert subject == (("DNS", "picker.example.net"),)


@pytest.mark.parametrize("broken", ["missing", "rubbish", "strangers"])
def test_a_certificate_that_cannot_be_used_is_refused_at_start(tmp_path: Path, broken: str) -> None:
    pair = [trustme.CA().issue_cert("x.example.net") for _ in range(2)]
    if broken != "missing":
        pair[0].private_key_pem.write_to_path(tmp_path / "tls.key")
        pair[1].cert_chain_pems[0].write_to_path(tmp_path / "tls.crt")
    if broken == "rubbish":
        (tmp_path / "tls.crt").write_text("rubbish")

    with pytest.raises(ConfigError, match="--cert-path"):
        App(options(tmp_path, secure_serving=True, cert_path=tmp_path))


async def test_a_port_that_is_taken_is_refused_at_start(tmp_path: Path) -> None:
    async with running(options(tmp_path)) as app:
        for name in ("grpc_port", "grpc_health_port", "metrics_port"):
            other = App(options(tmp_path, **{name: ports(app).grpc}))

            with pytest.raises(ConfigError, match=str(ports(app).grpc)):
                await other.run()


async def test_an_endpoints_file_that_is_broken_at_first_ends_the_start(tmp_path: Path) -> None:
    given = options(tmp_path)
    assert given.endpoints_file is not None
    given.endpoints_file.write_text("endpoints: [{name: a}]")
    app = App(given)

    with pytest.raises(ExceptionGroup) as raised:
        await app.run()

    assert raised.group_contains(ConfigError, match="endpoints")


async def test_nothing_of_a_request_is_logged(tmp_path: Path) -> None:
    written = io.BytesIO()
    log = logs.configure(verbosity=10, stream=written)
    secret = {"authorization": "Bearer CANARY-1", "cookie": "CANARY-2"}
    head = wire.POST | secret | {":path": "/v1/completions?key=CANARY-3"}
    bodies = [
        b'{"model":"m","prompt":"CANARY-4"}',
        b'{"model":"m","prompt":"CANARY-5',
        b'{"model":"m","prompt":{"CANARY-6":1}}',
        b'{"model":["CANARY-7"],"prompt":"x"}',
    ]
    app = App(options(tmp_path), log=log)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(app.run())
        await app.ready.wait()
        for body in bodies:
            async with stream(ports(app).grpc) as call:
                await call.write(wire.headers(head))
                await call.write(wire.body(body))
                await call.read()
        app.stop()
        await task

    lines = [json.loads(line) for line in written.getvalue().splitlines()]
    assert len([line for line in lines if line["event"] == "request"]) == len(bodies)
    assert b"CANARY" not in written.getvalue()


async def test_an_unexpected_failure_is_a_500_with_a_fixed_text(tmp_path: Path) -> None:
    async with running(options(tmp_path)) as app, stream(ports(app).grpc) as call:

        async def fail(_: object) -> None:
            raise RuntimeError("CANARY")

        app.director.handle_request = fail  # type: ignore[assignment, method-assign]
        await call.write(wire.headers())
        await call.write(wire.body())
        reply = await call.read()

    assert reply.immediate_response.status.code == 500
    assert b"CANARY" not in reply.SerializeToString()


@pytest.mark.parametrize(
    "rubbish",
    [b"\xff", b"\x12\x80", b"\x12\x06\x0a\x04\x0a\x02\x0a\x00\xff\xff", b"GET / HTTP/1.1"],
)
async def test_a_message_that_is_none_is_refused_and_the_next_stream_is_served(
    tmp_path: Path, rubbish: bytes
) -> None:
    written = io.BytesIO()
    app = App(options(tmp_path), log=logs.configure(verbosity=2, stream=written))
    async with asyncio.TaskGroup() as group:
        task = group.create_task(app.run())
        await app.ready.wait()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{ports(app).grpc}") as channel:
            call = channel.stream_stream(f"/{SERVICE}/Process")()
            await call.write(rubbish)
            reply = messages.ProcessingResponse.FromString(await call.read())
        async with stream(ports(app).grpc) as call:
            await call.write(wire.headers(end=True))
            good = await call.read()
        app.stop()
        await task

    assert reply.immediate_response.status.code == 400
    assert wire.destination(good) == "127.0.0.1:1"
    assert b'"level":"error"' not in written.getvalue()
