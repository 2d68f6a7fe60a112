"""What a client may do, however odd it looks: no error comes of it, and other streams go on."""

from typing import Any, NamedTuple

import pytest
from hyperframe.frame import HeadersFrame, PingFrame, SettingsFrame

from epp.extproc.h2.call import Call, Handler
from support import h2_frames as f
from support.h2_peer import Echo, Listener, Peer

WITNESS = 1
OPEN = f.headers(3)
ENDED = f.headers(3, end=True)
RESET = OPEN + f.rst(3)
BLOCK = f.block()
LARGEST = (1 << 31) - 1


class Row(NamedTuple):
    section: str
    """Of RFC 9113."""
    what: str
    sent: bytes
    serve: Any = Echo


def refusing(call: Call) -> Handler | None:
    """End each call but the witness in the frame that begins it."""
    if call.id == WITNESS:
        return Echo(call)
    call.refuse(12, "no such method")
    return None


def crossing(what: str, *frames: bytes) -> Row:
    """Frames that were under way when we ended a stream."""
    return Row("5.1", f"{what} crosses our end of the stream", OPEN + b"".join(frames), refusing)


def setting(what: str, name: int, value: int) -> Row:
    return Row("6.5.2", what, f.raw(f.SETTINGS, 0, 0, name.to_bytes(2) + f.number(value)))


def request(section: str, what: str, *pairs: tuple[str | bytes, str | bytes]) -> Row:
    return Row(section, what, f.headers(3, pairs))


def extended(section: str, what: str, *more: tuple[str | bytes, str | bytes]) -> Row:
    return request(section, what, *f.fields(), *more)


ROWS = [
    Row("4.1", "the reserved bit", f.raw(f.WINDOW_UPDATE, 0, 1 << 31, f.number(1 << 31 | 1))),
    Row("4.1", "flags that SETTINGS does not have", f.raw(f.SETTINGS, 0xFE, 0)),
    Row("4.1", "flags that PING does not have", f.raw(f.PING, 0xFE, 0, bytes(8))),
    Row("4.1", "flags that HEADERS does not have", f.raw(f.HEADERS, 0xD6 & ~0x28, 3, BLOCK)),
    Row("4.1", "flags that DATA does not have", OPEN + f.raw(f.DATA, 0xF6, 3, f.message())),
    Row("4.1", "unknown frames on the connection", f.raw(f.UNKNOWN, 0xFF, 0, b"x")),
    Row("5.5", "unknown frames on an idle stream", f.raw(f.UNKNOWN, 0xFF, 5, b"x")),
    Row("5.5", "unknown frames on a server's stream", f.raw(0xFF, 0xFF, 2)),
    Row("4.2", "a frame of 16,384 bytes", f.raw(f.UNKNOWN, 0, 0, bytes(16_384))),
    Row("4.3", "a table of another size", f.raw(f.HEADERS, 4, 3, b"\x20\x3f\xe1\x1f" + BLOCK)),
    Row("4.3", "a field that is never indexed", f.raw(f.HEADERS, 4, 3, BLOCK + b"\x10\1a\1b")),
    Row("5.1", "WINDOW_UPDATE after its own end", ENDED + f.window_update(3, 1)),
    Row("5.1", "WINDOW_UPDATE half closed", ENDED + f.window_update(3, 1), Listener),
    Row("5.1", "WINDOW_UPDATE after its own reset", RESET + f.window_update(3, 1)),
    Row("5.1", "RST_STREAM after its own end", ENDED + f.rst(3)),
    Row("5.1", "RST_STREAM half closed", ENDED + f.rst(3), Listener),
    Row("5.1", "RST_STREAM twice", RESET + f.rst(3)),
    Row("5.1", "PRIORITY after its own end", ENDED + f.priority(3)),
    Row("5.1", "PRIORITY half closed", ENDED + f.priority(3), Listener),
    Row("5.1", "PRIORITY after its own reset", RESET + f.priority(3)),
    crossing("DATA", f.data(3, f.message()), f.data(3, end=True)),
    crossing("a HEADERS frame", f.headers(3, [("a", "b")], end=True)),
    crossing("a malformed HEADERS frame", f.headers(3, [("A", "b")])),
    crossing("WINDOW_UPDATE", f.window_update(3, 1)),
    crossing("RST_STREAM", f.rst(3)),
    Row("5.1.1", "ids passed over", f.headers(9_001)),
    Row("5.1.1", "the largest id", f.headers(LARGEST)),
    Row("6.1", "padding of no bytes", OPEN + f.data(3, f.message(), padding=0)),
    Row("6.1", "the longest padding", OPEN + f.data(3, f.message(), padding=255)),
    Row("6.1", "DATA that is all padding", OPEN + f.data(3, padding=9)),
    Row("6.1", "DATA of nothing that ends", OPEN + f.data(3, end=True)),
    Row("6.2", "padded HEADERS", f.headers(3, flags=["PADDED"], pad_length=9)),
    Row("6.2", "HEADERS with a priority", f.headers(3, flags=["PRIORITY"], depends_on=1)),
    Row(
        "6.2",
        "padded HEADERS with a priority",
        f.headers(3, flags=["PADDED", "PRIORITY"], pad_length=9, depends_on=3),
    ),
    Row("6.3", "PRIORITY on an idle stream", f.priority(7)),
    Row("6.3", "PRIORITY on a server's stream", f.priority(2)),
    Row("6.3", "a stream that depends on itself", f.priority(3, depends_on=3)),
    Row("6.4", "an error code that is unknown", OPEN + f.rst(3, 0xFFFF)),
    Row("6.5", "an acknowledgement of nothing", f.raw(f.SETTINGS, f.ACK, 0)),
    Row("6.5", "SETTINGS amid a stream", OPEN + f.settings({4: 0}) + f.settings({4: 65_535})),
    setting("unknown settings", 0xFFFF, 7),
    setting("a setting of 0", 0, 0xFFFF_FFFF),
    setting("no dynamic table", 1, 0),
    setting("the largest dynamic table", 1, 0xFFFF_FFFF),
    setting("no push", 2, 0),
    setting("push, which we do not", 2, 1),
    setting("no stream of ours", 3, 0),
    setting("the largest window", 4, LARGEST),
    setting("the smallest frames", 5, 16_384),
    setting("the largest frames", 5, (1 << 24) - 1),
    setting("no fields", 6, 0),
    Row("6.7", "the answer to a PING that we did not send", f.ping(ack=True)),
    Row("6.7", "the answer to our last PING before it is sent", f.ping(b"draining", ack=True)),
    Row("6.8", "GOAWAY while streams are open", f.goaway()),
    Row("6.8", "GOAWAY that goes on", f.goaway(code=0xFFFF) + f.raw(f.GOAWAY, 0, 0, bytes(99))),
    Row("6.9", "the largest window of a connection", f.window_update(0, LARGEST - 65_535)),
    Row("6.9", "the largest window of a stream", OPEN + f.window_update(3, LARGEST - 65_535)),
    Row("6.10", "a block in pieces", f.begun(3, BLOCK[:3]) + f.continued(3, BLOCK[3:], end=True)),
    Row(
        "6.10",
        "pieces of nothing",
        f.begun(3, b"") + 15 * f.continued(3) + f.continued(3, BLOCK, end=True),
    ),
    Row("8.1", "trailers", OPEN + f.headers(3, [("x-checksum", "1")], end=True)),
    Row("8.1", "trailers of nothing", OPEN + f.headers(3, [], end=True)),
    Row("8.1", "a request without a body", ENDED),
    extended("8.1.1", "a length that is announced", ("content-length", "10")),
    extended("8.1.1", "a length that is said twice", *[("content-length", "10")] * 2),
    extended("8.2.1", "a value that is empty", ("x-a", "")),
    extended("8.2.1", "a value beyond ASCII", ("x-a", b"\xe9\xff")),
    extended("8.2.1", "a value with a blank inside", ("x-a", "a \t b")),
    extended("8.2.1", "every character of names", ("!#$%&'*+-.^_`|~09az", "x")),
    extended("8.2.1", "a field that is repeated", ("x-a", "1"), ("x-a", "2")),
    extended("8.2.3", "cookies in crumbs", ("cookie", "a=1"), ("cookie", "b=2")),
    request("8.3.1", "no :authority", *f.fields({":authority": None})),
    request("8.3.1", "pseudo-header fields in another order", *sorted(f.fields())),
    request("8.3.1", "OPTIONS of the server", *f.fields({":method": "OPTIONS", ":path": "*"})),
    request("8.5", "CONNECT", (":method", "CONNECT"), (":authority", "a:1")),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.section}: {row.what}")
@pytest.mark.parametrize("whole", [True, False], ids=["whole", "byte by byte"])
def test_it_is_no_error(row: Row, whole: bool) -> None:
    peer = Peer(serve=row.serve)
    peer.send(f.headers(WITNESS))

    for piece in [row.sent] if whole else [bytes((one,)) for one in row.sent]:
        peer.send(piece)

    assert peer.violations == []
    assert peer.goaways() == []
    assert not peer.connection.closing
    assert not peer.handlers[WITNESS].over
    peer.send(f.data(WITNESS, f.message(b"still here"), end=True))
    assert peer.handlers[WITNESS].messages[0] == b"still here"
    if row.serve is Echo:
        assert f.message(b"still here") == peer.body(WITNESS)
        assert peer.trailers(WITNESS)["grpc-status"] == "0"


def test_settings_and_pings_are_answered_in_their_order() -> None:
    first, second, third = Peer().send(f.settings({4: 1}), f.ping(b"abcdefgh"), f.settings())

    assert isinstance(first, SettingsFrame)
    assert isinstance(third, SettingsFrame)
    assert first.flags == third.flags == {"ACK"}
    assert isinstance(second, PingFrame)
    assert (second.flags, second.opaque_data) == ({"ACK"}, b"abcdefgh")


def test_what_we_are_is_said_before_anything_comes() -> None:
    settings, update = Peer(greeted=False, max_streams=7).hear()

    assert isinstance(settings, SettingsFrame)
    assert settings.settings == {3: 7, 4: 256 << 10, 6: 128 << 10}
    assert (update.stream_id, update.window_increment) == (0, (16 << 20) - 65_535)


def test_a_window_that_is_large_enough_is_not_widened() -> None:
    (settings,) = Peer(greeted=False, connection_window_bytes=65_535).hear()

    assert isinstance(settings, SettingsFrame)


def test_windows_may_be_used_to_their_last_byte() -> None:
    peer = Peer(serve=Listener, stream_window_bytes=10_000, connection_window_bytes=20_000)
    peer.send(f.headers(1), f.headers(3))

    answer = peer.send(f.data(1, bytes(9_999)) + f.data(3, bytes(10_000)) + f.data(1, bytes(1)))

    assert peer.violations == []
    assert {one.stream_id: one.window_increment for one in answer} == {
        1: 9_999,
        3: 10_000,
        0: 19_999,
    }


def test_field_blocks_in_pieces_are_measured_one_by_one() -> None:
    peer = Peer(max_field_block_bytes=len(BLOCK))

    for stream in range(1, 21, 2):
        peer.send(f.begun(stream, BLOCK[:20]), f.continued(stream, BLOCK[20:], end=True))

    assert peer.violations == []
    assert len(peer.handlers) == 10


def test_updates_of_windows_in_use_are_no_frames_that_carry_nothing() -> None:
    peer = Peer(idle_frame_rate=10)
    peer.send(f.headers(1))

    peer.send(20 * (f.window_update(0, 1) + f.window_update(1, 1)))

    assert peer.violations == []


def test_work_is_done_in_slices() -> None:
    peer = Peer(slice_seconds=-1.0)
    peer.connection.receive(3 * f.ping() + f.ping()[:-1])

    turns = [peer.connection.work() for _ in range(3)]

    assert turns == [True, True, True]
    assert len(peer.hear()) == 3
    assert not peer.connection.work()
    peer.connection.receive(f.ping()[-1:])
    assert not peer.connection.work()
    assert len(peer.hear()) == 1


def test_a_stream_that_was_refused_may_be_tried_again() -> None:
    peer = Peer(max_streams=1)
    peer.send(f.headers(1), f.headers(3), f.data(3, f.message()))
    peer.send(f.headers(3, [], end=True))

    peer.send(f.rst(1), f.headers(5))

    assert peer.resets(3) == [7]
    assert peer.echoes(5)


@pytest.mark.parametrize(
    ("limit", "frames"),
    [
        ("settings_rate", f.settings()),
        ("ping_rate", f.ping()),
        ("reset_rate", f.rst(1)),
        ("idle_frame_rate", f.priority(1)),
    ],
    ids=["SETTINGS", "PING", "RST_STREAM", "PRIORITY"],
)
def test_frames_may_come_again_and_again_over_time(limit: str, frames: bytes) -> None:
    peer = Peer(**{limit: 10})
    peer.send(f.headers(1))

    for _ in range(5):
        peer.now += 1
        peer.send(8 * frames)

    assert peer.violations == []


def test_frames_on_streams_that_ended_long_ago_are_ignored() -> None:
    peer = Peer(serve=refusing)
    peer.send(b"".join(f.headers(one) for one in range(3, 3_003, 2)))

    peer.send(f.headers(3, end=True), f.data(5, b"x"))

    assert peer.violations == []


def test_a_stream_that_ended_lately_is_known_though_many_older_ones_ended_after_it() -> None:
    peer = Peer()
    peer.send(b"".join(f.headers(one) for one in range(1, 2_401, 2)), f.headers(2_401, end=True))

    peer.send(b"".join(f.rst(one) for one in range(1, 2_401, 2)))
    peer.send(f.headers(2_401, end=True))

    assert peer.violations == []


def test_a_window_that_is_gone_does_not_overflow() -> None:
    peer = Peer()
    peer.send(f.headers(1), f.window_update(1, 1), f.rst(1), f.headers(3))

    peer.send(f.settings({4: LARGEST}))

    assert peer.violations == []
    assert peer.echoes(3)


def test_a_response_to_what_is_whole_needs_no_reset() -> None:
    peer = Peer(serve=refusing)

    peer.send(f.headers(3, end=True), f.headers(5))

    assert peer.trailers(3)["grpc-status"] == peer.trailers(5)["grpc-status"] == "12"
    assert peer.resets(3) == []
    assert peer.resets(5) == [0]
    assert [
        sum(isinstance(one, HeadersFrame) for one in peer.told if one.stream_id == stream)
        for stream in (3, 5)
    ] == [1, 1]
