"""
Understanding: a raw request's facts, as the parser of its path and its headers give them.
"""

import uuid

import msgspec

from epp.framework import BadRequest, InferenceRequest, ParsedRequest, RawRequest
from epp.framework.request import DEFAULT_FAIRNESS_ID
from epp.requestcontrol import protocol
from epp.requestcontrol.parsers import Dialect, ParserTable, path_of


class Understood(msgspec.Struct, frozen=True):
    """A raw request with its facts; `asked_model` is the model's name as the client wrote it."""

    request: InferenceRequest
    dialect: Dialect
    parsed: ParsedRequest
    asked_model: str


def understand(raw: RawRequest, parsers: ParserTable) -> Understood:
    """Return what a request asks for; raise the EPPError that its client is to be told."""
    headers = raw.headers
    path = path_of(headers)
    dialect = parsers.find(path)
    parsed = ParsedRequest()
    if raw.body is not None:
        parsed = dialect.parse(path, headers, raw.body)
    asked_model = parsed.model or ""
    model = protocol.first_of(headers, protocol.MODEL_REWRITE) or asked_model
    if parsed.model is not None and not model:
        raise BadRequest("model not found in request body")
    request = InferenceRequest(
        request_id=headers.get(protocol.REQUEST_ID) or str(uuid.uuid4()),
        headers=headers,
        model=model if parsed.model is not None else "",
        prompt=parsed.prompt,
        cache_salt=parsed.cache_salt,
        stream=parsed.stream,
        max_output_tokens=parsed.max_output_tokens,
        size_bytes=len(raw.body) if raw.body is not None else 0,
        fairness_id=protocol.first_of(headers, protocol.FAIRNESS_ID) or DEFAULT_FAIRNESS_ID,
    )
    return Understood(request, dialect, parsed, asked_model)
