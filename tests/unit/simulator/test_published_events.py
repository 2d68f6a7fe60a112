"""The KV events of a served simulator, read over real sockets."""

import asyncio
import json
from typing import Any

import msgspec
import pytest
import zmq
import zmq.asyncio

from epp.simulator.kv_events import KVEventsConfig
from support.simulated import CAPTURES, COMPLETIONS, ask_once, client, options

pytestmark = pytest.mark.looptime(False)  # noqa: FBT003  # the marker has no name for it

ANYWHERE = "tcp://127.0.0.1:*"
PUBLISHING = options(
    kv_events=KVEventsConfig(
        enable_kv_cache_events=True, endpoint=ANYWHERE, replay_endpoint=ANYWHERE, topic="kv"
    )
)
BODY = {"prompt": [7] * 33, "max_tokens": 1}


async def published(endpoint: str) -> list[Any]:
    """Return the payloads of all messages so far."""
    payloads = []
    async with asyncio.timeout(5):
        with zmq.asyncio.Context() as context, context.socket(zmq.DEALER) as socket:
            socket.setsockopt(zmq.LINGER, 0)
            socket.connect(endpoint)
            await socket.send_multipart([b"", bytes(8)])
            while (frames := await socket.recv_multipart())[3]:
                payloads.append(msgspec.msgpack.decode(frames[3]))
    return payloads


async def test_blocks_are_published_as_they_are_stored():
    async with client(PUBLISHING) as (_, ask):
        sources = (await ask("/kv_event_sources")).json
        await ask(COMPLETIONS, BODY)
        await ask(COMPLETIONS, {"model": "a", "cache_salt": "s"} | BODY)

        messages = await published(sources["0"]["replay_endpoint"])

    stored = [message[1][0] for message in messages]
    told = [(one["type"], one["lora_name"], one["extra_keys"]) for one in stored]
    assert told == [
        ("BlockStored", None, [None, None]),
        ("BlockStored", "a", [["a", "s"], ["a"]]),
    ]
    assert all(one["token_ids"] == [7] * 32 for one in stored)


@pytest.mark.parametrize(
    ("body", "headers"),
    [({"session_id": "s"}, {}), ({"session_id": "t"}, {"X-Session-ID": "s"})],
    ids=["field", "header, which wins"],
)
async def test_events_name_the_session(body: dict[str, str], headers: dict[str, str]):
    async with client(PUBLISHING) as (_, ask):
        sources = (await ask("/kv_event_sources")).json
        await ask(COMPLETIONS, BODY | body, **headers)

        messages = await published(sources["0"]["replay_endpoint"])

    assert messages[0][1][0]["session_id"] == "s"


async def test_each_rank_publishes_its_own():
    served = options(data_parallel_size=2, kv_events=PUBLISHING.kv_events)
    async with client(served) as (_, ask):
        sources = (await ask("/kv_event_sources")).json
        await ask(COMPLETIONS, BODY, **{"X-data-parallel-rank": "1"})

        counts = [len(await published(sources[rank]["replay_endpoint"])) for rank in "01"]

    assert counts == [0, 1]


async def test_a_reset_is_told_with_the_next_step():
    async with client(PUBLISHING) as (_, ask):
        endpoint = (await ask("/kv_event_sources")).json["0"]["replay_endpoint"]
        await ask(COMPLETIONS, BODY)
        reset = await ask("/reset_prefix_cache", method="POST")
        before = len(await published(endpoint))
        await ask(COMPLETIONS, BODY)

        after = await published(endpoint)

    assert (reset.json, before) == ({"success": True}, 1)
    assert [event["type"] for event in after[1][1]] == ["AllBlocksCleared", "BlockStored"]


@pytest.mark.parametrize(
    ("name", "ranks", "replay"),
    [("kv_event_sources", 1, 5558), ("kv_event_sources_dp2", 2, 5657)],
    ids=["one rank", "two ranks"],
)
def test_sources_are_told_as_by_a_real_server(name: str, ranks: int, replay: int):
    config = KVEventsConfig(
        enable_kv_cache_events=True,
        replay_endpoint=f"tcp://*:{replay}",
        topic="kv@pod-1@tiny-llama",
    )

    told = {str(rank): config.source(rank) for rank in range(ranks)}

    assert told == json.loads((CAPTURES / f"{name}.json").read_bytes())


async def test_a_server_that_publishes_nothing_has_no_sources():
    assert (await ask_once("/kv_event_sources")).json == {}


async def test_an_address_in_use_is_a_clear_error():
    async with client(PUBLISHING) as (_, ask):
        taken = (await ask("/kv_event_sources")).json["0"]["replay_endpoint"]
        config = KVEventsConfig(
            enable_kv_cache_events=True, endpoint=ANYWHERE, replay_endpoint=taken
        )

        with pytest.raises(ValueError, match="cannot listen for replays"):
            await ask_once("/health", served=options(kv_events=config))
