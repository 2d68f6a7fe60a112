"""
Crowds of streams on the lean door: what they cost while they are open, what they leave behind, and
whether anybody else waits for them.
"""

import asyncio
import contextlib
import gc
import tracemalloc
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence

import hpack
import pytest
from hyperframe.frame import HeadersFrame

from epp.extproc.h2.services import PROCESS
from support import h2_frames as f
from support import wire
from support.lean import Opened, Peer, opened, peer, sent
from support.simulated import until

pytestmark = [
    pytest.mark.looptime(False),  # noqa: FBT003 - real sockets need real time
    pytest.mark.timeout(60),
]

MOST_BYTES_A_STREAM = 12_000
REQUEST = f.message(wire.headers().SerializeToString())
REQUEST += f.message(wire.body().SerializeToString())
WIDE = f.window_update(0, (1 << 31) - 70_000)


class Crowd:
    """The streams of one connection, their header fields compressed as a gateway does it."""

    def __init__(self) -> None:
        self._encoder = hpack.Encoder()

    def headers(self, stream: int) -> bytes:
        block = self._encoder.encode(f.fields({":path": PROCESS}))
        return HeadersFrame(stream, block, flags=["END_HEADERS"]).serialize()

    def asking(self, streams: Iterable[int]) -> bytes:
        return b"".join(self.headers(one) + f.data(one, REQUEST) for one in streams)

    def leaving(self, streams: Sequence[int]) -> bytes:
        """Streams that are reset at once, each tenth of them after its request."""
        return b"".join(
            (self.headers(one) if at % 10 else self.asking([one])) + f.rst(one)
            for at, one in enumerate(streams)
        )


@contextlib.contextmanager
def traced() -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
    finally:
        tracemalloc.stop()


def allocated() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


@contextlib.asynccontextmanager
async def forgetting(one: Peer) -> AsyncIterator[None]:
    """Read whatever comes in the background, and keep nothing of it."""

    async def read() -> None:
        buffer = bytearray(1 << 16)
        while await asyncio.get_running_loop().sock_recv_into(one.sock, buffer):
            pass

    reading = asyncio.create_task(read())
    try:
        yield
    finally:
        reading.cancel()


async def test_an_open_stream_with_its_request_costs_no_more_than_twelve_kilobytes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    crowd = Crowd()
    first, others = crowd.asking(range(1, 200, 2)), crowd.asking(range(201, 10_201, 2))
    async with opened() as door, peer(door.port) as one, forgetting(one):
        await one.send(WIDE, first)
        await until(lambda: door.core.in_flight == 100)
        with traced():
            before = allocated()
            await one.send(others)
            await until(lambda: door.core.in_flight == 5_100)
            each = (allocated() - before) / 5_000
        one.sock.close()
        await door.until_idle()

    with capsys.disabled():
        print(f"\n{each:.0f} bytes an open stream")  # noqa: T201 - a figure for docs
    assert each < MOST_BYTES_A_STREAM


async def over(door: Opened, last: int) -> None:
    """Wait until streams up to the last were seen, and none is left."""
    protocol = await door.connection()
    await until(lambda: protocol._connection._last_id == last)
    await door.until_idle(connections=1)


async def test_ten_thousand_streams_reset_as_soon_as_they_ask_leave_nothing_behind() -> None:
    """Traced from the first on: what is kept of the last thousand streams is the same size then."""
    crowd = Crowd()
    first, others = crowd.leaving(range(1, 4_001, 2)), crowd.leaving(range(4_001, 24_001, 2))
    async with opened() as door, peer(door.port) as one:
        async with forgetting(one):
            with traced():
                await one.send(WIDE, first)
                await over(door, 3_999)
                before = allocated()
                await one.send(others)
                await over(door, 23_999)
                grown = allocated() - before

        assert grown < 32 << 10
        assert await one.is_served(24_001)


async def test_more_resets_than_are_borne_cost_the_connection() -> None:
    crowd = Crowd()
    async with opened(reset_rate=1_000) as door, peer(door.port) as one:
        with contextlib.suppress(ConnectionError):
            await one.send(WIDE, crowd.leaving(range(1, 20_001, 2)))
        await one.until_closed()
        await door.until_idle()

        async with peer(door.port) as other:
            assert await other.is_served(1)

    assert door.violations("ENHANCE_YOUR_CALM") == 1


async def test_a_small_request_does_not_wait_for_a_thousand_large_ones() -> None:
    """One turn of the busy connection, of a frame here, lies between two of the other's."""
    streams = range(1, 2_001, 2)
    body = b'{"model":"m","prompt":"' + b"x" * 14_000 + b'"}'
    crowd = Crowd()
    large = b"".join(
        crowd.headers(stream) + sent(stream, wire.headers(), wire.body(body)) for stream in streams
    )
    async with (
        opened(slice_seconds=0.0) as door,
        peer(door.port) as busy,
        peer(door.port) as other,
        forgetting(busy),
    ):
        await other.hear(lambda _: other.frames)
        sending = asyncio.create_task(busy.send(WIDE, large))
        await until(lambda: door.core.in_flight > 0)
        before = door.core.in_flight
        await other.send(Crowd().asking([1]))
        await other.hear(lambda _: other.replies(1))
        meanwhile = door.core.in_flight - before - 1
        await until(lambda: door.core.in_flight == len(streams) + 1)
        await sending

    assert meanwhile < 10
