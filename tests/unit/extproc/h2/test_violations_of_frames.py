"""What no client may send, frame by frame: the preface, sizes, and sections 6.1 to 6.10."""

from epp.extproc.h2.frames import ErrorCode
from support import h2_frames as f
from support.h2_violations import Row, check, parametrised, play

PROTOCOL = ErrorCode.PROTOCOL_ERROR
FLOW_CONTROL = ErrorCode.FLOW_CONTROL_ERROR
SIZE = ErrorCode.FRAME_SIZE_ERROR
REST = (1 << 31) - 1 - 65_535
"""What widens a window of the default size to the largest there may be."""
BLOCK = f.block()
NONE = f.number(0)


def before_settings(what: str, frame: bytes) -> Row:
    return Row("3.4", f"{what} before SETTINGS", f.PREFACE + frame, PROTOCOL, greeted=False)


def setting(what: str, name: int, value: int, code: ErrorCode) -> Row:
    return Row("6.5.2", what, f.settings() + raw_setting(name, value), code)


def raw_setting(name: int, value: int) -> bytes:
    return f.raw(f.SETTINGS, 0, 0, name.to_bytes(2) + f.number(value))


def interrupted(what: str, frame: bytes) -> Row:
    return Row(
        "6.10", f"a field block is interrupted by {what}", f.begun(3, BLOCK) + frame, PROTOCOL
    )


def of_size(section: str, what: str, kind: int, stream: int, size: int, flags: int = 0) -> Row:
    frame = f.raw(kind, flags, stream, bytes(size))
    return Row(section, f"{what} of {size} bytes", f.headers(3) + frame, SIZE)


@parametrised(
    Row("3.4", "a request of HTTP/1.1", b"GET / HTTP/1.1\r\n\r\n", PROTOCOL, greeted=False),
    Row("3.4", "a preface with a wrong end", f.PREFACE[:-1] + b"x", PROTOCOL, greeted=False),
    before_settings("a PING", f.ping()),
    before_settings("HEADERS", f.headers(1)),
    before_settings("DATA", f.data(1, b"x")),
    before_settings("an unknown frame", f.raw(f.UNKNOWN, 0, 0)),
    before_settings("an acknowledgement", f.raw(f.SETTINGS, f.ACK, 0)),
    Row("4.2", "DATA of 16,385 bytes", f.headers(3) + f.raw(0, 0, 3, bytes(16_385)), SIZE),
    Row("4.2", "an unknown frame of 16,385 bytes", f.raw(f.UNKNOWN, 0, 3, bytes(16_385)), SIZE),
)
def test_a_connection_begins_with_the_preface_and_frames_are_small(row: Row, pieces: int) -> None:
    peer = play(row, pieces)

    check(row, peer)


@parametrised(
    Row("6.1", "DATA on stream 0", f.raw(f.DATA, 0, 0, b"x"), PROTOCOL),
    Row("6.1", "padding as long as its frame", f.headers(3) + f.raw(0, 8, 3, b"\3ab"), PROTOCOL),
    Row("6.1", "padding longer than its frame", f.headers(3) + f.raw(0, 8, 3, b"\xff"), PROTOCOL),
    Row("6.1", "padded DATA without the length", f.headers(3) + f.raw(0, 8, 3), SIZE),
    Row("6.2", "HEADERS on stream 0", f.raw(f.HEADERS, 5, 0, BLOCK), PROTOCOL),
    Row("6.2", "padding as long as HEADERS", f.raw(f.HEADERS, 0xC, 3, b"\3ab"), PROTOCOL),
    Row("6.2", "padding in place of a priority", f.raw(f.HEADERS, 0x2C, 3, b"\5abcdef"), PROTOCOL),
    Row("6.2", "padded HEADERS without the length", f.raw(f.HEADERS, 0xC, 3), SIZE),
    Row("6.2", "HEADERS too short for a priority", f.raw(f.HEADERS, 0x24, 3, b"abcd"), SIZE),
    Row("6.2", "padded HEADERS too short for it", f.raw(f.HEADERS, 0x2C, 3, b"\0abcd"), SIZE),
    Row("6.3", "PRIORITY on stream 0", f.raw(f.PRIORITY, 0, 0, bytes(5)), PROTOCOL),
    Row("6.3", "PRIORITY of 4 bytes", f.headers(3) + f.raw(f.PRIORITY, 0, 3, bytes(4)), SIZE, 3),
    Row("6.3", "PRIORITY of 6 bytes", f.headers(3) + f.raw(f.PRIORITY, 0, 3, bytes(6)), SIZE, 3),
    Row("6.4", "PRIORITY of 4 bytes on an idle stream", f.raw(f.PRIORITY, 0, 3, bytes(4)), SIZE),
    Row("6.4", "PRIORITY of 4 bytes on an even stream", f.raw(f.PRIORITY, 0, 2, bytes(4)), SIZE),
    Row("6.4", "RST_STREAM on stream 0", f.raw(f.RST_STREAM, 0, 0, bytes(4)), PROTOCOL),
    of_size("6.4", "RST_STREAM", f.RST_STREAM, 3, 3),
    of_size("6.4", "RST_STREAM", f.RST_STREAM, 3, 5),
)
def test_frames_of_streams_are_whole(row: Row, pieces: int) -> None:
    peer = play(row, pieces)

    check(row, peer)


@parametrised(
    Row("6.5", "SETTINGS on a stream", f.raw(f.SETTINGS, 0, 1), PROTOCOL),
    of_size("6.5", "SETTINGS", f.SETTINGS, 0, 5),
    of_size("6.5", "an acknowledgement", f.SETTINGS, 0, 6, f.ACK),
    setting("ENABLE_PUSH of 2", 2, 2, PROTOCOL),
    setting("INITIAL_WINDOW_SIZE beyond the largest", 4, 1 << 31, FLOW_CONTROL),
    setting("MAX_FRAME_SIZE below the least", 5, 16_383, PROTOCOL),
    setting("MAX_FRAME_SIZE beyond the largest", 5, 1 << 24, PROTOCOL),
    Row("6.6", "PUSH_PROMISE", f.raw(f.PUSH_PROMISE, 4, 1, f.number(2) + BLOCK), PROTOCOL),
    Row("6.7", "PING on a stream", f.raw(f.PING, 0, 1, bytes(8)), PROTOCOL),
    of_size("6.7", "PING", f.PING, 0, 7),
    of_size("6.7", "PING", f.PING, 0, 9),
    of_size("6.7", "the answer to a PING", f.PING, 0, 0, f.ACK),
    Row("6.8", "GOAWAY on a stream", f.raw(f.GOAWAY, 0, 1, bytes(8)), PROTOCOL),
    of_size("6.8", "GOAWAY", f.GOAWAY, 0, 7),
)
def test_frames_of_the_connection_are_whole(row: Row, pieces: int) -> None:
    peer = play(row, pieces)

    check(row, peer)


@parametrised(
    of_size("6.9", "WINDOW_UPDATE", f.WINDOW_UPDATE, 0, 3),
    of_size("6.9", "WINDOW_UPDATE", f.WINDOW_UPDATE, 3, 5),
    Row("6.9", "a connection's window grows by 0", f.raw(8, 0, 0, NONE), PROTOCOL),
    Row("6.9", "a stream's window grows by 0", f.headers(3) + f.raw(8, 0, 3, NONE), PROTOCOL, 3),
    Row(
        "6.9",
        "a stream's window grows by a reserved bit",
        f.headers(3) + f.raw(8, 0, 3, f.number(1 << 31)),
        PROTOCOL,
        3,
    ),
    Row("6.9.1", "the connection's window overflows", f.window_update(0, REST + 1), FLOW_CONTROL),
    Row(
        "6.9.1",
        "a stream's window overflows",
        f.headers(3) + f.window_update(3, REST) + f.window_update(3, 1),
        FLOW_CONTROL,
        3,
    ),
    Row(
        "6.9.2",
        "INITIAL_WINDOW_SIZE makes a stream's window overflow",
        f.headers(3) + f.window_update(3, 1) + f.settings({4: (1 << 31) - 1}),
        FLOW_CONTROL,
    ),
)
def test_windows_grow_within_bounds(row: Row, pieces: int) -> None:
    peer = play(row, pieces)

    check(row, peer)


@parametrised(
    Row("6.10", "CONTINUATION without HEADERS", f.continued(1, BLOCK, end=True), PROTOCOL),
    Row("6.10", "CONTINUATION on an idle stream", f.continued(3, BLOCK, end=True), PROTOCOL),
    Row("6.10", "CONTINUATION on stream 0", f.begun(3, BLOCK) + f.raw(9, 4, 0), PROTOCOL),
    Row("6.10", "CONTINUATION after the end", f.headers(3) + f.continued(3, end=True), PROTOCOL),
    interrupted("CONTINUATION of another", f.continued(1, end=True)),
    interrupted("DATA", f.data(3, b"x")),
    interrupted("the HEADERS of another", f.headers(5)),
    interrupted("HEADERS", f.headers(3)),
    interrupted("PRIORITY", f.priority(3)),
    interrupted("RST_STREAM", f.rst(3)),
    interrupted("SETTINGS", f.settings()),
    interrupted("PING", f.ping()),
    interrupted("GOAWAY", f.goaway()),
    interrupted("WINDOW_UPDATE", f.window_update(0, 1)),
    interrupted("an unknown frame", f.raw(f.UNKNOWN, 0, 3)),
)
def test_field_blocks_stay_together(row: Row, pieces: int) -> None:
    peer = play(row, pieces)

    check(row, peer)
