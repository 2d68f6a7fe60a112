"""
Messages of ext_proc v3: what is read of a ProcessingRequest, and every reply as serialised bytes.

The one module that knows Envoy's messages field by field. Replies are bytes, so that constant ones
are serialised once, and a pick is serialised once per destination. Where a reply has more to say
than its constant part, the two serialisations are concatenated: protobuf merges submessages and
appends repeated fields when it reads the same field twice (protobuf encoding, "Last One Wins").
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec
from envoy.config.core.v3 import base_pb2
from envoy.extensions.filters.http.ext_proc.v3 import processing_mode_pb2
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb
from envoy.type.v3 import http_status_pb2
from google.protobuf import message as protobuf
from google.protobuf import struct_pb2

from epp.framework import EPPError, Rejected, Unavailable
from epp.requestcontrol import protocol

SERVICE = "envoy.service.ext_proc.v3.ExternalProcessor"

ProcessingRequest = pb.ProcessingRequest
DecodeError = protobuf.DecodeError
ProcessingResponse = pb.ProcessingResponse

_mode = processing_mode_pb2.ProcessingMode
NONE: int = _mode.NONE
STREAMED: int = _mode.STREAMED
BUFFERED: int = _mode.BUFFERED
BUFFERED_PARTIAL: int = _mode.BUFFERED_PARTIAL
FULL_DUPLEX_STREAMED: int = _mode.FULL_DUPLEX_STREAMED

MAX_PIECE_BYTES = 62_000
"""Envoy refuses a body reply over 64 KiB with its framing; the field cuts at this size too."""

RETRY_AFTER_SECONDS = 1


def headers_of(message: Any) -> dict[str, str]:
    """
    Return the headers of a HttpHeaders message, names in lower case, the last of equal names.

    Envoy fills `raw_value`, other gateways `value`; bytes that are not UTF-8 become U+FFFD.
    """
    return {
        header.key.lower(): header.raw_value.decode("utf-8", "replace") or header.value
        for header in message.headers.headers
    }


def subset_hint(message: Any) -> tuple[str, ...] | None:
    """
    Return the gateway's subset in a message's metadata; None where the message has none.

    A list of strings or one comma-separated string. Anything else allows nothing: the hint is a
    constraint, so what cannot be read fails closed.
    """
    value = _metadata(message, protocol.SUBSET_NAMESPACE, protocol.SUBSET)
    if value is None:
        return None
    if value.HasField("list_value"):
        texts = [item.string_value for item in value.list_value.values]
    else:
        texts = [value.string_value]
    entries = (entry.strip() for text in texts for entry in text.split(","))
    return tuple(entry for entry in entries if entry)


def served_endpoint(message: Any) -> str | None:
    """Return the endpoint that the gateway says has served, where it says so."""
    value = _metadata(message, protocol.METADATA_NAMESPACE, protocol.SERVED)
    return value.string_value or None if value is not None else None


def _metadata(message: Any, namespace: str, key: str) -> Any:
    if not message.HasField("metadata_context"):
        return None
    namespaces = message.metadata_context.filter_metadata
    if namespace not in namespaces:
        return None
    fields = namespaces[namespace].fields
    # A map's get would make the entry: look first.
    return fields[key] if key in fields else None  # noqa: SIM401


# Requests


def plain(phase: str) -> bytes:
    """Return the reply that changes nothing, for the phase of that name."""
    return _PLAIN[phase]


def pick(
    phase: str,
    destination: str,
    set_headers: Mapping[str, str],
    remove_headers: Sequence[str],
    body: bytes | None = None,
) -> bytes:
    """
    Return the reply that routes: the destination as header and as dynamic metadata, and what else.

    `phase` is request_headers or request_body; a `body` replaces the buffered one.
    """
    constant = _destination(phase, destination)
    if not set_headers and not remove_headers and body is None:
        return constant
    common = _common(set_headers, remove_headers)
    if body is not None:
        common.body_mutation.body = body
    return constant + _reply(phase, common)


def pick_in_trailers(destination: str) -> bytes:
    """Return the reply to trailers that routes: by metadata, for headers are out of reach."""
    response = pb.ProcessingResponse(request_trailers=pb.TrailersResponse())
    response.dynamic_metadata.CopyFrom(_destination_metadata(destination))
    return _serialised(response)


@lru_cache(maxsize=4096)
def _destination(phase: str, destination: str) -> bytes:
    common = _common({protocol.DESTINATION: destination}, ())
    common.clear_route_cache = True
    response = pb.ProcessingResponse.FromString(_reply(phase, common))
    response.dynamic_metadata.CopyFrom(_destination_metadata(destination))
    return _serialised(response)


def _destination_metadata(destination: str) -> struct_pb2.Struct:
    metadata = struct_pb2.Struct()
    metadata.update({protocol.METADATA_NAMESPACE: {protocol.DESTINATION: destination}})
    return metadata


def streamed_body(phase: str, body: bytes, *, end_of_stream: bool) -> Iterator[bytes]:
    """Yield the full-duplex replies for a body: pieces in order, the last ends the stream."""
    if len(body) <= MAX_PIECE_BYTES:
        yield streamed_piece(phase, body, end_of_stream=end_of_stream)
        return
    for start in range(0, len(body), MAX_PIECE_BYTES):
        piece = body[start : start + MAX_PIECE_BYTES]
        last = start + MAX_PIECE_BYTES >= len(body)
        yield streamed_piece(phase, piece, end_of_stream=last and end_of_stream)


def streamed_piece(phase: str, piece: bytes, *, end_of_stream: bool) -> bytes:
    """Return one full-duplex body reply."""
    head, tail = around_piece(phase, len(piece), end_of_stream=end_of_stream)
    return head + piece + tail


@lru_cache(maxsize=4096)
def around_piece(phase: str, size: int, *, end_of_stream: bool) -> tuple[bytes, bytes]:
    """
    Return what stands before and after a piece of so many bytes in its reply.

    A chat's chunks have few sizes, and each costs a concatenation then and not a tree of messages.
    """
    streamed = pb.StreamedBodyResponse(body=bytes(size), end_of_stream=end_of_stream)
    # Fields are written in the order of their numbers: only the end of the stream follows the body.
    tail = pb.StreamedBodyResponse(end_of_stream=end_of_stream).SerializeToString()
    reply = _reply(
        phase, pb.CommonResponse(body_mutation=pb.BodyMutation(streamed_response=streamed))
    )
    return reply[: len(reply) - size - len(tail)], tail


def replaced_body(phase: str, body: bytes) -> bytes:
    """Return the reply that replaces a streamed or buffered piece of a body."""
    return _reply(phase, pb.CommonResponse(body_mutation=pb.BodyMutation(body=body)))


def immediate(error: EPPError) -> bytes:
    """
    Return the ImmediateResponse for an error: OpenAI-shaped JSON, its status, its drop reason.

    The only place that knows both errors and the wire.
    """
    payload = msgspec.json.encode(
        {"error": {"message": error.public_message, "type": error.code, "code": error.status}}
    )
    headers = {"content-type": "application/json"}
    if error.reason:
        headers[protocol.DROP_REASON] = error.reason
    if isinstance(error, Rejected | Unavailable):
        headers["retry-after"] = str(RETRY_AFTER_SECONDS)
    response = pb.ImmediateResponse(
        status=http_status_pb2.HttpStatus(code=error.status),
        headers=_mutation(headers, ()),
        body=payload,
        details=f"epp_{error.reason or error.code}".replace("-", "_").lower(),
    )
    return _serialised(pb.ProcessingResponse(immediate_response=response))


# Responses


def response_headers(remove_headers: Sequence[str], set_headers: Mapping[str, str]) -> bytes:
    """
    Return the reply to response headers: the field's debug marker, what must not reach a client,
    and what plugins tell it.
    """
    if not remove_headers and not set_headers:
        return _RESPONSE_HEADERS
    return _RESPONSE_HEADERS + _reply("response_headers", _common(set_headers, remove_headers))


def _common(set_headers: Mapping[str, str], remove_headers: Iterable[str]) -> pb.CommonResponse:
    return pb.CommonResponse(header_mutation=_mutation(set_headers, remove_headers))


def _mutation(set_headers: Mapping[str, str], remove_headers: Iterable[str]) -> pb.HeaderMutation:
    options = [
        base_pb2.HeaderValueOption(
            header=base_pb2.HeaderValue(key=name, raw_value=value.encode()),
            append_action=base_pb2.HeaderValueOption.OVERWRITE_IF_EXISTS_OR_ADD,
        )
        for name, value in set_headers.items()
    ]
    return pb.HeaderMutation(set_headers=options, remove_headers=remove_headers)


def _reply(phase: str, common: pb.CommonResponse) -> bytes:
    kind = pb.HeadersResponse if phase.endswith("headers") else pb.BodyResponse
    return _serialised(pb.ProcessingResponse(**{phase: kind(response=common)}))


def _serialised(response: pb.ProcessingResponse) -> bytes:
    data: bytes = response.SerializeToString()
    return data


_PLAIN_RESPONSES = {
    "request_headers": pb.ProcessingResponse(request_headers=pb.HeadersResponse()),
    "request_body": pb.ProcessingResponse(request_body=pb.BodyResponse()),
    "request_trailers": pb.ProcessingResponse(request_trailers=pb.TrailersResponse()),
    "response_headers": pb.ProcessingResponse(response_headers=pb.HeadersResponse()),
    "response_body": pb.ProcessingResponse(response_body=pb.BodyResponse()),
    "response_trailers": pb.ProcessingResponse(response_trailers=pb.TrailersResponse()),
}
_PLAIN = {phase: _serialised(response) for phase, response in _PLAIN_RESPONSES.items()}
_RESPONSE_HEADERS = _reply("response_headers", _common({"x-went-into-resp-headers": "true"}, ()))
