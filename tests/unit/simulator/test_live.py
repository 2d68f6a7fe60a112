"""The live engine in virtual time: what takes how long, and who is told of what."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from prometheus_client.parser import text_string_to_metric_families

from epp.simulator.engine import Engine, EngineLoad, EngineOptions, EngineRequest
from epp.simulator.live import EngineDead, Inbox, LiveEngine
from epp.simulator.telemetry import Telemetry
from epp.simulator.timing import StepTiming

TIMING = StepTiming(base_seconds=1, token_seconds=0, sequence_seconds=0, lora_load_seconds=0)


class House:
    """A live engine with all that it needs."""

    def __init__(self, time_scale: float = 1.0, **options: int) -> None:
        engine_options = EngineOptions(**options)
        self.engine = Engine(engine_options, TIMING)
        self.telemetry = Telemetry("m", engine_options, lora=True)
        self.live = LiveEngine(self.engine, self.telemetry, time_scale=time_scale)

    def submit(self, name: str, inbox: Inbox, index: int = 0, **fields: object) -> None:
        reply = range(1000, 1000 + int(str(fields.pop("reply", 3))))
        self.live.submit(EngineRequest(name, range(10), reply, **fields), inbox, index)

    def sample(self, name: str, **labels: str) -> float:
        families = text_string_to_metric_families(self.telemetry.page().decode())
        return sum(
            sample.value
            for family in families
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )


@asynccontextmanager
async def running(house: House) -> AsyncIterator[LiveEngine]:
    task = asyncio.create_task(house.live.run())
    try:
        yield house.live
    finally:
        task.cancel()
        await asyncio.wait([task])


def now() -> float:
    return asyncio.get_running_loop().time()


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
        assert house.engine.load == EngineLoad(0, 0, 0, 0.0)


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
        house.submit("a", inbox, adapter="x", reply=2)
        house.submit("b", inbox, adapter="x", reply=3)
        house.submit("c", inbox, adapter="y", reply=1)
        await inbox.all()

    shown = {
        sample.labels["running_lora_adapters"]
        for family in text_string_to_metric_families(house.telemetry.page().decode())
        for sample in family.samples
        if sample.name == "vllm:lora_requests_info"
    }

    assert shown == {"x", ""}
