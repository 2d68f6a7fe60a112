"""What one call takes: messages cut out of DATA, held, delivered late, or refused."""

from typing import Any

import pytest
from hyperframe.frame import WindowUpdateFrame

from epp.extproc.h2.call import OK, Call
from support import h2_frames as f
from support.h2_peer import Echo, Listener, Peer

WORDS = [b"one", b"", b"three", b"x" * 300, b"", b"six"]
STREAM = b"".join(f.message(word) for word in WORDS)


def opened(serve: Any = Listener, pairs: f.Fields | None = None, **limits: Any) -> Peer:
    """A peer whose stream 1 is open."""
    peer = Peer(serve=serve, **limits)
    peer.send(f.headers(1, pairs))
    return peer


def status(peer: Peer, stream: int = 1) -> tuple[str | None, str]:
    fields = peer.trailers(stream)
    return fields.get("grpc-status"), fields.get("grpc-message", "")


@pytest.mark.parametrize("cut", range(len(STREAM) + 1))
def test_messages_are_whole_wherever_they_are_cut(cut: int) -> None:
    peer = opened()

    peer.send(f.data(1, STREAM[:cut]), f.data(1, STREAM[cut:], end=True))

    assert [*WORDS, b"<end>"] == peer.handlers[1].messages


@pytest.mark.parametrize("size", range(1, 12))
def test_messages_are_whole_in_however_small_pieces(size: int) -> None:
    peer = opened()

    for start in range(0, len(STREAM), size):
        peer.send(f.data(1, STREAM[start : start + size], padding=size))

    assert peer.handlers[1].messages == WORDS


@pytest.mark.parametrize("cut", [1, 4, 5, 9])
@pytest.mark.parametrize("trailers", [True, False], ids=["trailers", "DATA"])
def test_half_a_message_at_the_end_is_an_error(cut: int, trailers: bool) -> None:
    peer = opened()

    peer.send(f.data(1, f.message(b"first") + f.message(b"hello")[:cut], end=not trailers))
    if trailers:
        peer.send(f.headers(1, [], end=True))

    assert status(peer) == ("13", "the stream ended in the middle of a message")
    assert peer.handlers[1].messages == [b"first"]
    assert peer.handlers[1].over == "cancelled"
    assert peer.connection.calls == {}
    assert peer.violations == []


@pytest.mark.parametrize("pieces", [1, 2, 3], ids=["at once", "in two", "in three"])
@pytest.mark.parametrize(
    ("encoding", "prefix", "expected"),
    [
        ("gzip", b"\1", ("12", "compressed messages (gzip) are not understood; send identity")),
        (None, b"\1", ("13", "compressed messages (identity) are not understood; send identity")),
        ("gzip", b"\2", ("13", "a message's first byte is neither 0 nor 1")),
        ("gzip", b"\xff", ("13", "a message's first byte is neither 0 nor 1")),
        ("gzip", b"\0\0\0\0\x65", ("8", "a message of 101 bytes is larger than 100")),
        ("gzip", b"\1\xff", ("12", "compressed messages (gzip) are not understood; send identity")),
        ("gzip", b"\0\xff", ("8", "a message of 4278190080 bytes is larger than 100")),
    ],
    ids=["gzip", "gzip unsaid", "2", "255", "101 bytes", "4 GB of gzip", "4 GB"],
)
def test_a_message_that_cannot_be_taken_ends_the_call(
    encoding: str | None, prefix: bytes, expected: tuple[str, str], pieces: int
) -> None:
    peer = opened(pairs=f.fields({"grpc-encoding": encoding}), max_message_bytes=100)
    wire = f.message(bytes(100)) + prefix.ljust(5, b"\0") + b"rest"

    size = -(-len(wire) // pieces)
    for start in range(0, len(wire), size):
        peer.send(f.data(1, wire[start : start + size]))

    assert expected == status(peer)
    assert peer.resets(1) == [0], "the rest is not needed"
    assert peer.handlers[1].messages == [bytes(100)]
    assert peer.handlers[1].over == "cancelled"
    assert peer.violations == []


@pytest.mark.parametrize("flag", [1, 2, 255])
def test_a_message_of_another_kind_is_not_taken_though_it_is_whole(flag: int) -> None:
    peer = opened()

    peer.send(f.data(1, bytes((flag,)) + f.message(b"hello")[1:]))

    assert status(peer)[0] == "13"
    assert peer.handlers[1].messages == []


@pytest.mark.parametrize("padding", [None, 7], ids=["plain", "padded"])
def test_a_body_of_the_announced_length_is_taken(padding: int | None) -> None:
    peer = opened(Echo, f.fields({"content-length": "20"}))

    peer.send(f.data(1, f.message(b"hello"), padding=padding))

    assert peer.handlers[1].messages == [b"hello"]
    peer.send(f.data(1, f.message(b"world"), padding=padding, end=True))
    assert status(peer) == ("0", "")


def test_one_byte_tells_that_a_message_is_compressed() -> None:
    peer = opened()

    peer.send(f.data(1, b"\1"))

    assert status(peer)[0] == "13"


def test_a_message_of_gzip_encoding_may_be_plain() -> None:
    peer = opened(Echo, f.fields({"grpc-encoding": "gzip"}))

    assert peer.echoes(1)


def test_a_held_call_hears_all_once_it_is_released() -> None:
    peer = opened()
    call = peer.handlers[1].call
    call.hold()

    peer.send(f.data(1, STREAM), f.headers(1, [], end=True))

    assert peer.handlers[1].messages == []
    assert call.waiting
    assert call.remote_closed
    call.release()
    assert [*WORDS, b"<end>"] == peer.handlers[1].messages
    assert not call.waiting


def test_the_end_of_a_stream_waits_with_the_call() -> None:
    peer = opened()
    call = peer.handlers[1].call
    call.hold()

    peer.send(f.data(1, end=True))

    assert call.waiting
    assert peer.handlers[1].messages == []
    call.release()
    assert peer.handlers[1].messages == [b"<end>"]


class OneAtATime(Listener):
    """Holds the call with each message."""

    def message(self, data: bytes) -> None:
        super().message(data)
        self.call.hold()


def test_a_call_may_be_held_again_by_what_was_waiting() -> None:
    peer = opened(OneAtATime)
    peer.send(f.data(1, f.message(b"a") + f.message(b"b") + f.message(b"c"), end=True))
    heard = peer.handlers[1].messages
    seen = [list(heard)]
    for _ in range(3):
        peer.handlers[1].call.release()
        seen.append(list(heard))

    assert seen == [[b"a"], [b"a", b"b"], [b"a", b"b", b"c"], [b"a", b"b", b"c", b"<end>"]]


class EndsAtOnce(Listener):
    """Has heard enough with the first message."""

    def message(self, data: bytes) -> None:
        super().message(data)
        self.over = "ended"
        self.call.send(b"reply")
        self.call.end(OK)


class HoldsAndEnds(EndsAtOnce):
    """Is not sure whether it has heard enough."""

    def message(self, data: bytes) -> None:
        self.call.hold()
        super().message(data)


def test_nothing_waits_for_a_call_that_is_over_while_its_output_does() -> None:
    peer = Peer(serve=HoldsAndEnds, settings={4: 0})

    peer.send(f.headers(1), f.data(1, STREAM))
    assert not peer.handlers[1].call.waiting
    peer.send(f.data(1, b"\0\0"))
    assert peer.handlers[1].call._partial is None
    peer.send(f.data(1, end=True))
    peer.handlers[1].call.release()
    peer.send(f.window_update(1, 100))

    assert [WORDS[0]] == peer.handlers[1].messages
    assert status(peer) == ("0", "")


@pytest.mark.parametrize("held", [True, False], ids=["held", "at once"])
def test_nothing_is_delivered_after_the_end(held: bool) -> None:
    peer = opened(EndsAtOnce)
    call = peer.handlers[1].call
    if held:
        call.hold()

    peer.send(f.data(1, STREAM + f.message(b"half")[:7]))
    if held:
        call.release()
        peer.hear()
    peer.send(f.data(1, b"of it", end=True))

    assert [WORDS[0]] == peer.handlers[1].messages
    assert f.message(b"reply") == peer.body(1)
    assert status(peer) == ("0", "")
    assert peer.resets(1) == [0]
    assert peer.violations == []


def test_a_call_that_ends_with_the_stream_is_not_reset() -> None:
    peer = opened(EndsAtOnce)

    peer.send(f.data(1, STREAM, end=True))

    assert status(peer) == ("0", "")
    assert peer.resets(1) == []


def test_a_call_that_is_over_says_nothing_more() -> None:
    peer = opened()
    call: Call = peer.handlers[1].call
    peer.send(f.rst(1))

    call.send(b"late")
    call.end(OK)
    call.release()

    assert peer.hear() == []
    assert peer.handlers[1].over == "cancelled"


def test_a_cancelled_call_forgets_what_waited() -> None:
    peer = opened()
    peer.handlers[1].call.hold()
    peer.send(f.data(1, STREAM))

    peer.send(f.rst(1))
    peer.handlers[1].call.release()

    assert peer.handlers[1].messages == []


def windows_opened(peer: Peer, stream: int) -> int:
    return sum(
        one.window_increment
        for one in peer.told
        if isinstance(one, WindowUpdateFrame) and one.stream_id == stream
    )


def test_windows_open_anew_when_half_is_used() -> None:
    peer = opened(stream_window_bytes=100, connection_window_bytes=65_535 * 2)
    before = windows_opened(peer, 0)

    peer.send(f.data(1, bytes(5 * 8), padding=8))
    assert windows_opened(peer, 1) == 0
    peer.send(f.data(1, bytes(5)))

    assert windows_opened(peer, 1) == 40 + 9 + 5
    peer.send(f.headers(3))
    for _ in range(1_024):
        peer.send(f.data(3, bytes(64)))
    assert windows_opened(peer, 0) == before + 54 + 1_024 * 64


def test_a_stream_that_waits_gets_no_window() -> None:
    peer = opened(stream_window_bytes=100)
    peer.handlers[1].call.hold()

    peer.send(f.data(1, f.message(bytes(85))))
    assert windows_opened(peer, 1) == 0
    peer.handlers[1].call.release()
    peer.hear()

    assert windows_opened(peer, 1) == 90


def test_a_call_that_ended_gets_no_window() -> None:
    peer = opened(EndsAtOnce, stream_window_bytes=100)

    peer.send(f.data(1, f.message(bytes(85))))

    assert windows_opened(peer, 1) == 0
    assert peer.trailers(1)["grpc-status"] == "0"


def test_a_stream_that_ended_gets_no_window() -> None:
    peer = opened(stream_window_bytes=100)
    peer.handlers[1].call.hold()

    peer.send(f.data(1, f.message(bytes(85)), end=True))
    peer.handlers[1].call.release()
    peer.send(f.headers(3), f.data(3, f.message(bytes(85)), end=True))

    assert windows_opened(peer, 1) == windows_opened(peer, 3) == 0


def test_a_call_that_nothing_serves_is_answered_at_once() -> None:
    def refuse(call: Call) -> None:
        if call.head.method == "GET":
            call.end_without_grpc(405)
        else:
            call.refuse(12, "no such method")

    peer = Peer(serve=refuse)
    peer.send(f.headers(1, f.fields({":method": "GET"}), end=True), f.headers(3))

    assert peer.trailers(1) == {":status": "405"}
    assert peer.trailers(3) == {
        ":status": "200",
        "content-type": "application/grpc",
        "grpc-status": "12",
        "grpc-message": "no such method",
    }
    assert peer.connection.calls == {}
