"""Several engines behind one port: who gets a request, and what is told of each."""

import asyncio
from typing import Any

import pytest

from epp.simulator.engine import EngineOptions
from support.simulated import COMPLETIONS, TINY, ask_once, capture, client, options, until

pytestmark = pytest.mark.looptime(False)  # noqa: FBT003  # the marker has no name for it

TWO = options(data_parallel_size=2)
SLOW_TWO = options(
    data_parallel_size=2,
    time_scale=1000,
    engine=EngineOptions(max_model_len=160, num_gpu_blocks=11, max_num_seqs=1),
)
RANK = "X-data-parallel-rank"


async def test_a_rank_that_is_out_of_range_is_refused_as_by_vllm():
    answer = await ask_once(COMPLETIONS, TINY, served=TWO, **{RANK: "2"})

    assert answer[::2] == capture("dp_rank_2")[::2]


@pytest.mark.parametrize("rank", ["one", "-1", "", "1.0"])
async def test_a_rank_that_is_no_number_is_ignored(rank: str):
    answer = await ask_once(COMPLETIONS, TINY, served=TWO, **{RANK: rank})

    assert answer.status == 200


@pytest.mark.parametrize("rank", [0, 1])
async def test_a_header_chooses_the_engine(rank: int):
    async with client(TWO) as (_, ask):
        for _ in range(3):
            await ask(COMPLETIONS, TINY, **{RANK: str(rank)})
        page = (await ask("/metrics")).body.decode()

    served = [
        f'vllm:generation_tokens_total{{engine="{one}",model_name="tiny-llama"}} '
        f"{3.0 if one == rank else 0.0}"
        for one in range(2)
    ]
    assert all(line in page for line in served)


async def test_requests_go_where_fewest_are():
    async with client(SLOW_TWO) as (simulator, ask), asyncio.TaskGroup() as group:
        tasks = []
        counts = []
        for sent in range(1, 5):
            tasks.append(group.create_task(ask(COMPLETIONS, TINY)))
            await until(lambda sent=sent: sum(_requests(simulator)) == sent)
            counts.append(_requests(simulator))
        for task in tasks:
            task.cancel()

    assert counts == [(1, 0), (1, 1), (2, 1), (2, 2)]


async def test_waiting_weighs_more_where_the_cache_is_nearly_full():
    full = {"prompt": [7] * 150, "max_tokens": 1}
    async with client(SLOW_TWO) as (simulator, ask), asyncio.TaskGroup() as group:

        async def send(body: Any, **headers: str) -> asyncio.Task[Any]:
            before = sum(_requests(simulator))
            task = group.create_task(ask(COMPLETIONS, body, **headers))
            await until(lambda: sum(_requests(simulator)) == before + 1)
            return task

        # Rank 0: a full cache and one that waits. Rank 1: an empty one, and three short ones.
        tasks = [await send(full, **{RANK: "0"})]
        await until(lambda: simulator.engines[0].load.kv_usage == 1)
        tasks.append(await send(full, **{RANK: "0"}))
        tasks += [await send(TINY, **{RANK: "1"}) for _ in range(3)]
        tasks.append(await send(TINY))
        counts = _requests(simulator)
        for task in tasks:
            task.cancel()

    assert counts == (2, 4)


async def test_the_death_of_one_engine_is_the_death_of_all():
    async with client(SLOW_TWO) as (simulator, ask):
        waiting = asyncio.create_task(ask(COMPLETIONS, TINY, **{RANK: "1"}))
        await until(lambda: simulator.engines[1].load.running == 1)
        await ask("/faults", {"die_at_step": 1})
        first = await ask(COMPLETIONS, TINY, **{RANK: "0"})
        second = await waiting

        assert simulator.dead.is_set()
    assert (first.status, second.status) == (500, 500)


def _requests(simulator: Any) -> tuple[int, ...]:
    return tuple(engine.requests for engine in simulator.engines)
