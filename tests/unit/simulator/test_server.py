"""The server over real sockets: what is asked for, answered and given up."""

import asyncio
import io
import json
import socket
from typing import Any

import aiohttp
import pytest

from epp.simulator.engine import EngineOptions
from epp.simulator.server import SimulatorOptions, serve
from support.simulated import (
    CHAT,
    COMPLETIONS,
    OPTIONS,
    SLOW,
    ask_once,
    client,
    events,
    until,
)

pytestmark = pytest.mark.looptime(False)  # noqa: FBT003  # the marker has no name for it


async def test_a_stream_says_what_the_whole_answer_says():
    body = {"prompt": "tell me", "max_tokens": 12}
    async with client() as (_, ask):
        whole = await ask(COMPLETIONS, body)
        stream = await ask(COMPLETIONS, body | {"stream": True})

    texts = [chunk["choices"][0]["text"] for chunk in events(stream.body)[:-1]]

    assert (len(texts), "".join(texts)) == (12, whole.json["choices"][0]["text"])


@pytest.mark.parametrize(
    ("body", "usage"),
    [
        pytest.param({"prompt": "x" * 40, "max_tokens": 5}, (10, 5), id="text"),
        pytest.param({"prompt": [1, 2, 3], "max_tokens": 5}, (3, 5), id="tokens"),
        pytest.param({"prompt": ["abcd", "abcdefgh"], "max_tokens": 5}, (3, 10), id="texts"),
        pytest.param({"prompt": [[1], [2, 3]], "max_tokens": 5}, (3, 10), id="lists of tokens"),
        pytest.param({"prompt": "abcd", "n": 3, "max_tokens": 5}, (1, 15), id="several replies"),
        pytest.param({"prompt": "abcd"}, (1, 16), id="sixteen tokens where none are asked for"),
        pytest.param({"prompt": [7] * 2000, "max_tokens": 100}, (2000, 48), id="cut, silently"),
    ],
)
async def test_prompts_of_all_forms_are_counted_and_answered(body: Any, usage: tuple[int, int]):
    answer = (await ask_once(COMPLETIONS, body)).json

    counts = answer["usage"]
    assert (counts["prompt_tokens"], counts["completion_tokens"]) == usage
    assert counts["total_tokens"] == sum(usage)
    assert sum(len(choice["text"]) // 4 for choice in answer["choices"]) == usage[1]
    assert [choice["index"] for choice in answer["choices"]] == list(range(len(answer["choices"])))


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        pytest.param({}, "stop", id="it stops by itself"),
        pytest.param({"max_tokens": 7}, "length", id="max_tokens"),
        pytest.param({"max_completion_tokens": 7}, "length", id="max_completion_tokens"),
        pytest.param({"ignore_eos": True}, "length", id="it may not stop"),
    ],
)
async def test_a_chat_ends_for_a_reason(limits: dict[str, Any], reason: str):
    body = {"messages": [{"role": "user", "content": [{"type": "text", "text": "hi"}]}]}

    answer = await ask_once(CHAT, body | limits)

    assert answer.json["choices"][0]["finish_reason"] == reason


async def test_each_event_of_a_stream_is_a_chunk_of_its_own():
    body = b'{"prompt": "x", "max_tokens": 9, "stream": true}'
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    async with serve(OPTIONS) as simulator:
        reader, writer = await asyncio.open_connection("127.0.0.1", simulator.port)
        writer.write(head + b"content-length: %d\r\n\r\n" % len(body) + body)
        await reader.readuntil(b"\r\n\r\n")
        chunks = []
        while size := int(await reader.readline(), 16):
            chunks.append(await reader.readexactly(size))
            await reader.readline()
        writer.close()

    assert len(chunks) == 9 + 1
    assert all(chunk.startswith(b"data: ") and chunk.endswith(b"\n\n") for chunk in chunks)


async def test_replies_of_several_choices_come_side_by_side_in_a_stream():
    answer = await ask_once(COMPLETIONS, {"prompt": "x", "n": 2, "max_tokens": 2, "stream": True})

    places = [chunk["choices"][0]["index"] for chunk in events(answer.body)[:-1]]

    assert places == [0, 1, 0, 1]


async def test_a_repeated_prompt_is_reported_as_cached():
    body = {"prompt": "x" * 400, "max_tokens": 1}
    async with client() as (_, ask):
        answers = [await ask(COMPLETIONS, body) for _ in range(2)]

    cached = [one.json["usage"]["prompt_tokens_details"]["cached_tokens"] for one in answers]

    assert cached == [0, 96]


@pytest.mark.parametrize(
    ("asked", "model"),
    [({"model": "a"}, "a"), ({}, "tiny-llama")],
    ids=["an adapter", "the base, where none is named"],
)
async def test_a_reply_names_the_model_that_gave_it(asked: dict[str, str], model: str):
    answer = await ask_once(COMPLETIONS, asked | {"prompt": "x"})

    assert answer.json["model"] == model


@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        (COMPLETIONS, {"prompt": "x"}, "cmpl-mine"),
        (CHAT, {"messages": [{"role": "user", "content": "x"}]}, "chatcmpl-mine"),
    ],
    ids=["completion", "chat"],
)
async def test_an_id_given_by_the_client_is_kept(path: str, body: Any, expected: str):
    answer = await ask_once(path, body, **{"X-Request-Id": "mine"})

    assert answer.json["id"] == expected


async def test_two_requests_under_way_may_have_one_id():
    body = {"prompt": "x", "max_tokens": 50}
    async with client() as (_, ask):
        answers = await asyncio.gather(
            *(ask(COMPLETIONS, body, **{"X-Request-Id": "mine"}) for _ in range(2))
        )

    assert [one.json["usage"]["completion_tokens"] for one in answers] == [50, 50]


async def test_a_wrong_method_is_told_the_right_one():
    answer = await ask_once("/health", method="DELETE")

    assert (answer.status, answer.headers["allow"]) == (405, "GET")


async def test_a_body_of_several_megabytes_is_read():
    body = io.BytesIO(json.dumps({"prompt": "x" * 3_000_000}).encode())

    answer = await ask_once(COMPLETIONS, body)

    assert answer.json["error"]["param"] == "input_tokens"


@pytest.mark.parametrize(
    ("path", "body"),
    [("/health", b""), ("/ping", b""), ("/version", b'{"version":"0.32.0"}')],
    ids=["health", "ping", "version"],
)
async def test_the_server_says_that_it_is_well(path: str, body: bytes):
    status, _, said = await ask_once(path)

    assert (status, said) == (200, body)


async def test_the_metrics_page_counts_what_was_served():
    async with client() as (_, ask):
        await ask(COMPLETIONS, {"prompt": "x" * 40, "max_tokens": 5})
        page = await ask("/metrics")

    assert page.headers["content-type"] == "text/plain; version=1.0.0; charset=utf-8"
    assert b'vllm:generation_tokens_total{engine="0",model_name="tiny-llama"} 5.0' in page.body


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_a_client_that_leaves_takes_its_request_out_of_the_engine(stream: bool):
    async with client(SLOW) as (simulator, ask):
        body = {"prompt": "x", "max_tokens": 100, "stream": stream}
        asking = asyncio.create_task(ask(COMPLETIONS, body))
        await until(lambda: simulator.engines[0].requests == 1)

        asking.cancel()
        await until(lambda: simulator.engines[0].requests == 0)

        assert simulator.engines[0].load == (0, 0, 0, 0, 0.0, 0.0)


def break_streams_off(port: int) -> None:
    """Ask for streams and close the connections with much unread, so that they are reset."""
    body = b'{"prompt": "x", "max_tokens": 2000, "stream": true}'
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
    request = head + b"content-length: %d\r\n\r\n" % len(body) + body
    connections = [socket.create_connection(("127.0.0.1", port)) for _ in range(100)]
    for connection in connections:
        connection.sendall(request)
    for connection in connections:
        connection.recv(1)
    for connection in connections:
        connection.close()


async def test_clients_that_break_their_streams_off_are_no_matter(
    caplog: pytest.LogCaptureFixture,
):
    async with serve(OPTIONS) as simulator:
        await asyncio.to_thread(break_streams_off, simulator.port)
        await until(lambda: simulator.engines[0].requests == 0)

    assert caplog.messages == []


async def test_a_server_that_stops_ends_what_is_under_way_with_an_error():
    async with aiohttp.ClientSession() as session:
        async with serve(SLOW) as simulator:
            url = simulator.url + COMPLETIONS
            whole = asyncio.create_task(session.post(url, json={"prompt": "x"}))
            stream = await session.post(url, json={"prompt": "x", "stream": True})
            await until(lambda: simulator.engines[0].requests == 2)
        failed = await whole
        last, done = events(await stream.read())

        assert failed.status == 500
        assert last == await failed.json()
        assert last["error"]["type"] == "InternalServerError"
        assert done == b"[DONE]"


async def test_servers_in_one_process_share_nothing():
    async with client() as (one, ask_one), client() as (other, ask_other):
        await ask_one(COMPLETIONS, {"prompt": "x", "max_tokens": 5})
        page = await ask_other("/metrics")

    assert one.port != other.port
    assert b'vllm:generation_tokens_total{engine="0",model_name="tiny-llama"} 0.0' in page.body


def test_a_server_has_at_least_one_engine():
    with pytest.raises(ValueError, match="data_parallel_size 0"):
        SimulatorOptions(data_parallel_size=0)


def test_a_context_that_exceeds_the_cache_is_refused():
    with pytest.raises(ValueError, match="hold 144 tokens"):
        SimulatorOptions(engine=EngineOptions(max_model_len=145, num_gpu_blocks=10))
