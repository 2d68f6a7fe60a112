"""The live engine in virtual time: what takes how long, and who is told of what."""

import asyncio
from collections.abc import Iterator, Sequence

import pytest
from prometheus_client.parser import text_string_to_metric_families

from epp.simulator.engine import (
    Adapter,
    Admission,
    AllBlocksCleared,
    Batch,
    BlockStored,
    CacheEvent,
    EngineLoad,
    EngineRequest,
)
from epp.simulator.faults import Faults
from epp.simulator.inbox import EngineDead, Inbox
from epp.simulator.live import LiveEngine
from support.live_engine import House, now, running


async def test_tokens_come_as_each_step_ends():
    house, inbox = House(), Inbox()
    async with running(house):
        began = now()
        house.submit("a", inbox, index=7)
        times = [(await inbox.next(), now() - began) for _ in range(3)]

    assert times == [
        ((7, 1000, None), 1.0),
        ((7, 1001, None), 2.0),
        ((7, 1002, "length"), 3.0),
    ]


@pytest.mark.parametrize(
    ("time_scale", "seconds"),
    [
        pytest.param(0.0, 0.0, id="no waiting"),
        pytest.param(0.5, 1.5, id="twice as fast"),
        pytest.param(2.0, 6.0, id="half as fast"),
    ],
)
async def test_time_is_scaled(time_scale: float, seconds: float):
    house, inbox = House(time_scale), Inbox()
    async with running(house):
        began = now()
        house.submit("a", inbox)
        await inbox.all()

        assert now() - began == pytest.approx(seconds)


async def test_who_arrives_within_a_step_joins_the_next():
    house, inbox = House(), Inbox()
    async with running(house):
        began = now()
        house.submit("a", Inbox(), reply=9)
        await asyncio.sleep(0.5)
        house.submit("b", inbox)
        await inbox.next()

        assert now() - began == pytest.approx(2.0)


async def test_an_idle_engine_starts_with_the_first_request_that_comes():
    house, inbox = House(), Inbox()
    async with running(house):
        await asyncio.sleep(1000.3)
        began = now()
        house.submit("a", inbox, reply=1)
        await inbox.all()

        assert now() - began == pytest.approx(1.0)


async def test_a_reader_of_several_requests_knows_whose_token_it_has():
    house, inbox = House(), Inbox()
    async with running(house):
        house.submit("a", inbox, index=0, reply=1)
        house.submit("b", inbox, index=1, reply=2)

        tokens = await inbox.all()

    assert tokens == [(0, 1000, "length"), (1, 1000, None), (1, 1001, "length")]


async def test_an_aborted_request_says_nothing_more_and_frees_its_place():
    house, inbox = House(max_num_seqs=1), Inbox()
    gone = Inbox()
    async with running(house) as live:
        house.submit("a", gone, reply=9)
        house.submit("b", inbox, reply=1)
        await asyncio.sleep(1.5)
        live.abort("a")

        assert await inbox.all() == [(0, 1000, "length")]
        assert gone.backlog == 1
        assert live.requests == 0
        assert house.engine.load == EngineLoad(0, 0, 0, 0, 0.0, 0.0)


async def test_to_abort_what_has_ended_is_no_matter():
    house, inbox = House(), Inbox()
    async with running(house) as live:
        house.submit("a", inbox)
        await inbox.all()

        live.abort("a")

        assert house.sample("vllm:request_success_total") == 1


async def test_who_waits_when_the_engine_stops_is_told():
    house, inbox = House(), Inbox()
    async with running(house):
        house.submit("a", inbox, reply=9)
        await inbox.next()

    with pytest.raises(EngineDead):
        await inbox.next()
    with pytest.raises(EngineDead):
        await inbox.all()
    with pytest.raises(EngineDead):
        house.submit("b", Inbox())


async def test_latencies_are_those_that_a_client_sees():
    house, inbox = House(max_num_seqs=1), Inbox()
    async with running(house):
        house.submit("a", inbox, reply=3)
        house.submit("b", inbox, index=1, reply=1)
        await inbox.all()

    expected = {
        "request_queue_time": 0 + 3,
        "time_to_first_token": 1 + 4,
        "inter_token_latency": 1 + 1,
        "e2e_request_latency": 3 + 4,
    }
    measured = {name: house.sample(f"vllm:{name}_seconds_sum") for name in expected}

    assert measured == pytest.approx(expected)


async def test_latencies_are_measured_by_the_clock_that_was_given():
    ticks: Iterator[float] = iter([0.0, 0.25, 0.75])
    house, inbox = House(), Inbox()
    live = LiveEngine(house.engine, house.telemetry.engines[0], clock=lambda: next(ticks))
    task = asyncio.create_task(live.run())
    passage = live.submit(EngineRequest("a", [1, 2], [3]), inbox)
    await inbox.all()
    task.cancel()

    assert (passage.arrived, passage.admitted, passage.first_token) == (0.0, 0.25, 0.75)


async def test_gauges_show_the_engine_after_its_last_step():
    house = House(max_num_seqs=1)
    async with running(house) as live:
        house.submit("a", Inbox(), reply=9)
        house.submit("b", Inbox(), reply=9)
        await asyncio.sleep(1.5)
        busy = [house.sample(f"vllm:num_requests_{state}") for state in ("running", "waiting")]
        live.abort("a")
        live.abort("b")
        idle = [house.sample(f"vllm:num_requests_{state}") for state in ("running", "waiting")]

    assert busy == [1, 1]
    assert idle == [0, 0]


async def test_adapters_are_shown_from_their_first_token_to_their_last_request_s_end():
    house, inbox = House(max_loras=1), Inbox()
    async with running(house):
        house.submit("a", inbox, adapter=Adapter("x"), reply=2)
        house.submit("b", inbox, adapter=Adapter("x"), reply=3)
        house.submit("c", inbox, adapter=Adapter("y"), reply=1)
        await inbox.all()

    shown = {
        sample.labels["running_lora_adapters"]
        for family in text_string_to_metric_families(house.telemetry.page().decode())
        for sample in family.samples
        if sample.name == "vllm:lora_requests_info"
    }

    assert shown == {"x", ""}


async def test_a_slowed_engine_takes_longer_for_each_step_from_then_on():
    house, inbox = House(), Inbox()
    async with running(house):
        began = now()
        house.submit("a", inbox)
        await inbox.next()
        house.faults.now = Faults(slow_down=3)
        await inbox.next()
        await inbox.next()

        # The second step was under way already.
        assert now() - began == pytest.approx(1 + 1 + 3)


async def test_an_engine_dies_at_its_step_and_tells_who_waits():
    house, inbox = House(faults=Faults(die_at_step=3)), Inbox()
    task = asyncio.create_task(house.live.run())
    house.submit("a", inbox, reply=9)

    tokens = [await inbox.next() for _ in range(2)]
    with pytest.raises(EngineDead):
        await inbox.next()

    assert [token for _, token, _ in tokens] == [1000, 1001]
    with pytest.raises(EngineDead):
        await task


async def test_any_error_kills_an_engine_and_the_cause_is_told_without_what_it_was_about():
    def fail(_events: Sequence[CacheEvent]) -> None:
        raise KeyError("a secret")

    house, inbox = House(), Inbox()
    live = LiveEngine(house.engine, house.telemetry.engines[0], publish=fail)
    task = asyncio.create_task(live.run())
    live.submit(EngineRequest("a", [1, 2], [3, 4]), inbox)

    await inbox.next()
    with pytest.raises(EngineDead):
        await inbox.next()
    with pytest.raises(EngineDead):
        live.submit(EngineRequest("b", [1, 2], [3, 4]), inbox)
    with pytest.raises(EngineDead, match=f"^KeyError in {__name__}, line [0-9]+$"):
        await task


async def test_a_request_that_is_ended_tells_its_reader():
    house, inbox = House(), Inbox()
    async with running(house) as live:
        house.submit("a", inbox, reply=9)
        await inbox.next()

        live.end("a")
        live.end("a")

        assert await inbox.all() == [(0, None, "abort")]
        assert live.requests == 0
    assert house.sample("vllm:request_success_total", finished_reason="abort") == 1


async def test_the_queue_is_who_had_no_seat_yet():
    house = House(max_num_seqs=1)
    async with running(house) as live:
        house.submit("a", Inbox(), reply=9, prompt=10)
        house.submit("b", Inbox(), reply=9, prompt=20)
        house.submit("c", Inbox(), reply=9, prompt=30)
        queues = [(live.queued_requests, live.queued_tokens)]
        await asyncio.sleep(0.5)
        queues.append((live.queued_requests, live.queued_tokens))
        live.abort("b")
        queues.append((live.queued_requests, live.queued_tokens))
        live.abort("a")
        await asyncio.sleep(2)
        queues.append((live.queued_requests, live.queued_tokens))

    assert queues == [(3, 60), (2, 50), (1, 30), (0, 0)]


async def test_a_preempted_request_does_not_queue_again():
    house = House(max_num_seqs=2, num_gpu_blocks=4, block_size=4, max_model_len=12)
    inbox, passages = Inbox(), []
    async with running(house) as live:
        passages += [house.submit(name, inbox, prompt=4, reply=6) for name in "ab"]
        await inbox.all()

        assert (live.queued_requests, live.queued_tokens) == (0, 0)
    assert sum(passage.preemptions for passage in passages) > 0
    assert house.sample("vllm:num_preemptions_total") > 0


async def test_who_is_sent_away_and_admitted_again_in_one_step_runs():
    house = House()
    passage = house.submit("a", Inbox(), adapter=Adapter("x"))
    house.live._note_moves(_step_of(admitted=["a"]), 1)

    house.live._note_moves(_step_of(admitted=["a"], preempted=["a"]), 2)

    adapters = passage._adapters
    assert (list(adapters.running.names), list(adapters.waiting.names)) == (["x"], [])


def _step_of(*, admitted: list[str], preempted: Sequence[str] = ()) -> Batch:
    batch = Batch(budget=9)
    batch.admitted += [Admission(name, 10, 0, resumed=False) for name in admitted]
    batch.preempted += preempted
    return batch


async def test_a_request_that_was_swapped_out_comes_back():
    house = House(
        max_num_seqs=2,
        num_gpu_blocks=4,
        block_size=4,
        max_model_len=12,
        preemption_mode="swap",
        num_cpu_blocks=8,
    )
    inbox, passages = Inbox(), []
    async with running(house) as live:
        passages += [house.submit(name, inbox, prompt=4, reply=6) for name in "ab"]
        tokens = await inbox.all()

        assert live.load == EngineLoad(0, 0, 0, 0, 0.0, 0.0)
    assert len(tokens) == 12
    assert sum(passage.preemptions for passage in passages) > 0


async def test_what_the_cache_does_is_published_as_each_step_ends():
    house, inbox = House(block_size=4, kv_events=True), Inbox()
    async with running(house) as live:
        house.submit("a", inbox, prompt=9, reply=1)
        await inbox.all()
        stored = list(house.published)
        reset = live.reset_prefix_cache()
        before = len(house.published)
        house.submit("b", inbox, prompt=3, reply=1)
        await inbox.next()
        await inbox.next()

    assert [type(event) for event in stored] == [BlockStored]
    assert reset is True
    assert [type(event) for event in house.published[before:]] == [AllBlocksCleared]


async def test_the_engine_s_own_time_is_scaled_like_its_steps():
    quick, instant = House(time_scale=0.5), House(time_scale=0)
    async with running(quick), running(instant):
        began = quick.live.now(), instant.live.now()
        inbox = Inbox()
        quick.submit("a", inbox, reply=3)
        instant.submit("b", inbox, reply=3)
        await inbox.all()

        taken = quick.live.now() - began[0], instant.live.now() - began[1]
        assert taken == pytest.approx((3, 3))


async def test_lateness_is_counted():
    house, inbox = House(), Inbox()
    async with running(house):
        house.submit("a", inbox, reply=3)
        await inbox.all()

    assert (house.live.pace.steps, house.live.pace.latest_seconds) == (3, pytest.approx(0, abs=0.1))
