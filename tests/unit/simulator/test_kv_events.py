import asyncio
import contextlib
import json
from array import array
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq
import zmq.asyncio

from epp.simulator.engine.cache_events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    CacheEvent,
)
from epp.simulator.engine.request import Adapter
from epp.simulator.kv_events import Encoding, HashFormat, KVEventPublisher, KVEventsConfig

CAPTURES = Path(__file__).with_name("captures")
TOPIC = "kv@endpoint@m"
CLEARED = [AllBlocksCleared()]

real_time = pytest.mark.looptime(False)  # noqa: FBT003 - real sockets need real time


def config(**settings: Any) -> KVEventsConfig:
    defaults = {
        "enable_kv_cache_events": True,
        "endpoint": "tcp://127.0.0.1:*",
        "replay_endpoint": "tcp://127.0.0.1:*",
        "topic": TOPIC,
    }
    return KVEventsConfig(**{**defaults, **settings})


@contextlib.contextmanager
def publisher(settings: KVEventsConfig | None = None, **how: Any) -> Iterator[KVEventPublisher]:
    sut = KVEventPublisher(settings or config(), **how)
    try:
        yield sut
    finally:
        sut.close()


@asynccontextmanager
async def reader(sut: KVEventPublisher, kind: int = zmq.SUB) -> AsyncIterator[zmq.asyncio.Socket]:
    """Yield a socket that is subscribed for sure, or one that may ask for a replay."""
    with zmq.asyncio.Context() as context, context.socket(kind) as socket:
        socket.linger = 0
        if kind == zmq.SUB:
            socket.subscribe(b"")
            socket.connect(sut.endpoint)
            # Nothing tells when a subscription has arrived, so call until heard.
            while not await socket.poll(10):
                sut.publish(CLEARED)
            while await socket.poll(10):
                await socket.recv_multipart()
        else:
            socket.connect(sut.replay_endpoint or "")
        yield socket


@asynccontextmanager
async def answering(sut: KVEventPublisher) -> AsyncIterator[None]:
    task = asyncio.create_task(sut.run())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def replayed(socket: zmq.asyncio.Socket, first: int) -> list[list[bytes]]:
    await socket.send_multipart([b"", first.to_bytes(8, "big")])
    messages = [await socket.recv_multipart()]
    while messages[-1][1:] != [b"", b"\xff" * 8, b""]:
        messages.append(await socket.recv_multipart())
    return messages


def captured(name: str) -> list[bytes]:
    lines = (CAPTURES / name).read_text().splitlines()
    return [bytes.fromhex(json.loads(line)["payload_hex"]) for line in lines]


def digest(on_the_wire: int | bytes) -> bytes:
    """Return some digest that travels like this."""
    if isinstance(on_the_wire, bytes):
        return on_the_wire
    return b"\xee" * 24 + on_the_wire.to_bytes(8, "big")


def event(fields: dict[str, Any]) -> CacheEvent:
    """Return the event of which a real server told this."""
    if fields["type"] == "AllBlocksCleared":
        return AllBlocksCleared()
    hashes = [digest(block_hash) for block_hash in fields["block_hashes"]]
    if fields["type"] == "BlockRemoved":
        return BlockRemoved(hashes[0])
    name, parent = fields["lora_name"], fields["parent_block_hash"]
    return BlockStored(
        hashes,
        None if parent is None else digest(parent),
        array("I", fields["token_ids"]),
        fields["block_size"],
        None if name is None else Adapter(name, "somewhere", fields["lora_id"]),
        [None if keys is None else tuple(keys) for keys in fields["extra_keys"]],
        fields.get("session_id"),
    )


async def sent(events: list[CacheEvent], when: float, **how: Any) -> list[bytes]:
    with publisher(wall_clock=lambda: when, **how) as sut:
        async with answering(sut), reader(sut, zmq.DEALER) as socket:
            sut.publish(events)
            return (await replayed(socket, 0))[0]


@real_time
@pytest.mark.parametrize(
    ("capture", "hashes", "kinds"),
    [
        pytest.param("kv_events.jsonl", "int", {"BlockStored", "AllBlocksCleared"}, id="numbers"),
        pytest.param(
            "kv_events_preemption.jsonl", "int", {"BlockStored", "BlockRemoved"}, id="evictions"
        ),
        pytest.param("kv_events_cbor_bytes.jsonl", "bytes", {"BlockStored"}, id="whole digests"),
    ],
)
async def test_events_are_written_byte_for_byte_as_a_real_server_wrote_them(
    capture: str, hashes: HashFormat, kinds: set[str]
):
    seen = set()
    for payload in captured(capture):
        when, events, rank = msgspec.msgpack.decode(payload)
        seen |= {fields["type"] for fields in events}

        message = await sent(list(map(event, events)), when, rank=rank, hashes=hashes)

        assert payload == message[3]
    assert seen == kinds


@real_time
async def test_events_by_position_have_the_same_values_without_the_younger_fields():
    for payload in captured("kv_events.jsonl") + captured("kv_events_preemption.jsonl"):
        when, events, rank = msgspec.msgpack.decode(payload)
        expected = [
            [
                value
                for name, value in fields.items()
                if name not in {"kv_cache_spec_kind", "session_id"}
            ]
            for fields in events
        ]

        message = await sent(list(map(event, events)), when, rank=rank, encoding="positional")

        assert [when, expected, rank] == msgspec.msgpack.decode(message[3])


@real_time
@pytest.mark.parametrize("encoding", ["map", "positional"])
async def test_both_encodings_tell_the_fields_in_their_order(encoding: Encoding):
    stored = BlockStored(
        [digest(5)], digest(4), array("I", [1, 2]), 2, Adapter("a", "p", 3), [("a", "s")], "s9"
    )
    by_position = {
        "map": [
            {
                "type": "BlockStored",
                "block_hashes": [5],
                "parent_block_hash": 4,
                "token_ids": [1, 2],
                "block_size": 2,
                "lora_id": 3,
                "medium": "GPU",
                "lora_name": "a",
                "extra_keys": [["a", "s"]],
                "group_idx": 0,
                "kv_cache_spec_kind": "full_attention",
                "session_id": "s9",
            },
            {"type": "BlockRemoved", "block_hashes": [6], "medium": "GPU", "group_idx": 0},
            {"type": "AllBlocksCleared"},
        ],
        "positional": [
            ["BlockStored", [5], 4, [1, 2], 2, 3, "GPU", "a", [["a", "s"]], 0],
            ["BlockRemoved", [6], "GPU", 0],
            ["AllBlocksCleared"],
        ],
    }

    events = [stored, BlockRemoved(digest(6)), AllBlocksCleared()]
    message = await sent(events, 1.5, rank=0, encoding=encoding)

    assert msgspec.msgpack.decode(message[3]) == [1.5, by_position[encoding], 0]


@real_time
async def test_a_message_is_topic_sequence_and_payload():
    with publisher(wall_clock=lambda: 1.5) as sut:
        async with reader(sut) as socket:
            sut.publish(CLEARED)
            topic, sequence, payload = await socket.recv_multipart()
            sut.publish(CLEARED)
            _, following, _ = await socket.recv_multipart()

    assert topic == TOPIC.encode()
    assert int.from_bytes(following, "big") == int.from_bytes(sequence, "big") + 1
    assert len(sequence) == 8
    assert msgspec.msgpack.decode(payload) == [1.5, [{"type": "AllBlocksCleared"}], 0]


@real_time
async def test_a_step_without_events_sends_nothing_and_takes_no_number():
    with publisher() as sut:
        async with answering(sut), reader(sut, zmq.DEALER) as socket:
            sut.publish([])
            sut.publish(CLEARED)
            messages = await replayed(socket, 0)

    assert [message[2] for message in messages[:-1]] == [bytes(8)]


@real_time
async def test_who_subscribes_late_sees_it_by_the_sequence_and_has_the_rest_again():
    with publisher() as sut:
        for _ in range(3):
            sut.publish(CLEARED)
        async with answering(sut), reader(sut) as live, reader(sut, zmq.DEALER) as asking:
            sut.publish(CLEARED)
            first_seen = int.from_bytes((await live.recv_multipart())[1], "big")
            missed = await replayed(asking, 0)

    assert first_seen >= 3
    assert list(range(first_seen + 1)) == [
        int.from_bytes(message[2], "big") for message in missed[:-1]
    ]


@real_time
async def test_a_replay_is_answered_as_a_real_server_answers():
    with publisher() as sut:
        for _ in range(12):
            sut.publish(CLEARED)
        async with answering(sut), reader(sut, zmq.DEALER) as socket:
            messages = await replayed(socket, 5)

    assert [message[:3] for message in messages] == [
        *([b"", TOPIC.encode(), sequence.to_bytes(8, "big")] for sequence in range(5, 12)),
        [b"", b"", b"\xff" * 8],
    ]
    assert messages[-1][3] == b""


@real_time
async def test_only_the_last_messages_can_be_had_again():
    with publisher(config(buffer_steps=2)) as sut:
        for _ in range(5):
            sut.publish(CLEARED)
        async with answering(sut), reader(sut, zmq.DEALER) as socket:
            messages = await replayed(socket, 0)

    assert [message[2][-1] for message in messages] == [3, 4, 255]


@real_time
async def test_who_asks_for_what_is_yet_to_come_gets_the_end_alone():
    with publisher() as sut:
        sut.publish(CLEARED)
        async with answering(sut), reader(sut, zmq.DEALER) as socket:
            messages = [await replayed(socket, first) for first in (1, 2**64 - 1)]

    assert [len(answer) for answer in messages] == [1, 1]


@real_time
async def test_a_message_that_cannot_be_written_is_lost_and_nothing_else(
    caplog: pytest.LogCaptureFixture,
):
    unwritable = BlockStored([b"x" * 32], None, array("I", [7]), 1, None, [None], "secret\udcff")
    with publisher() as sut:
        for _ in range(3):
            sut.publish([unwritable])
        sut.publish(CLEARED)
        async with answering(sut), reader(sut, zmq.DEALER) as socket:
            messages = [await replayed(socket, first) for first in (0, 3, 4)]

    assert [[one[2][-1] for one in answer] for answer in messages] == [[3, 255], [3, 255], [255]]
    assert sut.failures == 3
    assert caplog.messages == [
        "KV events of rank 0: a message is lost for UnicodeEncodeError, after 0 others"
    ]


@real_time
async def test_a_long_replay_comes_whole_and_lets_others_run():
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    with publisher(config(buffer_steps=3000)) as sut:
        for _ in range(3000):
            sut.publish(CLEARED)
        async with answering(sut), reader(sut, zmq.DEALER) as socket:
            await socket.send_multipart([b"", bytes(8)])
            counting = asyncio.create_task(count_turns())
            await socket.recv_multipart()
            turns_at_first = turns
            received = 1
            while (await socket.recv_multipart())[2] != b"\xff" * 8:
                received += 1
            counting.cancel()

    assert received == 3000
    assert turns > turns_at_first


@real_time
async def test_a_question_that_is_none_goes_unanswered_and_harms_nobody():
    with publisher() as sut:
        sut.publish(CLEARED)
        async with answering(sut), reader(sut, zmq.DEALER) as socket:
            await socket.send_multipart([b"hello"])
            messages = await replayed(socket, 0)

    assert len(messages) == 2


@real_time
async def test_a_reader_that_never_reads_costs_it_messages_and_the_publisher_nothing():
    with publisher(config(hwm=1)) as sut:
        async with reader(sut) as socket:
            for _ in range(20_000):
                sut.publish(CLEARED)
            received = []
            while await socket.poll(50):
                received.append(await socket.recv_multipart())

    assert 0 < len(received) < 20_000


async def test_without_a_replay_endpoint_there_is_nothing_to_run():
    with publisher(config(replay_endpoint=None)) as sut:
        await sut.run()

        assert sut.replay_endpoint is None


@real_time
async def test_a_named_host_is_called_instead_of_waited_for():
    with zmq.asyncio.Context() as context, context.socket(zmq.SUB) as socket:
        socket.subscribe(b"")
        port = socket.bind_to_random_port("tcp://127.0.0.1")
        with publisher(config(endpoint=f"tcp://127.0.0.1:{port}")) as sut:
            while not await socket.poll(10):
                sut.publish(CLEARED)
            topic, *_ = await socket.recv_multipart()

    assert topic == TOPIC.encode()


def test_a_rank_has_ports_of_its_own():
    with publisher() as other:
        base = int(other.endpoint.rpartition(":")[2])
        taken = config(endpoint=f"tcp://*:{base - 1}", replay_endpoint=None)

        with pytest.raises(ValueError, match=rf"tcp://\*:{base}: Address already in use"):
            KVEventPublisher(taken, rank=1)


def test_closing_twice_is_closing_once():
    sut = KVEventPublisher(config())

    sut.close()
    sut.close()

    with publisher(config(endpoint=sut.endpoint.replace("127.0.0.1", "*"))):
        pass
