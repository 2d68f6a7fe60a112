"""The end of a connection: announced twice, streams run to their end, and then it is closed."""

from typing import Any

import pytest
from hyperframe.frame import GoAwayFrame, HeadersFrame, PingFrame

from epp.extproc.h2.call import OK
from support import h2_frames as f
from support.h2_peer import Echo, Listener, Peer

ALL = (1 << 31) - 1


def opened(serve: Any = Echo, **limits: Any) -> Peer:
    """A peer whose stream 1 is open."""
    peer = Peer(serve=serve, **limits)
    peer.send(f.headers(1))
    return peer


def draining(**limits: Any) -> Peer:
    peer = opened(**limits)
    peer.connection.drain()
    peer.hear()
    return peer


def test_a_drain_asks_for_no_more_streams_and_serves_those_under_way() -> None:
    peer = opened()

    peer.connection.drain()

    goaway, ping = peer.hear()
    assert isinstance(goaway, GoAwayFrame)
    assert isinstance(ping, PingFrame)
    assert peer.goaways() == [(ALL, 0)]
    peer.send(f.headers(3))
    assert peer.echoes(3)
    assert not peer.connection.closing


def test_the_answer_to_the_ping_names_the_last_stream() -> None:
    peer = draining()
    (ping,) = [one for one in peer.told if isinstance(one, PingFrame)]

    peer.send(f.headers(3), f.ping(ping.opaque_data, ack=True))

    assert peer.goaways() == [(ALL, 0), (3, 0)]
    assert not peer.connection.closing


def test_the_answer_to_another_ping_does_not() -> None:
    peer = draining()

    peer.send(f.ping(ack=True), f.ping(b"draining"))

    assert peer.goaways() == [(ALL, 0)]


def test_without_an_answer_patience_ends() -> None:
    peer = draining()

    peer.connection.refuse_new()
    peer.connection.refuse_new()
    peer.hear()

    assert peer.goaways() == [(ALL, 0), (1, 0)]


def test_what_is_opened_after_the_last_is_ignored() -> None:
    peer = draining()
    peer.connection.refuse_new()
    peer.hear()
    encoder = f.hpack.Encoder()
    first, again = encoder.encode([*f.fields(), ("x", "y")]), encoder.encode([("x", "y")])

    answer = peer.send(
        f.raw(f.HEADERS, f.END_HEADERS, 3, first),
        f.data(3, f.message()),
        f.window_update(3, 1),
        f.raw(f.HEADERS, f.END_HEADERS | f.END_STREAM, 3, again),
        f.rst(3),
        f.headers(5, f.fields({":path": None})),
    )

    assert answer == []
    assert peer.violations == []
    assert list(peer.handlers) == [1]
    assert peer.echoes(1)


def test_what_is_ignored_still_counts_for_the_connection_s_window() -> None:
    peer = draining()
    peer.connection.refuse_new()
    peer.send(f.headers(3))
    before = len(peer.told)

    for _ in range(512):
        peer.send(f.data(3, bytes(16_384)))

    assert [(one.stream_id, one.window_increment) for one in peer.told[before:]] == [(0, 8 << 20)]


def test_the_connection_closes_with_its_last_stream() -> None:
    peer = draining()
    peer.connection.refuse_new()

    assert peer.echoes(1)
    assert peer.connection.closing
    assert peer.send(f.headers(3), f.ping()) == []


def test_it_closes_though_the_last_stream_ends_between_two_reads() -> None:
    peer = draining(serve=Listener)
    peer.send(f.data(1, end=True))
    peer.connection.refuse_new()
    assert not peer.connection.closing

    peer.handlers[1].call.end(OK)
    peer.handlers[1].call.flush()

    assert peer.connection.closing
    assert peer.trailers(1)["grpc-status"] == "0"


def test_it_closes_after_what_waits_for_windows() -> None:
    peer = Peer(settings={4: 0})
    peer.send(f.headers(1), f.data(1, f.message(), end=True))
    peer.connection.refuse_new()
    assert not peer.connection.closing

    peer.send(f.window_update(1, 100))

    assert peer.connection.closing
    assert f.message() == peer.body(1)


@pytest.mark.parametrize("ends", [f.rst(1), f.data(1, b"\1"), f.data(1, b"\0", end=True)])
def test_it_closes_however_the_last_stream_ends(ends: bytes) -> None:
    peer = draining()
    peer.connection.refuse_new()

    peer.send(ends)

    assert peer.connection.closing
    assert peer.connection.calls == {}


def test_an_idle_connection_closes_at_once() -> None:
    peer = Peer()

    peer.connection.drain()
    peer.connection.drain()
    peer.connection.refuse_new()
    peer.connection.drain()
    peer.hear()

    assert peer.connection.closing
    assert peer.goaways() == [(ALL, 0), (0, 0)]


def test_a_peer_that_leaves_is_served_to_its_end() -> None:
    peer = opened()

    peer.send(f.goaway(), f.headers(3))

    assert not peer.connection.closing
    assert peer.echoes(1)
    assert not peer.connection.closing
    assert peer.echoes(3)
    assert peer.connection.closing
    assert peer.goaways() == [(3, 0)]


def test_a_peer_that_leaves_with_nothing_open_is_let_go() -> None:
    peer = Peer()

    peer.send(f.goaway() + f.ping())

    assert peer.connection.closing
    assert isinstance(peer.told[-2], PingFrame)
    assert peer.goaways() == [(0, 0)]


def test_what_came_with_the_peer_s_leave_is_handled_in_however_many_slices() -> None:
    peer = Peer(slice_seconds=-1.0)

    peer.send(f.goaway() + f.headers(1) + f.data(1, f.message(), end=True))

    assert f.message() == peer.body(1)
    assert peer.connection.closing


def test_shutting_down_cuts_what_runs_and_says_so() -> None:
    peer = opened()
    peer.send(f.headers(3))

    peer.connection.shut_down()
    peer.hear()

    assert peer.resets(1) == peer.resets(3) == [8]
    assert peer.goaways() == [(3, 0)]
    assert {"cancelled"} == {one.over for one in peer.handlers.values()}
    assert peer.connection.closing


def test_shutting_down_twice_is_shutting_down_once() -> None:
    peer = draining()

    peer.connection.refuse_new()
    peer.connection.shut_down()
    peer.connection.shut_down()
    peer.hear()

    assert peer.goaways() == [(ALL, 0), (1, 0)]
    assert peer.resets(1) == [8]


def test_a_connection_that_closes_is_not_drained() -> None:
    peer = Peer()
    peer.connection.refuse_new()

    peer.connection.drain()
    peer.hear()

    assert peer.goaways() == [(0, 0)]


def test_a_lost_connection_ends_every_call_once() -> None:
    peer = opened(settings={4: 1 << 20})
    peer.send(f.headers(3), *5 * [f.data(3, f.message(bytes(16_379)))])
    assert list(peer.connection.outbox.thirsty) == [3]

    peer.connection.lost()
    peer.connection.lost()
    peer.connection.shut_down()

    assert {"cancelled"} == {one.over for one in peer.handlers.values()}
    assert peer.hear() == []
    assert peer.connection.outbox.thirsty == peer.connection.outbox.blocked == {}


def test_frames_after_the_end_are_not_handled() -> None:
    peer = Peer()
    peer.connection.refuse_new()
    peer.hear()

    peer.connection.receive(f.headers(1))

    assert not peer.connection.work()
    assert peer.hear() == []
    assert peer.connection._buffer == b""


def test_a_response_begun_is_not_begun_again() -> None:
    peer = opened()

    peer.send(*(f.data(1, f.message()) for _ in range(3)))

    assert len([one for one in peer.told if isinstance(one, HeadersFrame)]) == 1
