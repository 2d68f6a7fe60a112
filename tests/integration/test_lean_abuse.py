"""
Peers that do to the lean door, over real sockets, what no gateway would.

Each loses its stream or its connection, or is served; nothing of it stays behind, and nobody else
waits for it. Limits of no seconds make the door's next look the last.
"""

import asyncio
import socket
from pathlib import Path

import pytest

from epp.extproc import messages
from epp.extproc.h2.door import WRITE_BUFFER_BYTES
from epp.extproc.h2.frames import ErrorCode
from support import h2_frames as f
from support import plugins, wire
from support.core import Core
from support.lean import Opened, Peer, call, opened, peer, sent
from support.simulated import until

pytestmark = [
    pytest.mark.looptime(False),  # noqa: FBT003 - real sockets need real time
    pytest.mark.timeout(30),
]

INITIAL_WINDOW_SIZE = 4
LARGE = b'{"model":"m","prompt":"' + b"x" * 60_000 + b'"}'
WIDE = {INITIAL_WINDOW_SIZE: (1 << 31) - 1}
CALM = ErrorCode.ENHANCE_YOUR_CALM


def asked(stream: int, body: bytes = wire.COMPLETION) -> bytes:
    """A stream with a request, complete but for its end."""
    return call(stream) + sent(stream, wire.headers(), wire.body(body))


async def gone(door: Opened, one: Peer) -> None:
    one.sock.close()
    await door.until_idle()


class TestAPeerThatDoesNotRead:
    async def test_loses_the_streams_whose_windows_it_leaves_shut(self) -> None:
        async with (
            opened(stall_seconds=0.0, max_queued_bytes=1000) as door,
            peer(door.port, {INITIAL_WINDOW_SIZE: 0}) as one,
        ):
            await one.send(*[asked(stream) for stream in range(1, 100, 2)])
            await until(lambda: door.counts["in flight"] == 50)
            queued = sum(
                waiting.queued
                for protocol in door.door.connections
                for waiting in protocol._connection.outbox.blocked.values()
            )
            door.look()
            await one.hear(lambda _: len(one.resets()) == 50)
            counts = door.counts
            await one.send(f.settings({INITIAL_WINDOW_SIZE: 65_535}))

            assert set(one.resets().values()) == {ErrorCode.CANCEL}
            assert 0 < queued < 50 * 2000
            assert (counts["in flight"], counts["calls"], counts["connections"]) == (0, 0, 1)
            assert await one.is_served(101)

    async def test_is_sent_no_more_of_a_response_than_waits_for_it(self) -> None:
        most = 10_000
        piece = wire.response_body(b"y" * 5_000)
        async with (
            opened(max_queued_bytes=most, stall_seconds=0.0) as door,
            peer(door.port, {INITIAL_WINDOW_SIZE: 0}) as one,
        ):
            plain = {"content-type": "text/plain"}
            await one.send(asked(1), sent(1, wire.response_headers(plain)), sent(1, *[piece] * 40))
            protocol = await door.connection()
            calls = protocol._connection.calls
            await until(lambda: 1 in calls)
            waiting = calls[1]
            await until(lambda: waiting.received > 200_000)

            assert waiting.waiting
            assert waiting.queued <= most + 6_000
            assert waiting.unacknowledged <= door.door.limits.stream_window_bytes
            await gone(door, one)

    @pytest.mark.parametrize("leaves", [False, True], ids=["stays", "half-closes"])
    async def test_loses_the_connection_that_it_lets_fill(self, leaves: bool) -> None:
        loop = asyncio.get_running_loop()
        async with (
            opened(stall_seconds=0.0) as door,
            peer(door.port, WIDE, reads=False) as one,
        ):
            await one.send(f.window_update(0, (1 << 31) - 70_000))
            requests = b"".join(asked(stream, LARGE) for stream in range(1, 1000, 2))
            sending = loop.create_task(one.send(requests))
            await until(lambda: any(each._full_since for each in door.door.connections))
            protocol = await door.connection()
            assert protocol._transport is not None
            held = protocol._transport.get_write_buffer_size()
            if leaves:
                sending.cancel()
                one.sock.shutdown(socket.SHUT_WR)
            door.look()
            await door.until_idle()
            sending.cancel()

        assert WRITE_BUFFER_BYTES < held < WRITE_BUFFER_BYTES + (1 << 20)

    async def test_is_let_go_when_it_half_closes_with_less_than_that_unread(self) -> None:
        """The end of its side is all that the kernel will ever tell of it."""
        async with (
            opened(stall_seconds=0.0) as door,
            peer(door.port, WIDE, reads=False) as one,
        ):
            await one.send(f.window_update(0, (1 << 31) - 70_000))
            protocol = await door.connection()
            transport = protocol._transport
            assert transport is not None
            stream = 1
            while not transport.get_write_buffer_size():
                await one.send(asked(stream, LARGE))
                await until(lambda: door.counts["in flight"] == (stream + 1) // 2)  # noqa: B023
                stream += 2
            one.sock.shutdown(socket.SHUT_WR)
            await until(transport.is_closing)
            door.look()

            await door.until_idle()


class TestAPeerThatTakesItsTime:
    @pytest.mark.parametrize(
        "begun",
        [
            b"",
            f.PREFACE[:-1],
            f.PREFACE,
            f.PREFACE + f.settings()[:-1],
            f.PREFACE + f.settings() + f.begun(1, b"\x83"),
            f.PREFACE + f.settings() + f.begun(1, b"\x83") + f.continued(1, b"\x84"),
        ],
        ids=["nothing", "preface", "no settings", "half a frame", "headers", "continuation"],
    )
    async def test_loses_the_connection_for_what_it_does_not_complete(self, begun: bytes) -> None:
        async with (
            opened(preface_seconds=0.0) as door,
            peer(door.port, greets=False) as one,
        ):
            protocol = await door.connection()
            for at in range(len(begun)):
                await one.send(begun[at : at + 1])
            await until(lambda: len(protocol._connection._buffer) <= 40)
            if b"\x83" in begun:
                await until(lambda: protocol._connection._block is not None)
            door.look()
            goaways = await one.until_closed()
            await door.until_idle()

        assert [code for _, code in goaways] == [CALM]
        assert door.violations("ENHANCE_YOUR_CALM") == 1

    async def test_is_served_byte_by_byte(self) -> None:
        request = f.message(wire.headers().SerializeToString())
        request += f.message(wire.body().SerializeToString())
        async with opened(stall_seconds=0.0) as door, peer(door.port) as one:
            await one.send(call(1))
            for at in range(len(request)):
                await one.send(f.data(1, request[at : at + 1]))
                door.look()
            await one.hear(lambda _: one.replies(1))
            await gone(door, one)

        assert wire.destination(one.replies(1)[0]) == "192.168.1.1:8000"

    async def test_is_not_heard_for_ever_when_it_says_nothing(self) -> None:
        async with opened(idle_frame_rate=100) as door, peer(door.port) as one:
            await one.send(call(1), f.data(1) * 101)
            goaways = await one.until_closed()
            await door.until_idle()

        assert [code for _, code in goaways] == [CALM]


class TestAPeerThatHalfCloses:
    async def test_the_connection_is_let_go_with_its_requests(self) -> None:
        async with opened() as door, peer(door.port) as one:
            await one.send(asked(1), asked(3))
            await until(lambda: door.counts["in flight"] == 2)
            one.sock.shutdown(socket.SHUT_WR)
            await one.until_closed()
            await door.until_idle()

        assert wire.destination(one.replies(3)[0]) == "192.168.1.1:8000"

    async def test_a_stream_ends_well_and_the_connection_goes_on(self) -> None:
        async with opened() as door, peer(door.port) as one:
            await one.send(call(1), sent(1, wire.headers(), wire.body(), end=True))
            await one.hear(lambda _: one.trailers(1))
            await door.until_idle(connections=1)

            assert one.trailers(1)["grpc-status"] == "0"
            assert await one.is_served(3)


RESETS = {
    "before the body": sent(1, wire.headers()),
    "within a message": sent(1, wire.headers()) + f.data(1, b"\0\0\0\1\0"),
    "after the pick": sent(1, wire.headers(), wire.body()),
    "in mid-response": sent(
        1, wire.headers(), wire.body(), wire.response_headers(), wire.response_body(b"{")
    ),
    "in a buffered request": sent(1, wire.headers(mode=messages.BUFFERED)),
}


class TestAPeerThatResetsAStream:
    @pytest.mark.parametrize("before", RESETS.values(), ids=RESETS)
    async def test_nothing_of_it_stays(self, before: bytes) -> None:
        async with opened() as door, peer(door.port) as one:
            await one.send(call(1), before)
            await until(lambda: door.counts["streams open"] == 1)
            await one.send(f.rst(1))
            await door.until_idle(connections=1)

            assert await one.is_served(3)
            assert one.resets() == {}

    async def test_nothing_stays_of_a_decision_that_waits(self, tmp_path: Path) -> None:
        config = tmp_path / "slow.yaml"
        config.write_text(
            "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"
            "plugins: [{type: slow-producer, parameters: {seconds: 1000}}]\n"
        )
        core = Core(config=config, registry=plugins.registry(), answer_timeout=1000.0)
        async with opened(core) as door, peer(door.port) as one:
            await one.send(asked(1))
            await until(lambda: door.counts["requests running"] == 1)
            deciding = [task for task in asyncio.all_tasks() if task.get_name() == "decision"]
            await one.send(f.rst(1))
            await door.until_idle(connections=1)

            assert len(deciding) == 1
            assert await one.is_served(3)

    async def test_before_its_headers_are_complete_the_connection_is_over(self) -> None:
        async with opened() as door, peer(door.port) as one:
            await one.send(f.begun(1, b"\x83"), f.rst(1))
            goaways = await one.until_closed()
            await door.until_idle()

        assert goaways == [(0, ErrorCode.PROTOCOL_ERROR)]

    @pytest.mark.parametrize(
        ("first", "status"),
        [(b"\1\0\0\0\1x", "13"), (b"\2\0\0\0\0", "13"), (b"\0\xff\xff\xff\xff", "8")],
        ids=["compressed", "neither 0 nor 1", "too large"],
    )
    async def test_a_message_that_cannot_be_taken_ends_the_call_and_its_request(
        self, first: bytes, status: str
    ) -> None:
        async with opened() as door, peer(door.port) as one:
            await one.send(asked(1), f.data(1, first))
            await one.hear(lambda _: one.trailers(1))
            await door.until_idle(connections=1)

            assert one.trailers(1)["grpc-status"] == status
            assert await one.is_served(3)

    async def test_a_stream_that_ends_within_a_message_gives_its_request_back(self) -> None:
        async with opened() as door, peer(door.port) as one:
            await one.send(asked(1), f.data(1, b"\0\0\0\0\5x", end=True))
            await one.hear(lambda _: one.trailers(1))
            await door.until_idle(connections=1)

            assert one.trailers(1)["grpc-status"] == "13"


async def test_http_1_is_told_that_this_is_none_of_it() -> None:
    async with opened() as door, peer(door.port, greets=False) as one:
        await one.send(b"GET / HTTP/1.1\r\nhost: picker\r\n\r\n")
        goaways = await one.until_closed()
        await door.until_idle()

    assert goaways == [(0, ErrorCode.PROTOCOL_ERROR)]
    assert door.violations("PROTOCOL_ERROR") == 1


async def test_streams_beyond_the_limit_are_refused_and_the_others_served() -> None:
    async with opened(max_streams=10) as door, peer(door.port) as one:
        await one.send(*[asked(stream) for stream in range(1, 31, 2)])
        await one.hear(lambda _: len(one.resets()) == 5 and one.replies(19))

        assert one.resets() == dict.fromkeys(range(21, 31, 2), ErrorCode.REFUSED_STREAM)
        assert door.counts["in flight"] == 10
        await gone(door, one)
