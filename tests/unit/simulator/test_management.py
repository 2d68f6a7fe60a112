"""What a server says of itself, and what can be done to it."""

import asyncio
from typing import Any

import pytest

from support.simulated import (
    CHAT,
    COMPLETIONS,
    HELLO,
    RESPONSES,
    SLOW,
    TINY,
    ask_once,
    capture,
    client,
    options,
    until,
)

pytestmark = pytest.mark.looptime(False)  # noqa: FBT003  # the marker has no name for it


@pytest.mark.parametrize(
    ("path", "method", "name"),
    [
        ("/health", "GET", "health"),
        ("/ping", "GET", "ping"),
        ("/ping", "POST", "ping"),
        ("/reset_prefix_cache", "POST", "reset_prefix_cache"),
    ],
)
async def test_a_server_answers_as_vllm_does(path: str, method: str, name: str):
    answer = await ask_once(path, method=method)

    assert answer[::2] == capture(name)[::2]


async def test_the_prefix_cache_is_forgotten_on_request():
    body = {"prompt": [7] * 100, "max_tokens": 1}
    async with client() as (_, ask):
        await ask(COMPLETIONS, body)
        reset = await ask("/reset_prefix_cache", method="POST")
        answer = await ask(COMPLETIONS, body)

    assert reset.json == {"success": True}
    assert answer.json["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


async def test_a_prefix_cache_in_use_is_kept():
    async with client(SLOW) as (simulator, ask):
        asking = asyncio.create_task(ask(COMPLETIONS, TINY))
        await until(lambda: simulator.engines[0].load.running == 1)
        reset = await ask("/reset_prefix_cache", method="POST")
        asking.cancel()

    assert reset.json == {"success": False}


@pytest.mark.parametrize(("tracked", "load"), [(True, 3), (False, 0)], ids=["tracked", "not"])
async def test_the_load_is_what_is_being_answered_where_that_is_tracked(tracked: bool, load: int):
    served = options(server_load_tracking=tracked, time_scale=1000)
    async with client(served) as (simulator, ask):
        asking = [asyncio.create_task(ask(COMPLETIONS, TINY)) for _ in range(3)]
        await until(lambda: simulator.engines[0].requests == 3)
        loaded = await ask("/load")
        for task in asking:
            task.cancel()
        await until(lambda: simulator.engines[0].requests == 0)
        idle = await ask("/load")

    assert (loaded.json, idle.json) == ({"server_load": load}, {"server_load": 0})


@pytest.mark.parametrize(
    ("path", "prefix", "stream"),
    [
        (COMPLETIONS, "cmpl-", False),
        (COMPLETIONS, "cmpl-", True),
        (CHAT, "chatcmpl-", True),
        (RESPONSES, "resp_", False),
        (RESPONSES, "resp_", True),
    ],
)
async def test_requests_are_ended_by_their_ids(path: str, prefix: str, stream: bool):
    body = TINY | {"messages": HELLO, "input": "x", "stream": stream}
    async with client(SLOW) as (simulator, ask):
        asking = asyncio.create_task(ask(path, body, **{"X-Request-Id": "mine"}))
        await until(lambda: simulator.engines[0].requests == 1)

        ended = await ask("/abort_requests", {"request_ids": [f"{prefix}mine", "unknown"]})
        answer = await asking

        assert simulator.engines[0].requests == 0
    assert (ended.status, answer.status) == (200, 200)
    sign = b'"incomplete"' if path == RESPONSES else b'"finish_reason":"abort"'
    assert sign in answer.body


async def test_a_request_that_was_ended_before_its_first_token_has_no_metrics():
    served = options(per_request_metrics=True, time_scale=1000)
    async with client(served) as (simulator, ask):
        asking = asyncio.create_task(ask(COMPLETIONS, TINY, **{"X-Request-Id": "mine"}))
        await until(lambda: simulator.engines[0].requests == 1)
        await ask("/abort_requests", {"request_ids": ["cmpl-mine"]})
        answer = await asking

    assert answer.json["metrics"] is None
    assert answer.json["usage"]["completion_tokens"] == 0


@pytest.mark.parametrize(
    ("body", "name"),
    [
        ({"model": "tiny-llama", "prompt": "def hello(world):"}, "tokenize"),
        ({"model": "tiny-llama", "messages": [{"role": "user", "content": "hi"}]}, "tokenize_chat"),
    ],
    ids=["text", "chat"],
)
async def test_tokens_are_told_as_by_vllm(body: Any, name: str):
    answer = await ask_once("/tokenize", body)

    real = capture(name).json
    assert list(answer.json) == list(real)
    assert answer.json["count"] == len(answer.json["tokens"])
    assert answer.json["max_model_len"] == real["max_model_len"]
    assert answer.json["token_strs"] is None


async def test_tokens_become_text_again():
    async with client() as (_, ask):
        tokens = (await ask("/tokenize", {"prompt": "hello world", "return_token_strs": True})).json
        text = await ask("/detokenize", {"tokens": tokens["tokens"]})

    assert text.json == {"prompt": "hello world"}
    assert tokens["token_strs"] == ["hell", "o wo", "rld"]


@pytest.mark.parametrize("path", ["/tokenize", "/detokenize"])
async def test_the_tokens_of_an_unknown_model_are_not_told(path: str):
    answer = await ask_once(path, {"model": "nope", "prompt": "x", "tokens": [1]})

    assert answer.status == 404


async def test_a_completion_is_rendered_without_being_run():
    body = {"prompt": [[1, 2], "abcd"], "n": 2, "max_tokens": 3, "priority": 4, "cache_salt": "s"}
    async with client() as (_, ask):
        answer = await ask("/v1/completions/render", body, **{"X-Request-Id": "mine"})
        page = (await ask("/metrics")).body.decode()

    first, second = answer.json
    expected = {
        "request_id": "cmpl-mine-0",
        "token_ids": [1, 2],
        "features": None,
        "sampling_params": {"n": 2, "max_tokens": 3},
        "model": "tiny-llama",
        "stream": False,
        "stream_options": None,
        "cache_salt": "s",
        "priority": 4,
        "kv_transfer_params": None,
    }
    assert first == expected
    assert (second["request_id"], len(second["token_ids"])) == ("cmpl-mine-1", 1)
    assert 'vllm:prompt_tokens_total{engine="0",model_name="tiny-llama"} 0.0' in page


async def test_a_chat_is_rendered_to_the_tokens_that_tokenize_tells():
    async with client() as (_, ask):
        rendered = await ask("/v1/chat/completions/render", {"messages": HELLO, "model": "a"})
        tokens = await ask("/tokenize", {"messages": HELLO})

    assert rendered.json["token_ids"] == tokens.json["tokens"]
    assert rendered.json["model"] == "a"


async def test_a_rendered_request_is_checked_like_one_that_is_run():
    answer = await ask_once("/v1/completions/render", {"prompt": [7] * 3000})

    assert (answer.status, answer.json["error"]["param"]) == (400, "input_tokens")
