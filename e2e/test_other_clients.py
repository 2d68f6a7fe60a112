"""
The two gateways that are no Envoy, played by a plain gRPC client with their own wire sequences.

agentgateway sends pseudo headers last and in `value`, pushes the body without waiting, and sorts
the replies by type. NGINX Gateway Fabric sends no pseudo headers, one whole body, half-closes, and
reads until the picker ends the stream; it looks at `raw_value` alone.
"""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from epp.extproc import messages
from epp.extproc.messages import SERVICE
from stack import MODEL, Picker
from support import wire

BODY = b'{"model":"%s","prompt":"hello"}' % MODEL.encode()
NGINX_HEADERS = {"content-type": "application/json", "host": "x", "x-epp-host": "picker"}


@contextlib.asynccontextmanager
async def process(picker: Picker) -> AsyncIterator[Any]:
    """A new TLS connection, as NGINX's shim opens one a request; any certificate is taken."""
    address = ("127.0.0.1", picker.ports.grpc)
    pem = await asyncio.to_thread(ssl.get_server_certificate, address)
    async with (
        asyncio.timeout(10),
        grpc.aio.secure_channel(
            f"{address[0]}:{address[1]}",
            grpc.ssl_channel_credentials(pem.encode()),
            [("grpc.ssl_target_name_override", "endpoint-picker")],
        ) as channel,
    ):
        yield channel.stream_stream(
            f"/{SERVICE}/Process",
            request_serializer=messages.ProcessingRequest.SerializeToString,
            response_deserializer=messages.ProcessingResponse.FromString,
        )()


async def until_the_end(call: Any) -> list[Any]:
    replies = []
    while (reply := await call.read()) is not grpc.aio.EOF:
        replies.append(reply)
    return replies


class TestNginx:
    async def test_the_headers_reply_carries_the_pick_and_the_stream_ends_with_ok(
        self, pickers: dict[bool, Picker]
    ) -> None:
        async with process(pickers[True]) as call:
            await call.write(wire.headers(NGINX_HEADERS, mode=None, field="value"))
            await call.write(wire.body(BODY))
            await call.done_writing()
            replies = await until_the_end(call)
            code = await call.code()

        assert wire.kinds(replies) == ["request_headers"]
        assert (wire.destination(replies[0]) or "").startswith("127.0.0.1:")
        assert code is grpc.StatusCode.OK
        await pickers[True].idle()

    @pytest.mark.parametrize("end", [True, False], ids=["ended", "open"])
    async def test_a_request_without_a_body_is_answered(
        self, pickers: dict[bool, Picker], end: bool
    ) -> None:
        async with process(pickers[True]) as call:
            await call.write(wire.headers(NGINX_HEADERS, mode=None, field="value", end=end))
            await call.done_writing()
            replies = await until_the_end(call)

        assert wire.kinds(replies) == ["request_headers"]
        assert wire.destination(replies[0])

    async def test_a_refusal_is_an_immediate_response_and_ok(
        self, refusing_pickers: dict[bool, Picker]
    ) -> None:
        async with process(refusing_pickers[True]) as call:
            await call.write(wire.headers(NGINX_HEADERS, mode=None, field="value"))
            await call.write(wire.body(BODY))
            await call.done_writing()
            replies = await until_the_end(call)
            code = await call.code()

        assert wire.kinds(replies) == ["immediate_response"]
        assert replies[0].immediate_response.status.code == 429
        assert code is grpc.StatusCode.OK


class TestAgentgateway:
    def head(self, *, end: bool = False) -> Any:
        message = wire.headers({"content-type": "application/json", "x-request-id": "r-1"}, end=end)
        method = "GET" if end else "POST"
        for key, value in {
            ":method": method,
            ":path": "/v1/completions",
            ":scheme": "http",
        }.items():
            message.request_headers.headers.headers.add(key=key, value=value)
        return message

    async def test_a_request_and_its_response_pass(self, pickers: dict[bool, Picker]) -> None:
        async with process(pickers[True]) as call:
            await call.write(self.head())
            await call.write(wire.body(BODY, end=False))
            await call.write(wire.body(b""))
            request_side = [await call.read(), await call.read()]
            chosen = wire.destination(request_side[0])
            await call.write(wire.response_headers(served=chosen))
            await call.write(wire.response_body(b'{"usage":', end=False))
            await call.write(wire.response_body(b"{}}", end=False))
            await call.write(wire.response_trailers())
            response_side = await until_the_end(call)

        assert wire.kinds(request_side) == ["request_headers", "request_body"]
        assert wire.streamed(request_side, "request_body") == (BODY, 1)
        assert wire.kinds(response_side) == [
            "response_headers",
            "response_body",
            "response_trailers",
        ]
        assert wire.streamed(response_side, "response_body") == (b'{"usage":{}}', 0)
        await pickers[True].idle()

    async def test_the_destination_is_one_address(self, pickers: dict[bool, Picker]) -> None:
        async with process(pickers[True]) as call:
            await call.write(self.head(end=True))
            reply = await call.read()
            await call.done_writing()

        assert "," not in (wire.destination(reply) or ",")
        await pickers[True].idle()
