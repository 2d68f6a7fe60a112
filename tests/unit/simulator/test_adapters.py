"""Adapters that come and go over HTTP, held against captures of a real vLLM 0.32."""

import asyncio
from typing import Any

import pytest

from epp.simulator.engine import StepTiming
from support.simulated import COMPLETIONS, TINY, ask_once, capture, client, options, shape, until

pytestmark = pytest.mark.looptime(False)  # noqa: FBT003  # the marker has no name for it

LOAD, UNLOAD = "/v1/load_lora_adapter", "/v1/unload_lora_adapter"
OPEN = options(lora_modules=("a=/srv/lora/a", "b", "c"), runtime_lora_updating=True)
D = {"lora_name": "d", "lora_path": "/srv/lora/d"}


async def test_what_vllm_says_to_loading_and_unloading():
    script: list[tuple[str, str, Any]] = [
        ("lora_load_ok", LOAD, D),
        ("lora_load_duplicate", LOAD, D),
        ("lora_load_inplace", LOAD, D | {"load_inplace": True}),
        ("lora_load_missing_path", LOAD, {"lora_name": "zz", "lora_path": "/nonexistent/zz"}),
        ("lora_load_missing_field", LOAD, {"lora_name": "zz"}),
        ("lora_load_empty_field", LOAD, {"lora_name": "", "lora_path": ""}),
        ("lora_load_same_as_base", LOAD, D | {"lora_name": "tiny-llama"}),
        ("lora_unload_ok", UNLOAD, {"lora_name": "d"}),
        ("lora_unload_again", UNLOAD, {"lora_name": "d"}),
        ("lora_unload_missing_field", UNLOAD, {}),
        ("lora_use_after_unload", COMPLETIONS, TINY | {"model": "d"}),
    ]
    async with client(OPEN) as (_, ask):
        said = [(name, *(await ask(path, body))[::2]) for name, path, body in script]

    expected = [(name, *capture(name)[::2]) for name, _, _ in script]
    assert said == expected


async def test_what_has_no_name_is_not_unloaded():
    answer = await ask_once(UNLOAD, {"lora_name": ""}, served=OPEN)

    assert (answer.status, answer.json["error"]["type"]) == (400, "InvalidUserInput")


async def test_models_are_listed_as_by_vllm():
    async with client(OPEN) as (_, ask):
        await ask(LOAD, D)
        listed = (await ask("/v1/models")).json

    real = capture("lora_models_after").json
    names = ("id", "root", "parent", "max_model_len")
    assert shape(listed) == shape(real)
    assert [tuple(card[name] for name in names) for card in listed["data"]] == [
        ("tiny-llama", "tiny-llama", None, 2048),
        ("a", "/srv/lora/a", "tiny-llama", None),
        ("b", "b", "tiny-llama", None),
        ("c", "c", "tiny-llama", None),
        ("d", "/srv/lora/d", "tiny-llama", None),
    ]


async def test_an_unloaded_adapter_finishes_what_it_has_begun():
    served = options(
        runtime_lora_updating=True, time_scale=1, timing=StepTiming(base_seconds=0.002)
    )
    async with client(served) as (simulator, ask):
        asking = asyncio.create_task(ask(COMPLETIONS, TINY | {"model": "a", "max_tokens": 20}))
        await until(lambda: simulator.engines[0].load.running == 1)

        unloaded = await ask(UNLOAD, {"lora_name": "a"})
        answer = await asking

    assert unloaded[::2] == capture("lora_unload_in_use")[::2]
    assert (answer.status, answer.json["usage"]["completion_tokens"]) == (200, 20)


async def test_an_adapter_loaded_in_place_shares_no_cache_with_what_it_was():
    body = {"model": "a", "prompt": [7] * 100, "max_tokens": 1}
    async with client(OPEN) as (_, ask):
        await ask(COMPLETIONS, body)
        await ask(LOAD, {"lora_name": "a", "lora_path": "/srv/lora/e", "load_inplace": True})
        answers = [await ask(COMPLETIONS, body) for _ in range(2)]

    cached = [one.json["usage"]["prompt_tokens_details"]["cached_tokens"] for one in answers]
    assert cached == [0, 96]


async def test_an_adapter_loaded_in_place_has_to_be_loaded_again():
    seconds = 0.2
    timing = StepTiming(base_seconds=0, token_seconds=0, lora_load_seconds=seconds)
    served = options(runtime_lora_updating=True, time_scale=1, timing=timing)
    took = []
    async with client(served) as (_, ask):
        for in_place in (False, False, True):
            if in_place:
                await ask(LOAD, {"lora_name": "a", "lora_path": "/e", "load_inplace": True})
            began = asyncio.get_running_loop().time()
            await ask(COMPLETIONS, TINY | {"model": "a"})
            took.append(asyncio.get_running_loop().time() - began >= seconds)

    assert took == [True, False, True]


async def test_metrics_name_the_adapter_in_use():
    async with client(OPEN) as (_, ask):
        await ask(COMPLETIONS, TINY | {"model": "a", "max_tokens": 2})
        page = await ask("/metrics")

    assert b'vllm:lora_requests_info{max_lora="4",running_lora_adapters="a"' in page.body


async def test_an_adapter_of_another_server_is_unknown():
    answer = await ask_once(COMPLETIONS, TINY | {"model": "a"}, served=options(lora_modules=()))

    assert answer.status == 404
