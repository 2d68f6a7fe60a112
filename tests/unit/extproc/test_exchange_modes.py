"""Which reply each phase gets in each body mode, and what the director is told."""

import pytest

from epp.extproc import messages
from epp.extproc.exchange import (
    PATIENCE_SECONDS,
    Exchange,
    RequestInvalid,
    RequestReceived,
    ResponseChunk,
    ResponseEnded,
    ResponseStarted,
)
from epp.framework import BodyTooLarge, NoEndpoints
from epp.requestcontrol.director import RoutingDecision
from support import wire

PICK = RoutingDecision("10.0.0.1:8000")
FDS = messages.FULL_DUPLEX_STREAMED
BIG = bytes(range(256)) * 1000


def exchange(limit: int = 1 << 20) -> Exchange:
    return Exchange(max_body_bytes=limit)


def test_full_duplex_says_nothing_until_the_body_is_whole() -> None:
    ex = exchange()

    assert ex.receive(wire.headers()) is None
    assert ex.receive(wire.body(b"ab", end=False)) is None
    event = ex.receive(wire.body(b"cd"))

    assert ex.take_replies() == []
    assert isinstance(event, RequestReceived)
    assert event.raw.body == b"abcd"


def test_full_duplex_picks_in_the_headers_reply_and_then_sends_the_body_on() -> None:
    ex = exchange()
    ex.receive(wire.headers())
    ex.receive(wire.body(BIG))

    replies = wire.parsed(ex.route(PICK))

    assert wire.kinds(replies) == ["request_headers", *["request_body"] * 5]
    assert wire.destination(replies[0]) == "10.0.0.1:8000"
    assert wire.set_headers(replies[0])["content-length"] == str(len(BIG))
    assert wire.common(replies[0]).clear_route_cache
    assert wire.streamed(replies, "request_body") == (BIG, 1)


@pytest.mark.parametrize("size", [0, 1, 61_999, 62_000, 62_001, 65_537, 131_072, 1_000_000])
def test_a_body_of_any_size_passes_byte_for_byte(size: int) -> None:
    ex = exchange()
    data = (BIG * 5)[:size]
    ex.receive(wire.headers())
    ex.receive(wire.body(data))

    replies = wire.parsed(ex.route(PICK))

    assert wire.streamed(replies, "request_body") == (data, 1)


def test_an_empty_last_piece_ends_the_body() -> None:
    ex = exchange()
    ex.receive(wire.headers())
    ex.receive(wire.body(b"all", end=False))

    event = ex.receive(wire.body(b""))

    assert isinstance(event, RequestReceived)
    assert event.raw.body == b"all"


def test_trailers_end_the_body_and_are_answered_after_it() -> None:
    ex = exchange()
    ex.receive(wire.headers())
    ex.receive(wire.body(b"all", end=False))

    event = ex.receive(wire.trailers())
    replies = wire.parsed(ex.route(PICK))

    assert isinstance(event, RequestReceived)
    assert wire.kinds(replies) == ["request_headers", "request_body", "request_trailers"]
    assert wire.streamed(replies, "request_body") == (b"all", 0)
    assert "content-length" not in wire.set_headers(replies[0])


def test_a_second_end_is_ignored() -> None:
    ex = exchange()
    ex.receive(wire.headers())
    ex.receive(wire.body())
    list(ex.route(PICK))

    events = [ex.receive(wire.body()), ex.receive(wire.trailers()), ex.receive(wire.headers())]

    assert events == [None, None, None]
    assert ex.take_replies() == []


@pytest.mark.parametrize("mode", [FDS, messages.BUFFERED, messages.STREAMED, messages.NONE, None])
def test_a_request_without_a_body_is_decided_and_answered_at_once(mode: int | None) -> None:
    ex = exchange()

    event = ex.receive(wire.headers({":method": "GET", ":path": "/v1/models"}, end=True, mode=mode))
    replies = wire.parsed(ex.route(PICK))

    assert isinstance(event, RequestReceived)
    assert event.raw.body is None
    assert wire.kinds(replies) == ["request_headers"]
    assert wire.destination(replies[0]) == "10.0.0.1:8000"
    assert "content-length" not in wire.set_headers(replies[0])


def test_buffered_answers_the_headers_with_nothing_and_picks_in_the_body_reply() -> None:
    ex = exchange()

    first = ex.receive(wire.headers(mode=messages.BUFFERED))
    at_once = wire.parsed(ex.take_replies())
    event = ex.receive(wire.body())
    replies = wire.parsed(ex.route(PICK))

    assert first is None
    assert wire.kinds(at_once) == ["request_headers"]
    assert wire.destination(at_once[0]) is None
    assert isinstance(event, RequestReceived)
    assert wire.kinds(replies) == ["request_body"]
    assert wire.destination(replies[0]) == "10.0.0.1:8000"
    assert not wire.common(replies[0]).HasField("body_mutation")


def test_buffered_replaces_a_changed_body_whole() -> None:
    ex = exchange()
    ex.receive(wire.headers(mode=messages.BUFFERED))
    ex.take_replies()
    ex.receive(wire.body())

    replies = wire.parsed(ex.route(RoutingDecision("10.0.0.1:8000", body=b"changed")))

    assert wire.common(replies[0]).body_mutation.body == b"changed"
    assert wire.set_headers(replies[0])["content-length"] == "7"


def test_buffered_trailers_get_their_own_reply_after_the_body() -> None:
    ex = exchange()
    ex.receive(wire.headers(mode=messages.BUFFERED))
    ex.receive(wire.body())
    list(ex.route(PICK))
    ex.take_replies()

    ex.receive(wire.trailers())

    assert wire.kinds(wire.parsed(ex.take_replies())) == ["request_trailers"]


def test_a_partially_buffered_body_is_decided_without_reading_it() -> None:
    ex = exchange()
    ex.receive(wire.headers(mode=messages.BUFFERED_PARTIAL))

    event = ex.receive(wire.body(b'{"mod', end=False))

    assert isinstance(event, RequestReceived)
    assert event.raw.body is None


@pytest.mark.parametrize("mode", [messages.STREAMED, messages.NONE])
def test_without_the_body_in_time_the_pick_goes_with_the_headers(mode: int) -> None:
    ex = exchange()

    event = ex.receive(wire.headers(mode=mode))
    replies = wire.parsed(ex.route(PICK))

    assert isinstance(event, RequestReceived)
    assert event.raw.body is None
    assert wire.destination(replies[0]) == "10.0.0.1:8000"


def test_streamed_pieces_are_acknowledged_one_by_one() -> None:
    ex = exchange()
    ex.receive(wire.headers(mode=messages.STREAMED))
    list(ex.route(PICK))

    ex.receive(wire.body(b"a", end=False))
    ex.receive(wire.body(b"b"))
    replies = wire.parsed(ex.take_replies())

    assert wire.kinds(replies) == ["request_body", "request_body"]
    assert not wire.common(replies[0]).HasField("body_mutation")


class TestWithoutConfiguration:
    def test_a_body_that_comes_unasked_is_full_duplex(self) -> None:
        ex = exchange()
        ex.receive(wire.headers(mode=None))
        ex.receive(wire.body())

        replies = wire.parsed(ex.route(PICK))

        assert wire.kinds(replies) == ["request_headers", "request_body"]

    def test_a_client_without_pseudo_headers_gets_the_headers_reply_and_the_end(self) -> None:
        ex = exchange()
        ex.receive(wire.headers({"host": "x"}, mode=None, field="value"))
        ex.receive(wire.body())

        replies = wire.parsed(ex.route(PICK))
        event = ex.half_closed()

        assert wire.kinds(replies) == ["request_headers"]
        assert wire.destination(replies[0]) == "10.0.0.1:8000"
        assert event is None
        assert ex.take_replies() == []

    def test_without_a_half_close_that_client_gets_its_body_after_all(self) -> None:
        ex = exchange()
        ex.receive(wire.headers({"host": "x"}, mode=None))
        ex.receive(wire.body(b"all"))
        list(ex.route(PICK))

        patience = ex.patience
        ex.nothing_came()

        assert patience == PATIENCE_SECONDS
        assert wire.streamed(wire.parsed(ex.take_replies()), "request_body") == (b"all", 1)
        assert ex.patience is None

    def test_a_response_flushes_the_body_withheld(self) -> None:
        ex = exchange()
        ex.receive(wire.headers({"host": "x"}, mode=None))
        ex.receive(wire.body(b"all"))
        list(ex.route(PICK))

        ex.receive(wire.response_headers())

        replies = wire.parsed(ex.take_replies())
        assert wire.kinds(replies) == ["request_body", "response_headers"]

    @pytest.mark.parametrize("data", [None, b"half"])
    def test_half_close_makes_the_request_of_that_client_whole(self, data: bytes | None) -> None:
        ex = exchange()
        ex.receive(wire.headers({"host": "x"}, mode=None))
        if data is not None:
            ex.receive(wire.body(data, end=False))

        event = ex.half_closed()

        assert isinstance(event, RequestReceived)
        assert event.raw.body == data

    def test_a_gateway_that_waits_gets_a_pick_before_it_gives_up(self) -> None:
        ex = exchange()
        ex.receive(wire.headers(mode=None))

        event = ex.nothing_came()
        replies = wire.parsed(ex.route(PICK))

        assert isinstance(event, RequestReceived)
        assert event.raw.body is None
        assert wire.destination(replies[0]) == "10.0.0.1:8000"

    def test_a_late_body_that_comes_whole_is_buffered(self) -> None:
        ex = exchange()
        ex.receive(wire.headers(mode=None))
        ex.nothing_came()
        list(ex.route(PICK))

        ex.receive(wire.body())
        replies = wire.parsed(ex.take_replies())
        ex.receive(wire.response_headers())
        ex.take_replies()
        ex.receive(wire.response_body(b"x", end=True))

        assert wire.kinds(replies) == ["request_body"]
        assert not wire.common(replies[0]).HasField("body_mutation")
        assert not wire.common(wire.parsed(ex.take_replies())[0]).HasField("body_mutation")

    def test_a_late_body_in_pieces_is_full_duplex(self) -> None:
        ex = exchange()
        ex.receive(wire.headers(mode=None))
        ex.nothing_came()
        list(ex.route(PICK))

        ex.receive(wire.body(b"a", end=False))
        ex.receive(wire.body(b"b"))
        ex.receive(wire.body(b"again"))

        assert wire.streamed(wire.parsed(ex.take_replies()), "request_body") == (b"ab", 1)

    def test_patience_is_for_those_without_configuration_alone(self) -> None:
        ex = exchange()
        ex.receive(wire.headers())

        assert ex.patience is None
        assert ex.nothing_came() is None


def test_half_close_of_an_envoy_before_the_end_asks_for_nothing() -> None:
    ex = exchange()
    ex.receive(wire.headers())
    ex.receive(wire.body(b"half", end=False))

    assert ex.half_closed() is None


class TestTooLarge:
    def test_a_declared_length_is_refused_before_the_body_comes(self) -> None:
        ex = exchange(limit=10)

        event = ex.receive(wire.headers({**wire.POST, "content-length": "11"}))

        assert isinstance(event, RequestInvalid)
        assert isinstance(event.error, BodyTooLarge)

    def test_an_undeclared_one_as_soon_as_it_is_seen(self) -> None:
        ex = exchange(limit=10)
        ex.receive(wire.headers())

        event = ex.receive(wire.body(b"x" * 11, end=False))
        assert isinstance(event, RequestInvalid)
        replies = wire.parsed(ex.refuse(event.error))

        assert wire.kinds(replies) == ["immediate_response"]
        assert replies[0].immediate_response.status.code == 413
        assert ex.receive(wire.body(b"x")) is None
        assert ex.take_replies() == []

    @pytest.mark.parametrize("declared", ["", "-1", "x", "9" * 30, "\u0663"])
    def test_a_length_that_is_none_says_nothing(self, declared: str) -> None:
        ex = exchange(limit=10)

        assert ex.receive(wire.headers({**wire.POST, "content-length": declared})) is None


def test_an_error_goes_out_instead_of_the_headers_reply() -> None:
    ex = exchange()
    ex.receive(wire.headers())
    ex.receive(wire.body())

    replies = wire.parsed(ex.refuse(NoEndpoints("nothing there")))

    assert wire.kinds(replies) == ["immediate_response"]
    assert ex.finished


def test_observability_mode_is_never_answered() -> None:
    ex = exchange()
    message = wire.headers(mode=messages.BUFFERED)
    message.observability_mode = True

    ex.receive(message)

    assert ex.take_replies() == []


class TestResponses:
    def routed(self, mode: int | None = FDS, response_mode: int | None = None) -> Exchange:
        ex = exchange()
        ex.receive(wire.headers(mode=mode, response_mode=response_mode))
        ex.receive(wire.body())
        list(ex.route(PICK))
        ex.take_replies()
        return ex

    def test_json_is_held_and_sent_on_whole(self) -> None:
        ex = self.routed()
        ex.receive(wire.response_headers())
        ex.take_replies()

        first = ex.receive(wire.response_body(b'{"a":'))
        second = ex.receive(wire.response_body(b"1}", end=True))

        assert first is None
        assert second == ResponseEnded(b'{"a":1}')
        replies = wire.parsed(ex.take_replies())
        assert wire.kinds(replies) == ["response_body"]
        assert wire.streamed(replies, "response_body") == (b'{"a":1}', 1)
        assert ex.finished

    def test_json_beyond_the_hold_is_sent_on_as_it_comes(self) -> None:
        ex = self.routed()
        ex.receive(wire.response_headers())
        ex.take_replies()

        ex.receive(wire.response_body(b"x" * (1 << 20)))
        held = ex.take_replies()
        ex.receive(wire.response_body(b"y"))
        ex.receive(wire.response_body(b"z", end=True))

        assert held == []
        body, ends = wire.streamed(wire.parsed(ex.take_replies()), "response_body")
        assert (body, ends) == (b"x" * (1 << 20) + b"yz", 1)

    @pytest.mark.parametrize(
        "head",
        [
            {"content-type": "text/event-stream; charset=utf-8"},
            {"content-type": "application/octet-stream"},
            {"content-encoding": "gzip"},
        ],
        ids=["events", "bytes", "compressed"],
    )
    def test_anything_else_is_sent_on_piece_by_piece(self, head: dict[str, str]) -> None:
        ex = self.routed()
        ex.receive(wire.response_headers(head))
        ex.take_replies()

        event = ex.receive(wire.response_body(b"one"))
        replies = wire.parsed(ex.take_replies())

        assert event == ResponseChunk(b"one")
        assert wire.streamed(replies, "response_body") == (b"one", 0)

    @pytest.mark.parametrize("mode", [messages.STREAMED, messages.BUFFERED])
    def test_other_modes_get_an_empty_reply_to_each_piece(self, mode: int) -> None:
        ex = self.routed(messages.BUFFERED, mode)
        ex.receive(wire.response_headers())
        ex.take_replies()

        ex.receive(wire.response_body(b"one"))
        event = ex.receive(wire.response_body(b"two", end=True))
        replies = wire.parsed(ex.take_replies())

        assert event == ResponseEnded(b"two")
        assert wire.kinds(replies) == ["response_body"] * 2
        assert not any(wire.common(reply).HasField("body_mutation") for reply in replies)

    def test_trailers_end_a_held_body_without_an_end_of_stream(self) -> None:
        ex = self.routed()
        ex.receive(wire.response_headers())
        ex.receive(wire.response_body(b"{}"))
        ex.take_replies()

        event = ex.receive(wire.response_trailers())
        replies = wire.parsed(ex.take_replies())

        assert event == ResponseEnded(b"{}")
        assert wire.kinds(replies) == ["response_body", "response_trailers"]
        assert wire.streamed(replies, "response_body") == (b"{}", 0)

    def test_without_bodies_trailers_are_the_end(self) -> None:
        ex = self.routed(messages.BUFFERED, messages.NONE)
        started = ex.receive(wire.response_headers())
        ended = ex.receive(wire.response_trailers())

        assert isinstance(started, ResponseStarted)
        assert not started.body_follows
        assert ended == ResponseEnded()
        assert wire.kinds(wire.parsed(ex.take_replies())) == [
            "response_headers",
            "response_trailers",
        ]

    def test_the_head_says_status_kind_and_who_served(self) -> None:
        ex = self.routed()

        event = ex.receive(wire.response_headers(status=503, served="10.0.0.2:8000"))

        assert event == ResponseStarted(503, "json", "10.0.0.2:8000", body_follows=True)

    @pytest.mark.parametrize(
        ("name", "expected"), [(":status", 418), ("status", 418), ("x-status", 0)]
    )
    def test_the_status_is_read_from_either_name(self, name: str, expected: int) -> None:
        ex = self.routed()
        message = wire.response_headers()
        del message.response_headers.headers.headers[:]
        message.response_headers.headers.headers.add(key=name, raw_value=b"418")

        event = ex.receive(message)

        assert isinstance(event, ResponseStarted)
        assert event.status == expected

    def test_control_headers_of_a_model_server_do_not_reach_the_client(self) -> None:
        ex = self.routed()
        ex.receive(
            wire.response_headers(
                {
                    "x-backend-server": "vllm",
                    "x-llm-d-inference-objective": "secret",
                    "x-gateway-inference-objective": "old-secret",
                    "x-gateway-destination-endpoint": "10.2.0.5:8080",
                }
            )
        )

        reply = wire.parsed(ex.take_replies())[0]

        assert wire.set_headers(reply) == {"x-went-into-resp-headers": "true"}
        assert wire.removed(reply) == {
            "x-llm-d-inference-objective",
            "x-gateway-inference-objective",
            "x-gateway-destination-endpoint",
        }

    def test_a_local_reply_before_the_body_is_a_response_like_any(self) -> None:
        ex = exchange()
        ex.receive(wire.headers())

        ex.receive(wire.response_headers(status=403, end=True))

        assert wire.kinds(wire.parsed(ex.take_replies())) == ["response_headers"]
        assert ex.receive(wire.body()) is None
        assert ex.finished

    def test_a_stream_may_begin_with_a_response(self) -> None:
        ex = exchange()

        ex.receive(wire.response_headers())
        ex.receive(wire.response_body(b'{"a":'))
        ex.receive(wire.response_body(b"1}", end=True))

        replies = wire.parsed(ex.take_replies())
        assert wire.kinds(replies) == ["response_headers", "response_body"]
        assert wire.streamed(replies, "response_body") == (b'{"a":1}', 1)

    def test_a_body_without_headers_is_sent_on(self) -> None:
        ex = exchange()

        ex.receive(wire.response_body(b"x", end=True))
        ex.receive(wire.response_body(b"y", end=True))

        assert wire.streamed(wire.parsed(ex.take_replies()), "response_body") == (b"x", 1)


def test_trailers_before_any_body_of_a_buffered_request_carry_the_pick_as_metadata() -> None:
    ex = exchange()
    ex.receive(wire.headers(mode=messages.BUFFERED))
    ex.take_replies()

    event = ex.receive(wire.trailers())
    replies = wire.parsed(ex.route(PICK))

    assert isinstance(event, RequestReceived)
    assert event.raw.body is None
    assert wire.kinds(replies) == ["request_trailers"]
    fields = replies[0].dynamic_metadata.fields["envoy.lb"].struct_value.fields
    assert fields["x-gateway-destination-endpoint"].string_value == "10.0.0.1:8000"


def test_trailers_that_come_unasked_are_full_duplex() -> None:
    ex = exchange()
    ex.receive(wire.headers(mode=None))

    ex.receive(wire.trailers())

    assert wire.kinds(wire.parsed(ex.route(PICK))) == ["request_headers", "request_trailers"]


def test_observability_mode_gets_no_decision_either() -> None:
    ex = exchange()
    message = wire.headers(end=True)
    message.observability_mode = True
    ex.receive(message)

    assert list(ex.route(PICK)) == []
    assert list(ex.refuse(NoEndpoints("none"))) == []


def test_a_second_trailers_message_of_a_response_is_answered_and_means_nothing() -> None:
    ex = exchange()
    ex.receive(wire.response_headers())
    ex.receive(wire.response_trailers())

    assert ex.receive(wire.response_trailers()) is None


def test_a_renamed_body_of_another_length_loses_its_declared_length() -> None:
    ex = exchange()
    ex.receive(wire.headers(mode=messages.BUFFERED, response_mode=messages.STREAMED))
    ex.receive(wire.body())
    list(ex.route(RoutingDecision("a:1", body=b"{}", restore_model=("served", "asked"))))
    ex.take_replies()

    ex.receive(wire.response_headers())
    ex.receive(wire.response_body(b'{"model":"served"}', end=True))
    head, body = wire.parsed(ex.take_replies())

    assert "content-length" in wire.removed(head)
    assert wire.common(body).body_mutation.body == b'{"model":"asked"}'


def test_a_hint_with_the_body_wins_over_one_with_the_headers() -> None:
    ex = exchange()
    ex.receive(wire.headers(hint=["a"]))

    event = ex.receive(wire.with_hint(wire.body(), ["b"]))

    assert isinstance(event, RequestReceived)
    assert event.raw.subset_hint == ("b",)


def test_other_metadata_does_not_hide_an_earlier_hint() -> None:
    ex = exchange()
    ex.receive(wire.headers(hint=["a"]))
    later = wire.body()
    later.metadata_context.filter_metadata["other"].update({"x": 1})

    event = ex.receive(later)

    assert isinstance(event, RequestReceived)
    assert event.raw.subset_hint == ("a",)


def test_patience_ends_before_a_gateway_gives_up() -> None:
    envoys_default_message_timeout = 0.2

    assert envoys_default_message_timeout / 2 >= PATIENCE_SECONDS


def test_a_renamed_piece_waits_for_nothing_where_trailers_could_not_carry_it() -> None:
    ex = exchange()
    ex.receive(wire.headers(mode=messages.BUFFERED, response_mode=messages.STREAMED))
    ex.receive(wire.body())
    list(ex.route(RoutingDecision("a:1", restore_model=("served", "asked"))))
    ex.receive(wire.response_headers({"content-type": "text/event-stream"}))
    ex.take_replies()

    ex.receive(wire.response_body(b'data: {"t":"'))
    ex.receive(wire.response_trailers())
    body, end = wire.parsed(ex.take_replies())

    assert not wire.common(body).HasField("body_mutation")
    assert wire.kinds([end]) == ["response_trailers"]
