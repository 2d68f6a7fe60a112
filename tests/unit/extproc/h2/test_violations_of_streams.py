"""What no client may do with streams: their states, ids and windows, and floods of frames."""

from typing import Any

from epp.extproc.h2.call import Call, Handler
from epp.extproc.h2.frames import ErrorCode
from support import h2_frames as f
from support.h2_peer import Echo, Listener
from support.h2_violations import WITNESS, Row, check, parametrised, play

PROTOCOL = ErrorCode.PROTOCOL_ERROR
FLOW_CONTROL = ErrorCode.FLOW_CONTROL_ERROR
CLOSED = ErrorCode.STREAM_CLOSED
REFUSED = ErrorCode.REFUSED_STREAM
CALM = ErrorCode.ENHANCE_YOUR_CALM

OPEN = f.headers(3)
HALF_CLOSED = f.headers(3, end=True)
DATA_THAT_ENDS = f.data(3, b"x", padding=3, end=True)
RESET = f.headers(3) + f.rst(3)
MALFORMED = f.fields({":path": None})


def holding(call: Call) -> Handler:
    """Let the messages of each call but the witness wait."""
    if call.id != WITNESS:
        call.hold()
    return Echo(call)


def ending(call: Call) -> Handler | None:
    """End each call but the witness in the frame that begins it."""
    if call.id == WITNESS:
        return Echo(call)
    call.refuse(12, "no such method")
    return None


@parametrised(
    Row("5.1", "DATA on an idle stream", f.data(3, b"x"), PROTOCOL),
    Row("5.1", "WINDOW_UPDATE on an idle stream", f.window_update(3, 1), PROTOCOL),
    Row("5.1", "RST_STREAM on an idle stream", f.rst(3), PROTOCOL),
    Row("5.1", "DATA on an idle stream of the server's", OPEN + f.raw(0, 0, 2, b"x"), PROTOCOL),
    Row("5.1", "WINDOW_UPDATE on a server's", OPEN + f.raw(8, 0, 2, f.number(1)), PROTOCOL),
    Row("5.1", "RST_STREAM on a server's", OPEN + f.raw(3, 0, 2, f.number(8)), PROTOCOL),
    Row("5.1", "DATA after its end", HALF_CLOSED + f.data(3), CLOSED, 3, serve=Listener),
    Row("5.1", "more after its end", HALF_CLOSED + DATA_THAT_ENDS, CLOSED, 3, serve=Listener),
    Row("5.1", "HEADERS after its end", HALF_CLOSED * 2, CLOSED, 3, serve=Listener),
    Row("5.1", "DATA after both ends", HALF_CLOSED + f.data(3), CLOSED),
    Row("5.1", "HEADERS after both ends", HALF_CLOSED * 2, CLOSED),
    Row("5.1", "DATA after trailers", OPEN + f.headers(3, [], end=True) + f.data(3), CLOSED),
    Row("5.1", "DATA on a refused, ended one", HALF_CLOSED + f.data(3), CLOSED, serve=ending),
    Row("5.1", "DATA after its own reset", RESET + f.data(3, b"x"), CLOSED, 3),
    Row("5.1", "HEADERS after its own reset", RESET + f.headers(3, end=True), CLOSED, 3),
)
def test_a_stream_has_states(row: Row, pieces: int) -> None:
    peer = play(row, pieces)

    check(row, peer)


@parametrised(
    Row("5.1.1", "HEADERS on an even id", f.raw(f.HEADERS, 4, 2, f.block()), PROTOCOL),
    Row("5.1.1", "an id below the last", f.headers(5) + f.headers(3), PROTOCOL),
    Row("5.1.1", "an id far below the last", f.headers(5_001) + f.headers(4_999), PROTOCOL),
    Row("5.1.2", "a stream too many", OPEN, REFUSED, 3, limits={"max_streams": 1}),
)
def test_streams_are_numbered_and_limited(row: Row, pieces: int) -> None:
    peer = play(row, pieces)

    check(row, peer)


@parametrised(
    Row(
        "6.9.1",
        "DATA beyond a stream's window",
        OPEN + f.data(3, bytes(101)),
        FLOW_CONTROL,
        3,
        limits={"stream_window_bytes": 100},
    ),
    Row(
        "6.9.1",
        "padding beyond a stream's window",
        OPEN + f.data(3, bytes(90), padding=10),
        FLOW_CONTROL,
        3,
        limits={"stream_window_bytes": 100},
    ),
    Row(
        "6.9.1",
        "messages beyond a stream's window while none is taken",
        OPEN + 3 * f.data(3, f.message(bytes(30))),
        FLOW_CONTROL,
        3,
        limits={"stream_window_bytes": 100},
        serve=holding,
    ),
    Row(
        "6.9.1",
        "DATA beyond the connection's window",
        OPEN + f.data(3, bytes(1_001)),
        FLOW_CONTROL,
        limits={"connection_window_bytes": 1_000},
    ),
    Row(
        "6.9.1",
        "DATA beyond the connection's window on a stream that was ended",
        OPEN + f.data(3, bytes(1_001)),
        FLOW_CONTROL,
        limits={"connection_window_bytes": 1_000},
        serve=ending,
    ),
)
def test_windows_are_kept(row: Row, pieces: int) -> None:
    peer = play(row, pieces)

    check(row, peer)


def flood(what: str, frames: bytes, *, before: int = 0, serve: Any = Echo, **limits: int) -> Row:
    return Row("10.5", what, frames, CALM, limits=limits, before=before, serve=serve)


@parametrised(
    flood("SETTINGS", 10 * f.settings(), settings_rate=10),
    flood("acknowledgements", 10 * f.raw(f.SETTINGS, f.ACK, 0), settings_rate=10),
    flood("PINGs", 11 * f.ping(), ping_rate=10),
    flood("answers to PINGs", 11 * f.ping(ack=True), ping_rate=10),
    flood(
        "resets",
        b"".join(f.headers(one) + f.rst(one) for one in range(3, 25, 2)),
        reset_rate=10,
    ),
    flood(
        "streams that we have to reset",
        b"".join(f.headers(one, MALFORMED) for one in range(3, 25, 2)),
        before=11,
        reset_rate=10,
    ),
    flood("empty DATA", OPEN + 11 * f.data(3), idle_frame_rate=10),
    flood("DATA that is all padding", OPEN + 11 * f.data(3, padding=9), idle_frame_rate=10),
    flood("PRIORITY", 11 * f.priority(3), idle_frame_rate=10),
    flood("unknown frames", 11 * f.raw(f.UNKNOWN, 0, 0, b"x"), idle_frame_rate=10),
    flood("WINDOW_UPDATEs after the end", RESET + 11 * f.window_update(3, 1), idle_frame_rate=10),
    flood("DATA after our end", OPEN + 11 * f.data(3, b"x"), serve=ending, idle_frame_rate=10),
    flood("trailers after our end", OPEN + 11 * f.headers(3), serve=ending, idle_frame_rate=10),
    flood(
        "CONTINUATION of nothing",
        f.begun(3, f.block()) + 5 * f.continued(3),
        max_continuations=4,
    ),
    flood(
        "a field block of many bytes",
        f.begun(3, f.block()) + f.continued(3, bytes(600)) + f.continued(3, bytes(600)),
        max_field_block_bytes=1_000,
    ),
    flood(
        "a field block of a byte too many",
        f.begun(3, f.block()[:20]) + f.continued(3, f.block()[20:]),
        max_field_block_bytes=len(f.block()) - 1,
    ),
    flood(
        "a field list that is small on the wire",
        f.headers(3, [*f.fields(), *[("a", "b" * 50)] * 20]),
        max_field_list_bytes=1_000,
    ),
)
def test_floods_cost_the_connection(row: Row, pieces: int) -> None:
    peer = play(row, pieces)

    check(row, peer)
