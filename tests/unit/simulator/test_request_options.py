"""What a request may say beside its prompt, in its headers and fields."""

import asyncio
import json
from typing import Any

import pytest

from epp.simulator.api.headers import load_header
from epp.simulator.engine import EngineOptions, StepTiming
from support.simulated import (
    CAPTURES,
    CHAT,
    COMPLETIONS,
    HELLO,
    SLOW,
    TINY,
    ask_once,
    capture,
    client,
    options,
    until,
)

pytestmark = pytest.mark.looptime(False)  # noqa: FBT003  # the marker has no name for it


def one_seat(policy: str) -> Any:
    return options(
        engine=EngineOptions(max_model_len=2048, max_num_seqs=1, scheduling_policy=policy),
        timing=StepTiming(base_seconds=0.001),
        time_scale=1,
    )


@pytest.mark.parametrize(
    ("policy", "order"),
    [("fcfs", ["0", "1", "2", "3", "4"]), ("priority", ["4", "2", "1", "0", "3"])],
    ids=["ignored under fcfs", "lower first under priority"],
)
async def test_priorities_order_the_queue_and_a_header_wins(policy: str, order: list[str]):
    asked = [
        (5, {}),
        (0, {}),
        (-5, {}),
        (-99, {"X-Vllm-Priority": "10"}),
        (99, {"X-Vllm-Priority": "-20"}),
    ]
    answered: list[str] = []

    async with client(one_seat(policy)) as (simulator, ask):
        engine = simulator.engines[0]
        blocker = asyncio.create_task(ask(COMPLETIONS, TINY | {"max_tokens": 50}))
        await until(lambda: engine.load.running == 1)

        async def send(name: str, priority: int, headers: dict[str, str]) -> None:
            answer = await ask(COMPLETIONS, TINY | {"priority": priority}, **headers)
            assert answer.status == 200
            answered.append(name)

        async with asyncio.TaskGroup() as group:
            for index, (priority, headers) in enumerate(asked):
                group.create_task(send(str(index), priority, headers))
                await until(lambda at=index: engine.requests == at + 2)
        await blocker

    assert answered == order


@pytest.mark.parametrize(
    ("body", "headers", "expected"),
    [
        pytest.param({}, {"X-Request-Id": "mine"}, "cmpl-mine", id="header"),
        pytest.param({"request_id": "its"}, {}, "cmpl-its", id="field"),
        pytest.param({"request_id": "its"}, {"X-Request-Id": "mine"}, "cmpl-mine", id="both"),
    ],
)
async def test_an_id_given_by_the_client_is_kept(
    body: dict[str, str], headers: dict[str, str], expected: str
):
    answer = await ask_once(COMPLETIONS, TINY | body, **headers)

    assert answer.json["id"] == expected


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_ids_are_echoed_where_that_is_asked_for(stream: bool):
    async with client(options(request_id_headers=True)) as (_, ask):
        mine = await ask(COMPLETIONS, TINY | {"stream": stream}, **{"X-Request-Id": "mine"})
        new = await ask(COMPLETIONS, TINY | {"stream": stream})
        missing = await ask("/nowhere")

    assert mine.headers["X-Request-Id"] == "mine"
    assert len(new.headers["X-Request-Id"]) == len(missing.headers["X-Request-Id"]) == 32


@pytest.mark.parametrize(
    ("name", "load_format"), [("orca_text", "TEXT"), ("orca_json", "JSON")], ids=["text", "json"]
)
@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
async def test_the_load_is_told_in_a_header_as_by_vllm(path: str, name: str, load_format: str):
    body = TINY | {"messages": HELLO}

    answer = await ask_once(path, body, **{"endpoint-load-metrics-format": load_format})

    told = answer.headers["endpoint-load-metrics"]
    assert told == capture(name).headers["endpoint-load-metrics"]


@pytest.mark.parametrize(
    ("load_format", "stream"), [("JSON", True), ("XML", False)], ids=["a stream", "no such form"]
)
async def test_no_load_is_told(load_format: str, stream: bool):
    body = TINY | {"stream": stream}

    answer = await ask_once(COMPLETIONS, body, **{"endpoint-load-metrics-format": load_format})

    assert "endpoint-load-metrics" not in answer.headers


def test_a_load_is_told_as_floats():
    assert load_header("TEXT", waiting=3, kv_usage=0.25) == (
        "TEXT named_metrics.num_requests_waiting=3.0, named_metrics.kv_cache_usage_perc=0.25"
    )


async def test_salts_share_no_cache():
    body = {"prompt": [7] * 100, "max_tokens": 1}
    async with client() as (_, ask):
        answers = [
            await ask(COMPLETIONS, body | salted)
            for salted in ({}, {"cache_salt": "s"}, {"cache_salt": "s"}, {"cache_salt": "t"})
        ]

    cached = [one.json["usage"]["prompt_tokens_details"]["cached_tokens"] for one in answers]
    assert cached == [0, 0, 96, 0]


async def test_a_prefill_is_handed_off():
    served = options(engine=EngineOptions(max_model_len=2048, block_size=16))
    body = {"prompt": [7] * 33, "max_tokens": 1, "kv_transfer_params": {"do_remote_decode": True}}

    answer = await ask_once(COMPLETIONS, body, served=served, **{"X-Request-Id": "mine"})

    params = answer.json["kv_transfer_params"]
    assert params.pop("remote_engine_id") == answer.json["system_fingerprint"]
    assert params == {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_block_ids": [1, 2, 3],
        "remote_request_id": "cmpl-mine",
        "remote_host": "127.0.0.1",
        "remote_port": 5600,
        "tp_size": 1,
    }


async def test_other_transfer_params_come_back_as_they_came():
    body = {"kv_transfer_params": {"do_remote_prefill": True}, "ec_transfer_params": {"x": [1]}}

    answer = (await ask_once(COMPLETIONS, TINY | body)).json

    assert {name: answer[name] for name in body} == body


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ({"max_num_queued_reqs": 2}, "max_num_queued_reqs"),
        ({"max_num_queued_tokens": 25}, "max_num_queued_tokens"),
    ],
    ids=["requests", "tokens"],
)
async def test_a_full_queue_refuses_what_comes(limits: dict[str, int], reason: str):
    served = options(
        engine=EngineOptions(max_model_len=2048, max_num_seqs=1), time_scale=1000, **limits
    )
    body = {"prompt": [7] * 10, "max_tokens": 9}
    async with client(served) as (simulator, ask):
        engine = simulator.engines[0]
        asking = [asyncio.create_task(ask(COMPLETIONS, body))]
        await until(lambda: engine.load.running == 1)
        asking += [asyncio.create_task(ask(COMPLETIONS, body)) for _ in range(2)]
        await until(lambda: engine.queued_requests == 2)

        refused = await ask(COMPLETIONS, body)
        page = (await ask("/metrics")).body.decode()
        for task in asking:
            task.cancel()

    assert (refused.status, refused.body.decode()) == (503, _overload())
    counted = f'vllm:admission_rejections_total{{model_name="tiny-llama",reason="{reason}"}} 1.0'
    assert counted in page


def _overload() -> str:
    line = (CAPTURES / "overload_503.jsonl").read_text().splitlines()[0]
    return str(json.loads(line)["err"])


async def test_by_default_nobody_is_refused():
    async with client(SLOW) as (simulator, ask):
        asking = [asyncio.create_task(ask(COMPLETIONS, TINY)) for _ in range(90)]
        await until(lambda: simulator.engines[0].requests == 90)
        for task in asking:
            task.cancel()
