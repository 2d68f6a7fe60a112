"""
The exchange under any order and cutting of messages.

The well-behaved gateway checks that every phase gets the one answer it awaits and that bytes arrive
as they were sent; the unruly one sends anything, and must get no exception and no answer to what
awaits none.
"""

from dataclasses import dataclass
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from epp.extproc import messages
from epp.extproc.exchange import Event, Exchange, RequestInvalid, RequestReceived
from epp.extproc.messages import ProcessingRequest, ProcessingResponse
from epp.framework import NoEndpoints
from epp.requestcontrol.director import RoutingDecision
from support import wire

PICK = RoutingDecision("[fd00::1]:8000", {"x-request-id": "1"}, ["x-slo-ttft-ms"])
FDS = messages.FULL_DUPLEX_STREAMED


def act(ex: Exchange, event: Event | None, *, refuse: bool) -> list[bytes]:
    """What a door writes for an event."""
    replies = ex.take_replies()
    if isinstance(event, RequestInvalid):
        replies += ex.refuse(event.error)
    elif isinstance(event, RequestReceived):
        replies += ex.refuse(NoEndpoints("none")) if refuse else ex.route(PICK)
    return replies


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    """The data cut at the given places; adjacent equal cuts make empty pieces."""
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[start:end] for start, end in pairwise(edges)]


BODIES = st.one_of(
    st.binary(max_size=200), st.integers(0, 300_000).map(lambda size: bytes(size % 251) * 600)
)
CUTS = st.lists(st.integers(0, 200_000), max_size=6)


@dataclass
class Wire:
    """An exchange with the door's duties done, and what came out."""

    ex: Exchange
    refuse: bool = False

    def send(self, message: ProcessingRequest) -> list[ProcessingResponse]:
        return wire.parsed(act(self.ex, self.ex.receive(message), refuse=self.refuse))


@given(data=BODIES, cuts=CUTS, by_trailers=st.booleans(), configured=st.booleans())
def test_full_duplex_answers_nothing_before_the_end_and_everything_after_it(
    data: bytes, cuts: list[int], by_trailers: bool, configured: bool
) -> None:
    gate = Wire(Exchange(max_body_bytes=1 << 22))
    assert gate.send(wire.headers(mode=FDS if configured else None)) == []
    parts = pieces(data, cuts)
    for part in parts if by_trailers else parts[:-1]:
        assert gate.send(wire.body(part, end=False)) == []

    replies = gate.send(wire.trailers() if by_trailers else wire.body(parts[-1]))

    expected = ["request_trailers"] if by_trailers else []
    assert wire.kinds(replies)[0] == "request_headers"
    assert [kind for kind in wire.kinds(replies)[1:] if kind != "request_body"] == expected
    assert wire.destination(replies[0]) == "[fd00::1]:8000"
    assert wire.streamed(replies, "request_body") == (data, 0 if by_trailers else 1)


@given(data=BODIES, refuse=st.booleans(), with_trailers=st.booleans())
def test_buffered_gets_one_answer_a_message(data: bytes, refuse: bool, with_trailers: bool) -> None:
    gate = Wire(Exchange(max_body_bytes=1 << 22), refuse)

    replies = gate.send(wire.headers(mode=messages.BUFFERED)) + gate.send(wire.body(data))
    if with_trailers and not refuse:
        replies += gate.send(wire.trailers())

    answer = "immediate_response" if refuse else "request_body"
    trailer = ["request_trailers"] if with_trailers and not refuse else []
    assert wire.kinds(replies) == ["request_headers", answer, *trailer]


@given(data=BODIES, cuts=CUTS)
def test_streamed_gets_one_answer_a_message(data: bytes, cuts: list[int]) -> None:
    gate = Wire(Exchange(max_body_bytes=1 << 22))
    parts = pieces(data, cuts)

    replies = gate.send(wire.headers(mode=messages.STREAMED))
    for at, part in enumerate(parts):
        replies += gate.send(wire.body(part, end=at == len(parts) - 1))

    assert wire.kinds(replies) == ["request_headers", *["request_body"] * len(parts)]


@given(
    data=BODIES,
    cuts=CUTS,
    mode=st.sampled_from([FDS, messages.STREAMED, messages.BUFFERED]),
    media=st.sampled_from(["application/json", "text/event-stream", "image/png"]),
    by_trailers=st.booleans(),
)
def test_a_response_is_passed_on_as_it_was(
    data: bytes, cuts: list[int], mode: int, media: str, by_trailers: bool
) -> None:
    gate = Wire(Exchange(max_body_bytes=1 << 22))
    gate.send(wire.headers(mode=FDS, response_mode=mode))
    gate.send(wire.body())
    parts = pieces(data, cuts)

    head = gate.send(wire.response_headers({"content-type": media}))
    replies = []
    for at, part in enumerate(parts):
        last = at == len(parts) - 1 and not by_trailers
        replies += gate.send(wire.response_body(part, end=last))
    if by_trailers:
        replies += gate.send(wire.response_trailers())

    assert wire.kinds(head) == ["response_headers"]
    assert gate.ex.finished
    bodies = [reply for reply in replies if reply.HasField("response_body")]
    if mode == FDS:
        assert wire.streamed(bodies, "response_body") == (data, 0 if by_trailers else 1)
    else:
        assert len(bodies) == len(parts)
        assert not any(wire.common(reply).HasField("body_mutation") for reply in bodies)
    assert (wire.kinds(replies)[-1:] == ["response_trailers"]) is by_trailers


ANY_MODE = st.sampled_from([None, *range(5)])
ANY_MESSAGE = st.one_of(
    st.builds(
        wire.headers,
        st.dictionaries(
            st.sampled_from([":method", ":path", "content-length", "x-request-id", "a"]),
            st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), max_size=5),
        ),
        end=st.booleans(),
        mode=ANY_MODE,
        response_mode=st.sampled_from(range(5)),
        hint=st.one_of(st.none(), st.text(max_size=8), st.lists(st.text(max_size=8), max_size=3)),
    ),
    st.builds(wire.body, st.binary(max_size=50), end=st.booleans()),
    st.builds(wire.trailers),
    st.builds(wire.response_headers, status=st.integers(0, 999), end=st.booleans()),
    st.builds(wire.response_body, st.binary(max_size=50), end=st.booleans()),
    st.builds(wire.response_trailers),
    st.builds(ProcessingRequest),
)


@given(
    sent=st.lists(st.one_of(ANY_MESSAGE, st.just("nothing"), st.just("close")), max_size=12),
    refuse=st.booleans(),
)
def test_any_order_is_borne_and_each_request_phase_is_answered_at_most_once(
    sent: list[ProcessingRequest | str], refuse: bool
) -> None:
    ex = Exchange(max_body_bytes=100)
    decisions = 0
    replies: list[ProcessingResponse] = []
    for message in sent:
        if ex.finished:
            break
        if isinstance(message, str):
            event = ex.half_closed() if message == "close" else ex.nothing_came()
        else:
            event = ex.receive(message)
        decisions += isinstance(event, RequestReceived | RequestInvalid)
        replies += wire.parsed(act(ex, event, refuse=refuse))
        if message == "close":
            break

    answered = wire.kinds(replies)
    given_messages = [message for message in sent if not isinstance(message, str)]
    assert decisions <= 1
    assert answered.count("request_headers") <= 1
    assert answered.count("immediate_response") <= 1
    for phase in ("request_trailers", "response_headers", "response_trailers"):
        came = sum(message.HasField(phase) for message in given_messages)
        assert answered.count(phase) <= came
