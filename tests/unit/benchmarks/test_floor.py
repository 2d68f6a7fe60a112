"""The floor answers as Envoy expects, and does nothing else."""

import msgspec
import pytest
from envoy.service.ext_proc.v3 import external_processor_pb2 as pb

from benchmarks.floor import DESTINATION, Floor

FLOOR = Floor("10.0.0.1:8000")


def replies(body: bytes, *, duplex: bool) -> list[pb.ProcessingResponse]:
    made = FLOOR._decide(body, duplex=duplex)
    return [pb.ProcessingResponse.FromString(one) for one in made]


def routed_to(common: pb.CommonResponse) -> dict[str, bytes]:
    return {one.header.key: one.header.raw_value for one in common.header_mutation.set_headers}


def test_a_buffered_request_is_routed_in_the_reply_to_its_body() -> None:
    [reply] = replies(b"{}", duplex=False)

    assert routed_to(reply.request_body.response) == {DESTINATION: b"10.0.0.1:8000"}
    assert not reply.request_body.response.HasField("body_mutation")


def test_a_full_duplex_request_is_routed_in_its_headers_and_its_body_handed_back() -> None:
    [headers, body] = replies(b'{"model": "a"}', duplex=True)
    streamed = body.request_body.response.body_mutation.streamed_response

    assert routed_to(headers.request_headers.response) == {DESTINATION: b"10.0.0.1:8000"}
    assert (streamed.body, streamed.end_of_stream) == (b'{"model": "a"}', True)


def test_the_body_is_parsed() -> None:
    with pytest.raises(msgspec.DecodeError):
        FLOOR._decide(b"{", duplex=False)
