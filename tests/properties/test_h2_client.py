"""
A strict client over one connection, at any pace: what it sends comes back whole and in order.

The `h2` library plays the client and raises whatever a frame of ours breaks. Bytes of both sides
arrive in pieces of any size, windows shrink and grow, streams come and go; and where a client is no
client at all, nothing is raised and nothing grows.
"""

from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from support import h2_frames as f
from support.h2_client import Client
from support.h2_peer import Peer

WINDOW, FRAME = 4, 5

SIZES = st.one_of(st.sampled_from([0, 1, 5, 1_000, 16_384, 40_000]), st.integers(0, 300))
STREAMS = st.integers(0, 3)
ACTS = st.lists(
    st.one_of(
        st.tuples(st.just("open"), st.sampled_from([0, 0, 40_000])),
        st.tuples(st.just("say"), STREAMS, SIZES),
        st.tuples(st.just("say"), STREAMS, SIZES),
        st.tuples(st.just("push"), STREAMS, st.integers(1, 200)),
        st.tuples(st.just("close"), STREAMS, st.sampled_from(["data", "trailers"])),
        st.tuples(st.just("reset"), STREAMS),
        st.tuples(st.just("hold"), STREAMS),
        st.tuples(st.just("release"), STREAMS),
        st.tuples(st.just("widen"), STREAMS, st.integers(1, 50_000)),
        st.tuples(st.just("widen_connection"), st.integers(1, 50_000)),
        st.tuples(st.just("set"), st.just(WINDOW), st.sampled_from([0, 1, 100, 70_000])),
        st.tuples(st.just("set"), st.just(FRAME), st.integers(16_384, 40_000)),
        st.tuples(st.just("ping")),
        st.tuples(st.just("deliver"), st.integers(1, 50_000)),
        st.tuples(st.just("deliver"), st.integers(1, 60)),
        st.tuples(st.just("hear"), st.integers(1, 50_000)),
        st.tuples(st.just("hear"), st.integers(1, 60)),
        st.tuples(st.just("settle")),
    ),
    min_size=5,
    max_size=60,
)


def act(client: Client, name: str, *given_: Any) -> None:
    """Do what a tuple says; streams are meant by their place among those that there are."""
    if name in ("say", "push", "close", "reset", "hold", "release", "widen"):
        place, *given_ = given_
        stream = list(client.talks)[place % len(client.talks)]
        if name in ("hold", "release"):
            handler = client.handlers.get(stream)
            if handler is not None:
                getattr(handler.call, name)()
        else:
            getattr(client, name)(stream, *given_)
    elif name == "ping":
        client.h2.ping(b"12345678")
    elif name == "settle":
        client.settle()
        check_windows(client)
    else:
        getattr(client, name)(*given_)


def check_windows(client: Client) -> None:
    """Assert that both sides count alike what each may send; true while nothing is under way."""
    ours, theirs = client.connection, client.h2
    assert theirs.inbound_flow_control_window == ours.outbox.window
    assert ours.outbox.initial_window == theirs.local_settings.initial_window_size
    assert ours.outbox.max_frame_bytes == theirs.local_settings.max_frame_size
    left = client.limits.connection_window_bytes - ours.unacknowledged
    assert left == theirs.outbound_flow_control_window
    for stream, call in ours.calls.items():
        seen = theirs.streams[stream]
        assert seen.inbound_flow_control_window == ours.outbox.initial_window + call.granted
        left = client.limits.stream_window_bytes - call.unacknowledged
        assert call.remote_closed or left == seen.outbound_flow_control_window


@given(
    acts=ACTS,
    streams=st.integers(1, 3),
    window=st.sampled_from([0, 1, 100, 65_535, 1 << 20]),
    slice_seconds=st.sampled_from([0.0, 5.0, 1e9]),
)
def test_a_strict_client_gets_back_what_it_sent(
    acts: list[tuple[Any, ...]], streams: int, window: int, slice_seconds: float
) -> None:
    client = Client(slice_seconds)
    client.set(WINDOW, window)
    for _ in range(streams):
        client.open(0)
    client.settle()
    for name, *given_ in acts:
        act(client, name, *given_)

    client.finish()

    assert client.violations == []
    for talk in client.talks.values():
        if not talk.reset:
            assert talk.sent == talk.heard
            assert talk.status == "0"
    check_windows(client)
    connection = client.connection
    assert connection.calls == connection.outbox.blocked == connection.outbox.thirsty == {}
    assert connection._buffer == b""
    assert connection._block is None
    assert all(one.over for one in client.handlers.values())
    assert all(one.call.queued == 0 and not one.call.waiting for one in client.handlers.values())


GREETING = f.PREFACE + f.settings({WINDOW: 100})
RECORDING = b"".join(
    (
        GREETING,
        f.headers(1),
        f.data(1, f.message(b"hello") + f.message(bytes(300))),
        f.begun(3, f.block()[:9]),
        f.continued(3, f.block()[9:], end=True),
        f.data(3, f.message(b"hello")[:7], padding=5),
        f.window_update(0, 1_000),
        f.window_update(1, 500),
        f.ping(),
        f.data(3, f.message(b"hello")[7:]),
        f.settings({WINDOW: 7, FRAME: 20_000}),
        f.priority(5),
        f.headers(5, flags=["PADDED", "PRIORITY"], pad_length=3),
        f.headers(3, [("x-end", "1")], end=True),
        f.rst(5),
        f.raw(f.UNKNOWN, 0, 0, b"grease"),
        f.data(1, b"", end=True),
        f.goaway(),
    )
)

LIMITS = {
    "max_streams": 8,
    "max_message_bytes": 1_000,
    "stream_window_bytes": 2_000,
    "connection_window_bytes": 1 << 20,
    "max_field_block_bytes": 1_000,
    "max_queued_bytes": 500,
    "slice_seconds": 0.0,
}


def mutated(recording: bytes, changes: Sequence[tuple[str, int, bytes]]) -> bytes:
    """The recording with bytes overwritten, inserted, repeated or left out."""
    wire = bytearray(recording)
    for how, place, piece in changes:
        at = place % (len(wire) + 1)
        if how == "overwrite":
            wire[at : at + len(piece)] = piece
        elif how == "insert":
            wire[at:at] = piece
        elif how == "repeat":
            wire[at:at] = wire[at : at + 9 * len(piece)]
        else:
            del wire[at : at + len(piece)]
    return bytes(wire)


MUTATED = st.builds(
    mutated,
    st.just(RECORDING),
    st.lists(
        st.tuples(
            st.sampled_from(["overwrite", "insert", "repeat", "leave out"]),
            st.integers(0, 1 << 16),
            st.binary(min_size=1, max_size=12),
        ),
        max_size=6,
    ),
)
FRAMES = st.lists(
    st.builds(
        f.raw,
        st.integers(0, 10),
        st.integers(0, 255),
        st.integers(0, 9),
        st.one_of(
            st.binary(max_size=30),
            st.sampled_from([f.block(), f.message(), bytes(4), b"\0\0\0\1", bytes(900)]),
        ),
    ),
    max_size=40,
).map(lambda frames: GREETING + b"".join(frames))
ANYTHING = st.one_of(
    MUTATED,
    FRAMES,
    st.binary(max_size=300),
    st.binary(max_size=300).map(lambda one: GREETING + one),
)


def check_bounds(peer: Peer) -> None:
    """Assert that nothing has grown beyond its limit."""
    connection, limits = peer.connection, peer.connection.limits
    assert len(connection._buffer) < 9 + 16_384
    assert len(connection.calls) <= limits.max_streams
    assert (
        sum(map(len, connection._block.pieces if connection._block else ()))
        <= limits.max_field_block_bytes + 16_384
    )
    for call in connection.calls.values():
        assert call.queued <= limits.max_queued_bytes + limits.max_message_bytes + 5
        assert sum(map(len, call._inbox or ())) <= limits.stream_window_bytes
        assert len(call._partial or b"") <= limits.max_message_bytes + 5


@given(wire=ANYTHING, size=st.integers(1, 400), reset=st.booleans())
def test_whatever_comes_nothing_is_raised_and_nothing_grows(
    wire: bytes, size: int, reset: bool
) -> None:
    peer = Peer(greeted=False, **LIMITS)
    connection = peer.connection

    for start in range(0, len(wire), size):
        peer.now += 0.1
        connection.receive(wire[start : start + size])
        turns = 0
        while connection.work():
            turns += 1
            peer.now += 0.1
            assert turns <= len(wire) // 9
        peer.hear()
        check_bounds(peer)
        connection.look()

    was_open = not connection.closing
    assert was_open or connection.calls == {}
    connection.shut_down() if reset else connection.lost()
    assert connection.calls == connection.outbox.blocked == connection.outbox.thirsty == {}
    assert all(one.over for one in peer.handlers.values())


def test_the_recording_is_of_a_client_that_keeps_to_the_standard() -> None:
    peer = Peer(greeted=False)

    peer.send(RECORDING)

    assert peer.violations == []
    assert peer.handlers[3].messages == [b"hello"]
    assert peer.trailers(3)["grpc-status"] == "0"
