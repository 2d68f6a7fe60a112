"""Messages as gateways send them, and replies as they read them."""

from collections.abc import Iterable, Mapping
from typing import Any

from epp.extproc import messages
from epp.extproc.messages import ProcessingRequest, ProcessingResponse
from epp.requestcontrol import protocol

POST = {":method": "POST", ":path": "/v1/completions", "content-type": "application/json"}
COMPLETION = b'{"model":"m","prompt":"hello"}'


def headers(
    pairs: Mapping[str, str] | Iterable[tuple[str, str]] = POST,
    *,
    end: bool = False,
    mode: int | None = messages.FULL_DUPLEX_STREAMED,
    response_mode: int | None = None,
    hint: Any = None,
    field: str = "raw_value",
) -> ProcessingRequest:
    """The first message of a request; `mode` None leaves the configuration out."""
    message = ProcessingRequest()
    message.request_headers.end_of_stream = end
    _fill(message.request_headers, pairs, field)
    if mode is not None:
        message.protocol_config.request_body_mode = mode
        message.protocol_config.response_body_mode = (
            mode if response_mode is None else response_mode
        )
    if hint is not None:
        with_hint(message, hint)
    return message


def with_hint(message: ProcessingRequest, hint: Any) -> ProcessingRequest:
    """Put a subset hint (a list or a string) into a message's metadata."""
    metadata = message.metadata_context.filter_metadata[protocol.SUBSET_NAMESPACE]
    metadata.update({protocol.SUBSET: hint})
    return message


def body(data: bytes = COMPLETION, *, end: bool = True) -> ProcessingRequest:
    message = ProcessingRequest()
    message.request_body.body = data
    message.request_body.end_of_stream = end
    return message


def trailers() -> ProcessingRequest:
    message = ProcessingRequest()
    message.request_trailers.trailers.headers.add(key="x-end", raw_value=b"1")
    return message


def response_headers(
    pairs: Mapping[str, str] | None = None,
    *,
    status: int = 200,
    end: bool = False,
    served: str | None = None,
) -> ProcessingRequest:
    message = ProcessingRequest()
    message.response_headers.end_of_stream = end
    given = {":status": str(status), "content-type": "application/json", **(pairs or {})}
    _fill(message.response_headers, given, "raw_value")
    if served is not None:
        metadata = message.metadata_context.filter_metadata[protocol.METADATA_NAMESPACE]
        metadata.update({protocol.SERVED: served})
    return message


def response_body(data: bytes, *, end: bool = False) -> ProcessingRequest:
    message = ProcessingRequest()
    message.response_body.body = data
    message.response_body.end_of_stream = end
    return message


def response_trailers() -> ProcessingRequest:
    message = ProcessingRequest()
    message.response_trailers.trailers.headers.add(key="grpc-status", raw_value=b"0")
    return message


def _fill(part: Any, pairs: Mapping[str, str] | Iterable[tuple[str, str]], field: str) -> None:
    items = pairs.items() if isinstance(pairs, Mapping) else pairs
    for key, value in items:
        text = value.encode() if field == "raw_value" else value
        part.headers.headers.add(key=key, **{field: text})


def parsed(replies: Iterable[bytes]) -> list[ProcessingResponse]:
    return [ProcessingResponse.FromString(reply) for reply in replies]


def kinds(replies: Iterable[ProcessingResponse]) -> list[str]:
    """The phases that replies answer, in order."""
    return [reply.WhichOneof("response") for reply in replies]


def common(reply: ProcessingResponse) -> Any:
    return getattr(reply, reply.WhichOneof("response")).response


def set_headers(reply: ProcessingResponse) -> dict[str, str]:
    """The headers a reply sets; fails where one could be appended instead of overwritten."""
    if reply.HasField("immediate_response"):
        mutation = reply.immediate_response.headers
    else:
        mutation = common(reply).header_mutation
    for option in mutation.set_headers:
        assert option.append_action == option.OVERWRITE_IF_EXISTS_OR_ADD, option
        assert not option.header.value, option
    return {one.header.key.lower(): one.header.raw_value.decode() for one in mutation.set_headers}


def removed(reply: ProcessingResponse) -> set[str]:
    return set(common(reply).header_mutation.remove_headers)


def destination(reply: ProcessingResponse) -> str | None:
    """Where a reply routes to; fails where header and metadata disagree."""
    header = set_headers(reply).get(protocol.DESTINATION)
    fields = reply.dynamic_metadata.fields
    metadata = None
    if protocol.METADATA_NAMESPACE in fields:
        inner = fields[protocol.METADATA_NAMESPACE].struct_value.fields
        metadata = inner[protocol.DESTINATION].string_value
    assert header == metadata
    return header


def streamed(replies: Iterable[ProcessingResponse], phase: str) -> tuple[bytes, int]:
    """The bytes of a body in full-duplex replies, and how many of them end the stream."""
    pieces = [
        common(reply).body_mutation.streamed_response
        for reply in replies
        if reply.WhichOneof("response") == phase
    ]
    assert all(len(piece.body) <= 62_000 for piece in pieces)
    ends = [piece.end_of_stream for piece in pieces]
    assert not any(ends[:-1])
    return b"".join(piece.body for piece in pieces), sum(ends)
