"""Answers held against those of a real vLLM 0.32: the same names in the same order."""

from typing import Any

import pytest

from epp.simulator.engine import EngineOptions
from support.simulated import (
    CHAT,
    COMPLETIONS,
    HELLO,
    TINY,
    ask_once,
    capture,
    events,
    options,
    shape,
)

pytestmark = pytest.mark.looptime(False)  # noqa: FBT003  # the marker has no name for it

USAGE = {"include_usage": True}
CONTINUOUS = {"include_usage": True, "continuous_usage_stats": True}


@pytest.mark.parametrize(
    ("name", "path", "body"),
    [
        pytest.param("completion_nonstream", COMPLETIONS, TINY, id="completion"),
        pytest.param(
            "completion_n2",
            COMPLETIONS,
            {"prompt": ["a b", "c d"], "n": 2, "max_tokens": 2},
            id="several prompts and replies",
        ),
        pytest.param(
            "completion_lora_nonstream",
            COMPLETIONS,
            {
                "model": "a",
                "prompt": [7] * 13,
                "max_tokens": 4,
                "ignore_eos": True,
                "return_token_ids": True,
            },
            id="an adapter, with the tokens",
        ),
        pytest.param("chat_nonstream", CHAT, {"messages": HELLO, "max_tokens": 4}, id="chat"),
        pytest.param("empty_model", COMPLETIONS, {"prompt": "x", "max_tokens": 1}, id="no model"),
        pytest.param("unknown_field_ok", COMPLETIONS, TINY | {"foo": 1}, id="an unknown field"),
        pytest.param(
            "prompt_plus_maxtokens",
            COMPLETIONS,
            {"prompt": [7] * 2000, "max_tokens": 100},
            id="more tokens than there is room for",
        ),
    ],
)
async def test_a_whole_answer_is_made_like_the_real_one(name: str, path: str, body: Any):
    answer = await ask_once(path, body)

    real = capture(name).json
    expected = real["usage"]
    if name in {"completion_n2", "prompt_plus_maxtokens"}:
        assert expected["completion_tokens"] == answer.json["usage"]["completion_tokens"]
    assert shape(answer.json) == shape(real)


@pytest.mark.parametrize(
    ("name", "path", "body"),
    [
        pytest.param("completion_stream_nousage", COMPLETIONS, {"max_tokens": 3}, id="plain"),
        pytest.param(
            "completion_stream_usage",
            COMPLETIONS,
            {"max_tokens": 3, "stream_options": USAGE},
            id="with usage",
        ),
        pytest.param(
            "completion_stream_continuous_usage",
            COMPLETIONS,
            {"max_tokens": 3, "stream_options": CONTINUOUS},
            id="with usage in every event",
        ),
        pytest.param(
            "chat_stream_usage",
            CHAT,
            {"model": "b", "max_tokens": 3, "stream_options": USAGE},
            id="chat with usage",
        ),
        pytest.param(
            "priority_under_fcfs_chat_stream", CHAT, {"max_tokens": 1, "priority": 5}, id="chat"
        ),
    ],
)
async def test_a_stream_has_the_events_of_the_real_one(name: str, path: str, body: Any):
    asked = {"prompt": "x", "messages": HELLO, "stream": True} | body

    answer = await ask_once(path, asked)

    real = capture(name)
    assert shape(events(answer.body)) == shape(events(real.body))
    assert answer.headers["content-type"] == real.headers["content-type"]


async def test_usage_can_be_forced_into_every_stream():
    served = options(force_include_usage=True)

    answer = await ask_once(COMPLETIONS, TINY | {"stream": True}, served=served)

    assert shape(events(answer.body)) == shape(events(capture("stream_force_usage").body))


async def test_without_details_usage_says_nothing_of_the_cache_and_with_metrics_how_long_it_took():
    served = options(prompt_tokens_details=False, per_request_metrics=True, time_scale=1.0)

    answer = await ask_once(COMPLETIONS, TINY, served=served)

    real = capture("noreqid_header")
    assert shape(answer.json) == shape(real.json)
    assert answer.json["metrics"]["time_to_first_token_ms"] > 13
    assert "X-Request-Id" not in answer.headers


async def test_a_stream_without_details_says_nothing_of_the_cache():
    body = TINY | {"stream": True, "stream_options": USAGE}

    answer = await ask_once(COMPLETIONS, body, served=options(prompt_tokens_details=False))

    usage = {"prompt_tokens": 1, "total_tokens": 2, "completion_tokens": 1}
    assert events(answer.body)[-2]["usage"] == usage


async def test_metrics_of_several_tokens_say_how_far_they_were_apart():
    served = options(per_request_metrics=True, time_scale=0.1)

    answer = await ask_once(COMPLETIONS, TINY | {"max_tokens": 5}, served=served)

    said = answer.json["metrics"]
    whole = said["time_to_first_token_ms"] + said["generation_time_ms"]
    assert said["mean_itl_ms"] == pytest.approx(said["generation_time_ms"] / 4)
    assert said["tokens_per_second"] == pytest.approx(5 / whole * 1e3)


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
async def test_the_tokens_of_a_stream_are_those_of_the_whole_answer(path: str):
    body = {"prompt": "x", "messages": HELLO, "max_tokens": 5, "return_token_ids": True}

    whole = (await ask_once(path, body)).json
    stream = events((await ask_once(path, body | {"stream": True})).body)[:-1]

    tokens = [token for one in stream for token in one["choices"][0].get("token_ids") or []]
    first = stream[0] if path == CHAT else stream[0]["choices"][0]
    prompt = whole if path == CHAT else whole["choices"][0]
    assert tokens == whole["choices"][0]["token_ids"]
    assert len(tokens) == 5
    assert first["prompt_token_ids"] == prompt["prompt_token_ids"]
    assert first["prompt_token_ids"]
    assert all("prompt_token_ids" not in one or one is first for one in stream)


async def test_usage_in_every_event_counts_up():
    body = {"messages": HELLO, "max_tokens": 3, "stream": True, "stream_options": CONTINUOUS}

    stream = events((await ask_once(CHAT, body)).body)[:-1]

    counted = [one["usage"]["completion_tokens"] for one in stream]
    assert counted == [0, 1, 2, 3, 3]


async def test_the_prompt_of_several_replies_is_cached_once():
    served = options(engine=EngineOptions(max_model_len=2048, max_num_seqs=1))
    body = {"prompt": [7] * 100, "max_tokens": 1, "n": 3}

    answer = await ask_once(COMPLETIONS, body, served=served)

    assert answer.json["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


async def test_fingerprints_tell_servers_of_several_engines_apart():
    one = (await ask_once(COMPLETIONS, TINY)).json["system_fingerprint"]
    two = (await ask_once(COMPLETIONS, TINY, served=options(data_parallel_size=2))).json

    real = capture("dp_rank_0").json["system_fingerprint"]
    assert [len(one), len(two["system_fingerprint"])] == [len("vllm-0.32.0-fee468bc"), len(real)]
    assert two["system_fingerprint"].startswith("vllm-0.32.0-dp2-")
