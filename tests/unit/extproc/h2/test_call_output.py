"""What one call sends: as much as the peer's windows allow, in order, and nothing for ever."""

from typing import Any

import pytest
from hyperframe.frame import DataFrame, Frame, HeadersFrame, RstStreamFrame

from epp.extproc.h2.call import OK, Call
from support import h2_frames as f
from support.h2_peer import Echo, Listener, Peer

WINDOW, FRAME = 4, 5
"""Settings: INITIAL_WINDOW_SIZE and MAX_FRAME_SIZE."""


def opened(*, window: int = 65_535, serve: Any = Listener, streams: int = 1, **limits: Any) -> Peer:
    """A peer with open streams 1, 3, ... whose windows are of this size."""
    peer = Peer(serve=serve, settings={WINDOW: window}, **limits)
    peer.send(*(f.headers(2 * number + 1) for number in range(streams)))
    return peer


def call(peer: Peer, stream: int = 1) -> Call:
    found: Call = peer.handlers[stream].call
    return found


def sizes(frames: list[Frame], stream: int = 1) -> list[int]:
    return [
        len(one.data) for one in frames if isinstance(one, DataFrame) and one.stream_id == stream
    ]


def test_a_reply_is_headers_data_and_trailers() -> None:
    peer = opened()
    peer.send(f.data(1, end=True))

    call(peer).send(b"one")
    call(peer).send(b"")
    call(peer).end(OK, "fine")

    headers, first, second, trailers = peer.hear()
    assert isinstance(headers, HeadersFrame)
    assert headers.flags == {"END_HEADERS"}
    assert (first.data, second.data) == (f.message(b"one"), f.message(b""))
    assert first.flags == second.flags == set()
    assert trailers.flags == {"END_HEADERS", "END_STREAM"}
    assert peer.trailers(1) == {"grpc-status": "0", "grpc-message": "fine"}
    assert peer.connection.calls == {}


def test_a_call_without_a_reply_is_trailers_alone() -> None:
    peer = opened()
    peer.send(f.data(1, end=True))

    call(peer).end(5, "not here")

    (trailers,) = peer.hear()
    assert trailers.flags == {"END_HEADERS", "END_STREAM"}
    assert peer.trailers(1) == {
        ":status": "200",
        "content-type": "application/grpc",
        "grpc-status": "5",
        "grpc-message": "not here",
    }


def test_what_the_peer_still_sends_is_not_needed_after_the_end() -> None:
    peer = opened()

    call(peer).end(OK)

    *_, last = peer.hear()
    assert isinstance(last, RstStreamFrame)
    assert last.error_code == 0
    assert peer.violations == []


def test_a_message_larger_than_a_frame_is_cut() -> None:
    peer = opened()
    text = bytes(range(256)) * 128

    call(peer).send(text)

    assert sizes(peer.hear()) == [16_384, 16_384, 5]
    assert f.message(text) == peer.body(1)


def test_larger_frames_are_sent_where_the_peer_takes_them() -> None:
    peer = opened()
    peer.send(f.settings({FRAME: 20_000}))

    call(peer).send(bytes(19_995))
    call(peer).send(bytes(19_996))

    assert sizes(peer.hear()) == [20_000, 20_000, 1]


def test_a_closed_window_lets_nothing_out_and_an_open_one_all_in_order() -> None:
    peer = opened(window=0)
    for word in (b"one", b"", b"three"):
        call(peer).send(word)
    call(peer).end(OK)

    assert sizes(peer.hear()) == []
    assert peer.connection.outbox.blocked == {1: call(peer)}
    assert peer.connection.outbox.thirsty == {}
    assert sizes(peer.send(f.window_update(1, 9))) == [8, 1]
    assert peer.trailers(1) == {}
    assert sizes(peer.send(f.window_update(1, 100))) == [4, 10]
    assert f.message(b"one") + f.message(b"") + f.message(b"three") == peer.body(1)
    assert peer.trailers(1) == {"grpc-status": "0"}
    assert peer.connection.outbox.blocked == {}
    assert call(peer).queued == 0


def test_a_small_message_does_not_overtake_a_large_one() -> None:
    peer = opened(window=100)
    call(peer).send(bytes(96))

    call(peer).send(b"")

    assert sizes(peer.hear()) == [100]
    assert sizes(peer.send(f.window_update(1, 6))) == [1, 5]


def test_a_window_that_became_negative_has_to_be_made_good() -> None:
    peer = opened(window=100)
    call(peer).send(bytes(95))
    peer.send(f.settings({WINDOW: 10}))
    call(peer).send(bytes(15))

    assert sizes(peer.send(f.window_update(1, 90))) == []
    assert sizes(peer.send(f.window_update(1, 1))) == [1]
    assert sizes(peer.send(f.settings({WINDOW: 29}))) == [19]
    assert peer.connection.outbox.blocked == {}


@pytest.mark.parametrize("order", [(1, 3), (3, 1)], ids=["in turn", "in turn, the other first"])
def test_the_connection_s_window_is_shared(order: tuple[int, int]) -> None:
    peer = opened(window=1 << 20, streams=2)
    call(peer, 1).send(bytes(65_530))
    for stream in order:
        call(peer, stream).send(bytes(40_000))
        call(peer, stream).end(OK)
    peer.hear()
    assert peer.connection.outbox.window == 0
    assert {1, 3} == set(peer.connection.outbox.thirsty)

    answer = peer.send(f.window_update(0, 3 * 16_384))

    assert [order[0], order[1], order[0]] == [one.stream_id for one in answer]
    peer.send(f.window_update(0, 65_535))
    assert len(peer.body(3)) == 40_005
    assert peer.trailers(1)["grpc-status"] == peer.trailers(3)["grpc-status"] == "0"
    assert peer.connection.outbox.thirsty == {}


def test_streams_without_a_window_do_not_thirst_for_the_connection_s() -> None:
    peer = opened(window=0, streams=2)
    peer.send(f.window_update(3, 70_000))
    for stream in (1, 3):
        call(peer, stream).send(bytes(66_000))
    peer.hear()

    assert list(peer.connection.outbox.thirsty) == [3]
    assert sizes(peer.send(f.window_update(0, 1_000)), 3) == [470]
    assert peer.send(f.settings({WINDOW: 1})) != []
    assert sizes(peer.told, 1) == [1]
    assert peer.connection.outbox.thirsty == {}


def test_settings_wake_every_stream_that_waits() -> None:
    peer = opened(window=0, streams=3)
    for stream in (1, 3, 5):
        call(peer, stream).send(b"hello")
    peer.hear()

    peer.send(f.settings({WINDOW: 10}))

    assert [f.message(b"hello")] * 3 == [peer.body(stream) for stream in (1, 3, 5)]


def test_a_connection_s_window_that_is_spent_waits_though_the_stream_s_grows() -> None:
    peer = opened(window=0, streams=2)
    peer.send(f.window_update(3, 65_535))
    call(peer, 3).send(bytes(65_530))
    call(peer, 1).send(b"hello")
    peer.hear()

    assert sizes(peer.send(f.settings({WINDOW: 10}))) == []
    assert list(peer.connection.outbox.thirsty) == [1]
    assert sizes(peer.send(f.window_update(0, 10))) == [10]


def test_nothing_is_delivered_while_too_much_waits_to_be_read() -> None:
    peer = opened(serve=Echo, window=0, max_queued_bytes=100)
    words = [bytes((number,)) * 50 for number in range(1, 7)]

    peer.send(f.data(1, b"".join(f.message(word) for word in words), end=True))

    heard = peer.handlers[1].messages
    assert words[:2] == heard
    peer.send(f.window_update(1, 10))
    assert words[:3] == heard
    peer.send(f.window_update(1, 1_000))
    assert words == heard
    assert b"".join(f.message(word) for word in words) == peer.body(1)
    assert peer.trailers(1)["grpc-status"] == "0"


def test_delivery_goes_on_when_the_connection_s_window_opens() -> None:
    peer = opened(serve=Echo, window=1 << 20, max_queued_bytes=100)
    peer.send(f.data(1, f.message(bytes(16_379))), f.data(1, f.message(bytes(16_379))))
    peer.send(f.data(1, f.message(bytes(16_379))), f.data(1, f.message(bytes(16_379))))
    peer.send(f.data(1, f.message(bytes(200))), f.data(1, f.message(b"last"), end=True))

    assert len(peer.handlers[1].messages) == 5
    peer.send(f.window_update(0, 1_000))
    assert peer.handlers[1].messages[-1] == b"last"
    assert peer.trailers(1)["grpc-status"] == "0"


def test_a_call_may_speak_through_another_that_waits_too() -> None:
    class Gossip(Echo):
        def message(self, data: bytes) -> None:
            super().message(data)
            call(peer, 3).send(data)

    peer = opened(serve=Gossip, window=1 << 20, streams=3, max_queued_bytes=10)
    call(peer, 5).send(bytes(65_530))
    call(peer, 1).send(bytes(16_380))
    call(peer, 3).send(b"first")
    peer.send(f.data(1, f.message(b"heard late")))
    assert peer.handlers[1].messages == []

    peer.send(f.window_update(0, 65_535))

    assert peer.handlers[1].messages == [b"heard late"]
    assert f.message(b"first") + f.message(b"heard late") == peer.body(3)
    assert f.message(bytes(16_380)) + f.message(b"heard late") == peer.body(1)
    assert peer.connection.outbox.thirsty == peer.connection.outbox.blocked == {}


@pytest.mark.parametrize("queued", [True, False], ids=["queued", "sent"])
def test_a_reset_drops_what_was_queued(queued: bool) -> None:
    peer = opened(window=0 if queued else 100)
    call(peer).send(b"hello")
    call(peer).end(OK)
    peer.hear()

    answer = peer.send(f.rst(1), f.settings({WINDOW: 1_000}), f.window_update(0, 1))

    assert sizes(answer) == []
    assert (
        peer.connection.calls
        == peer.connection.outbox.blocked
        == peer.connection.outbox.thirsty
        == {}
    )


def test_the_peer_s_end_is_noted_while_output_waits() -> None:
    peer = opened(window=0)
    call(peer).send(b"hello")
    call(peer).end(OK)

    peer.send(f.data(1, f.message(b"not heard")), f.data(1, b"half", end=True))
    peer.send(f.window_update(1, 10))

    assert peer.trailers(1) == {"grpc-status": "0"}
    assert peer.resets(1) == []
    assert peer.handlers[1].messages == []


def test_output_that_nobody_reads_costs_its_stream() -> None:
    peer = opened(window=0, streams=2, stall_seconds=30.0)
    call(peer).send(b"hello")
    peer.now += 20
    call(peer, 3).send(b"hello")
    peer.now += 11
    peer.connection.look()
    peer.hear()

    assert peer.resets(1) == [8]
    assert peer.resets(3) == []
    assert peer.handlers[1].over == "cancelled"
    assert [(one.code, one.stream_id) for one in peer.violations] == [(8, 1)]


def test_whoever_reads_a_little_keeps_the_stream() -> None:
    peer = opened(window=0, stall_seconds=30.0)
    call(peer).send(b"hello")
    for _ in range(5):
        peer.now += 29
        peer.send(f.window_update(1, 1))
        peer.connection.look()

    assert peer.resets(1) == []
    assert len(peer.body(1)) == 5


@pytest.mark.parametrize(
    "begun",
    [b"", f.PREFACE[:9], f.PREFACE, f.PREFACE + f.settings()[:5]],
    ids=["nothing", "half a preface", "no SETTINGS", "half of SETTINGS"],
)
def test_a_connection_has_to_begin(begun: bytes) -> None:
    peer = Peer(greeted=False, preface_seconds=10.0)
    peer.send(begun)
    peer.now += 10
    peer.connection.look()
    assert not peer.connection.closing
    peer.now += 1

    peer.connection.look()
    peer.connection.look()
    peer.hear()

    assert peer.connection.closing
    assert peer.goaways() == [(0, 11)]
    assert len(peer.violations) == 1


def test_a_field_block_that_is_begun_has_to_be_completed() -> None:
    peer = opened(preface_seconds=10.0)
    peer.now += 100
    peer.send(f.begun(3, f.block()))
    peer.connection.look()
    assert not peer.connection.closing
    peer.now += 11
    peer.send(f.continued(3))

    peer.connection.look()
    peer.hear()

    assert peer.goaways() == [(1, 11)]
    assert peer.handlers[1].over == "cancelled"
