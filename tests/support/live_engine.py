"""A live engine with all that it needs, for tests in virtual time."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from epp.simulator.engine import CacheEvent, Engine, EngineOptions, EngineRequest, StepTiming
from epp.simulator.faults import Faults, FaultSwitch
from epp.simulator.inbox import Inbox
from epp.simulator.live import LiveEngine
from epp.simulator.passage import Passage
from epp.simulator.telemetry import Telemetry

TIMING = StepTiming(base_seconds=1, token_seconds=0, sequence_seconds=0, lora_load_seconds=0)


class House:
    """A live engine with all that it needs."""

    def __init__(
        self, time_scale: float = 1.0, faults: Faults | None = None, **options: Any
    ) -> None:
        engine_options = EngineOptions(**options)
        self.engine = Engine(engine_options, TIMING)
        self.telemetry = Telemetry("m", engine_options, lora=True)
        self.faults = FaultSwitch(faults or Faults())
        self.published: list[CacheEvent] = []
        self.live = LiveEngine(
            self.engine,
            self.telemetry.engines[0],
            time_scale=time_scale,
            faults=self.faults,
            publish=self.published.extend,
        )

    def submit(self, name: str, inbox: Inbox, index: int = 0, **fields: Any) -> Passage:
        reply = range(1000, 1000 + fields.pop("reply", 3))
        prompt = range(fields.pop("prompt", 10))
        request = EngineRequest(name, prompt, reply, arrival=self.live.now(), **fields)
        return self.live.submit(request, inbox, index)

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
