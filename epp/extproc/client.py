"""
The other side of ext_proc: plays a gateway for one request and shows what the picker replies.

For `epp send`, and for trying a configuration without a gateway. The request side follows what
Envoy does in each body mode; "unconfigured" is a client that sends no protocol_config and no
pseudo headers, then half-closes.
"""

import asyncio
import base64
import ssl
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
import msgspec
from google.protobuf import json_format

from epp.extproc import messages
from epp.framework import ConfigError

PIECE_BYTES = 1 << 16

_MODES = {
    "full-duplex": messages.FULL_DUPLEX_STREAMED,
    "buffered": messages.BUFFERED,
    "streamed": messages.STREAMED,
    "none": messages.NONE,
}


@dataclass(frozen=True, slots=True)
class PlayedRequest:
    """A request to play; a body makes it a POST."""

    headers: Sequence[tuple[str, str]]
    body: bytes | None
    path: str
    mode: str


async def play(
    address: str, request: PlayedRequest, *, plaintext: bool, timeout_seconds: float
) -> AsyncIterator[str]:
    """
    Yield each reply as one line of JSON, headers and bodies decoded as text.

    Raises ConfigError where the picker cannot be reached, refuses, or is silent for too long.
    """
    try:
        async with (
            asyncio.timeout(timeout_seconds),
            await _channel(address, plaintext=plaintext) as channel,
        ):
            process = channel.stream_stream(
                f"/{messages.SERVICE}/Process",
                request_serializer=messages.ProcessingRequest.SerializeToString,
                response_deserializer=messages.ProcessingResponse.FromString,
            )
            async for reply in _converse(process(), request):
                yield readable(reply)
    except TimeoutError as error:
        message = f"{address}: no reply within {timeout_seconds:g} s"
        raise ConfigError(message) from error
    except grpc.aio.AioRpcError as error:
        message = f"{address}: {error.code().name}: {error.details()}"
        raise ConfigError(message) from error


async def _converse(call: Any, request: PlayedRequest) -> AsyncIterator[Any]:
    """Send what a gateway of that mode would, waiting for a reply where it would."""
    await call.write(_head(request))
    body = request.body
    if body is not None and request.mode in ("buffered", "streamed"):
        reply = await call.read()
        yield reply
        if reply is grpc.aio.EOF or reply.HasField("immediate_response"):
            return
    if body is not None and request.mode != "none":
        for start in range(0, max(len(body), 1), _piece(request)):
            piece = body[start : start + _piece(request)]
            last = start + _piece(request) >= len(body)
            await call.write(_body(piece, last=last))
    if request.mode == "unconfigured":
        await call.done_writing()
    async for reply in _replies(call, request):
        yield reply


def _piece(request: PlayedRequest) -> int:
    whole = request.mode in ("buffered", "unconfigured")
    return max(1, len(request.body or b"")) if whole else PIECE_BYTES


async def _replies(call: Any, request: PlayedRequest) -> AsyncIterator[Any]:
    """Read until the request phase is answered; the gateway would go on with the response."""
    while True:
        reply = await call.read()
        if reply is grpc.aio.EOF:
            return
        yield reply
        if reply.HasField("immediate_response") or _is_last(reply, request):
            await call.done_writing()


def _is_last(reply: Any, request: PlayedRequest) -> bool:
    if request.body is None or request.mode in ("none", "unconfigured"):
        return bool(reply.HasField("request_headers"))
    if request.mode == "full-duplex":
        streamed = reply.request_body.response.body_mutation.streamed_response
        return bool(reply.HasField("request_body") and streamed.end_of_stream)
    return bool(reply.HasField("request_body"))


def _head(request: PlayedRequest) -> Any:
    message = messages.ProcessingRequest()
    headers = message.request_headers
    headers.end_of_stream = request.body is None
    if request.mode != "unconfigured":
        message.protocol_config.request_body_mode = _MODES[request.mode]
        pseudo = {
            ":method": "GET" if request.body is None else "POST",
            ":path": request.path,
            ":scheme": "http",
            ":authority": "localhost",
        }
        for name, value in pseudo.items():
            headers.headers.headers.add(key=name, raw_value=value.encode())
    for name, value in request.headers:
        headers.headers.headers.add(key=name.lower(), raw_value=value.encode())
    return message


def _body(piece: bytes, *, last: bool) -> Any:
    message = messages.ProcessingRequest()
    message.request_body.body = piece
    message.request_body.end_of_stream = last
    return message


async def _channel(address: str, *, plaintext: bool) -> grpc.aio.Channel:
    if plaintext:
        return grpc.aio.insecure_channel(address)
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        message = f"{address!r} is not HOST:PORT"
        raise ConfigError(message)
    try:
        # Gateways take any certificate; gRPC can only be given the very one that is served.
        pem = await asyncio.to_thread(ssl.get_server_certificate, (host.strip("[]"), int(port)))
    except OSError as error:
        message = f"{address}: no TLS there ({error}); is it served with --secure-serving=false?"
        raise ConfigError(message) from error
    credentials = grpc.ssl_channel_credentials(pem.encode())
    options = [("grpc.ssl_target_name_override", "endpoint-picker")]
    return grpc.aio.secure_channel(address, credentials, options)


def readable(reply: Any) -> str:
    """Return a reply as JSON, with header values and bodies as text."""
    tree = json_format.MessageToDict(reply, preserving_proto_field_name=True)
    return msgspec.json.encode(_as_text(tree)).decode()


def _as_text(node: Any) -> Any:
    """Undo protobuf's base64 in the fields that hold bytes."""
    if isinstance(node, list):
        return [_as_text(item) for item in node]
    if not isinstance(node, dict):
        return node
    return {
        key: base64.b64decode(value).decode("utf-8", "replace")
        if key in ("raw_value", "body") and isinstance(value, str)
        else _as_text(value)
        for key, value in node.items()
    }
