"""
LoRA affinity over simulated engines in virtual time, beside the field's rule.

The real director and the real engines; a heap of moments in between. What a picker sees of an
engine is as old as the last scrape, and says of adapters what vLLM says since 0.10: both lists name
those of unfinished requests that have produced a token.
"""

import heapq
import json
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from importlib.metadata import EntryPoint, entry_points
from itertools import count
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import pytest

from epp.framework import (
    EndpointUpdate,
    EndpointView,
    InferenceRequest,
    RawRequest,
    Registry,
    TerminationCause,
)
from epp.framework.registry import ENTRY_POINT_GROUP
from epp.requestcontrol.director import RoutedRequest
from epp.simulator.engine import Adapter, Batch, Engine, EngineOptions, EngineRequest, StepTiming
from epp_plugins.scorers.lora_affinity import LoRAAffinityScorer
from support import wire
from support.core import Core

SCRAPE_SECONDS = 0.2
SLOTS = 4
NUM_ENDPOINTS = 8
ADAPTERS = [f"adapter-{at}" for at in range(20)]
FIELD_CONFIG = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
  - {type: queue-scorer, parameters: {scale: 0}}
  - type: kv-cache-utilization-scorer
  - type: prefix-cache-scorer
  - type: reported-adapters-scorer
schedulingProfiles:
  - name: default
    plugins:
      - {pluginRef: queue-scorer, weight: 2}
      - {pluginRef: kv-cache-utilization-scorer, weight: 2}
      - {pluginRef: prefix-cache-scorer, weight: 3}
      - {pluginRef: reported-adapters-scorer, weight: 2}
"""


class ReportedAdaptersScorer:
    """The field's rule: what endpoints report, and nothing else."""

    def score(self, request: InferenceRequest, endpoints: EndpointView) -> Sequence[float]:
        return [self._level(request.model, one.metrics) for one in endpoints]

    def _level(self, adapter: str, metrics: Any) -> float:
        if adapter in metrics.running_adapters:
            return 1.0
        adapters = len(metrics.running_adapters) + len(metrics.waiting_adapters)
        if adapters < metrics.max_adapters:
            return 0.8
        return 0.6 if adapter in metrics.waiting_adapters else 0.0


class Arrival(NamedTuple):
    at: float
    adapter: str


class Server:
    """An engine, what runs in it, and what it has loaded when."""

    def __init__(self) -> None:
        options = EngineOptions(max_num_seqs=64, max_loras=SLOTS, max_cpu_loras=32)
        self.engine = Engine(options, StepTiming())
        self.batch: Batch | None = None
        self.producing: dict[str, str] = {}
        """The adapters of the requests that have produced a token, by request."""

    def report(self) -> EndpointUpdate:
        load = self.engine.load
        adapters = frozenset(self.producing.values())
        return EndpointUpdate(
            waiting=load.waiting,
            running=load.running,
            kv_usage=load.kv_usage,
            running_adapters=adapters,
            waiting_adapters=adapters,
            max_adapters=SLOTS,
        )


class Trial:
    """A pool under a picker; `run` plays arrivals to their end."""

    def __init__(self, seed: int, config: Path | None = None) -> None:
        field = EntryPoint(
            "reported-adapters-scorer", f"{__name__}:ReportedAdaptersScorer", ENTRY_POINT_GROUP
        )
        registry = Registry([*entry_points(group=ENTRY_POINT_GROUP), field])
        self.core = Core([{"max": SLOTS}] * NUM_ENDPOINTS, config=config, registry=registry)
        self.core.app._rng.seed(seed)
        self.scorer: Any = next(
            (
                one.plugin
                for one in self.core.app.configuration.plugins
                if isinstance(one.plugin, LoRAAffinityScorer)
            ),
            None,
        )
        if self.scorer is not None:
            self.scorer._clock = lambda: self.now
        self.now = 0.0
        self.servers = {one.id: Server() for one in self.core.app.datastore.endpoints()}
        self.loads: list[float] = []
        """When an adapter was loaded."""
        self.ttft: list[tuple[float, float]] = []
        """When each request came, and how long its first token took."""
        self.deferred: list[tuple[float, int]] = []
        """How many requests waited for a slot at each scrape."""
        self.placed: dict[str, Counter[Any]] = {}
        self._open: dict[str, RoutedRequest] = {}
        self._came: dict[str, float] = {}
        self._moments: list[tuple[float, int, Callable[[], Awaitable[None]]]] = []
        self._numbers = count()

    async def run(self, arrivals: Sequence[Arrival], rng: random.Random) -> None:
        for arrival in arrivals:
            self._at(arrival.at, lambda arrival=arrival: self._arrive(arrival.adapter, rng))
        self._at(SCRAPE_SECONDS, self._scrape)
        while self._moments:
            self.now, _, moment = heapq.heappop(self._moments)
            await moment()

    def _at(self, when: float, moment: Callable[[], Awaitable[None]]) -> None:
        heapq.heappush(self._moments, (when, next(self._numbers), moment))

    async def _arrive(self, adapter: str, rng: random.Random) -> None:
        name = str(next(self._numbers))
        body = json.dumps({"model": adapter, "prompt": f"tell me of {name}"}).encode()
        routed = await self.core.app.director.handle_request(RawRequest(wire.POST, body))
        self._open[name], self._came[name] = routed, self.now
        self.placed.setdefault(adapter, Counter())[routed.endpoint.id] += 1
        server = self.servers[routed.endpoint.id]
        start = rng.randrange(1 << 20)
        prompt = range(start, start + rng.randint(50, 250))
        reply = range(rng.randint(20, 60))
        server.engine.add_request(EngineRequest(name, prompt, reply, Adapter(adapter)))
        if server.batch is None:
            self._step(server)

    def _step(self, server: Server) -> None:
        server.batch = server.engine.schedule(self.now)
        self.loads += [self.now] * server.batch.lora_loads
        self._at(self.now + server.batch.duration, lambda: self._stepped(server))

    async def _stepped(self, server: Server) -> None:
        assert server.batch is not None
        step = server.engine.complete(server.batch)
        server.batch = None
        for emission in step.emitted:
            name = emission.request_id
            if name not in server.producing:
                self.ttft.append((self._came[name], self.now - self._came[name]))
                server.producing[name] = self._open[name].request.model
            if emission.finish_reason is not None:
                del server.producing[name]
                self.core.app.director.finish(self._open.pop(name), TerminationCause.COMPLETED)
        if server.engine.has_work:
            self._step(server)

    async def _scrape(self) -> None:
        store = self.core.app.datastore
        for endpoint in store.endpoints():
            report = self.servers[endpoint.id].report()
            store.record(endpoint.id, report, in_flight=endpoint.load.in_flight)
        deferred = sum(one.engine.load.deferred for one in self.servers.values())
        self.deferred.append((self.now, deferred))
        if self._open:
            self._at(self.now + SCRAPE_SECONDS, self._scrape)

    def loads_after(self, seconds: float) -> int:
        return sum(when > seconds for when in self.loads)

    def held_up(self) -> int:
        return sum(held for when, held in self.deferred if when > 1)

    def mean_ttft_after(self, seconds: float) -> float:
        return mean(waited for came, waited in self.ttft if came > seconds)


def burst_and_more(rng: random.Random, *, seconds: float, rate: float) -> list[Arrival]:
    """Two hundred requests at once for twenty adapters, and as evenly on from there."""
    first = ADAPTERS * 10
    rng.shuffle(first)
    arrivals = [Arrival(at * 0.05 / len(first), adapter) for at, adapter in enumerate(first)]
    now = 0.05
    while now < seconds:
        now += rng.expovariate(rate)
        arrivals.append(Arrival(now, rng.choice(ADAPTERS)))
    return arrivals


async def outcomes(tmp_path: Path, seed: int) -> tuple[Trial, Trial]:
    config = tmp_path / "field.yaml"
    config.write_text(FIELD_CONFIG)
    ours, field = Trial(seed), Trial(seed, config)
    for trial in (ours, field):
        rng = random.Random(seed)
        await trial.run(burst_and_more(rng, seconds=10.0, rate=80.0), rng)
    return ours, field


SEEDS = range(3)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("seed", SEEDS)
async def test_adapters_stay_where_the_first_second_put_them(tmp_path: Path, seed: int) -> None:
    """Twenty adapters in 32 slots: the field's rule loads them over and over, ours hardly."""
    ours, field = await outcomes(tmp_path, seed)

    assert ours.loads_after(1) <= 14
    assert 8 * ours.loads_after(1) < field.loads_after(1)
    assert len(ours.loads) < 50


@pytest.mark.timeout(60)
@pytest.mark.parametrize("seed", SEEDS)
async def test_nobody_is_held_up_by_other_adapters(tmp_path: Path, seed: int) -> None:
    ours, field = await outcomes(tmp_path, seed)

    assert 50 * ours.held_up() < field.held_up()
    assert 5 * ours.mean_ttft_after(1) < field.mean_ttft_after(1)
    assert not any(held for when, held in ours.deferred if when > 4)


@pytest.mark.timeout(60)
async def test_all_is_given_back_and_reports_agree(tmp_path: Path) -> None:
    ours, _ = await outcomes(tmp_path, 7)

    state = ours.scorer.dump_state()

    assert (state["openRequests"], state["openAdapters"], ours.core.in_flight) == (0, 0, 0)
    assert state["discrepancies"]["foreign"] == 0
    assert state["discrepancies"]["absent"] <= 2
