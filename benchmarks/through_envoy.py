"""
The cost of a request through a real Envoy: CPU of the picker and of Envoy, and added latency.

CPU is what the kernel says a process used over a run, less what it uses at rest, divided by the
requests of the run. Everything is measured in several rounds, in which the picker, its gRPC door
and the floor take turns, and medians count: a disturbance of the machine then falls on all, or on
one round. Added latency is what one client alone waits for the first byte of a response, against
the same Envoy without the filter; paced latency is what many wait who come at random times.
"""

import asyncio
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import load
from benchmarks.load import Load
from benchmarks.report import Cost, Latency, Paced, ScenarioResult
from benchmarks.stand import Stand, Subject, cpu_seconds
from benchmarks.workloads import SHORT, Scenario, Workload

CONNECTIONS = 16
SLOW_CONNECTIONS = {"lean": 64, "duplex": 16}
"""As many streams as two cores bear while each chunk still reaches Envoy by itself."""

COMPARED_DOORS = ("short", "stream-100")
"""The workloads that are measured through both doors."""

SETTLE_SECONDS = 0.05
"""For the last streams of a load to end in the picker."""

LONGEST_TIMED_SECONDS = 0.25
"""Latency is not measured of what takes longer: a handful of samples would say nothing."""

MIN_SAMPLES_OF_P99 = 100


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured: rounds, seconds of each, and whether all workloads see the floor."""

    rounds: int
    slow_rounds: int
    load_seconds: int
    slow_seconds: float
    rest_seconds: float
    latency_seconds: float
    paced_seconds: float
    whole_floor: bool


FULL = Plan(4, 3, 1, 1.5, 3.0, 0.4, 5.0, whole_floor=True)
QUICK = Plan(1, 1, 1, 1.2, 2.5, 0.5, 1.0, whole_floor=False)


@dataclass(slots=True)
class Tally:
    """The rounds of one scenario so far."""

    picker: list[Cost] = field(default_factory=list)
    grpc: list[Cost] = field(default_factory=list)
    floor: list[Cost] = field(default_factory=list)
    direct: list[float] = field(default_factory=list)
    through: list[float] = field(default_factory=list)
    samples: Counter[str] = field(default_factory=Counter)


class Bench:
    """Measures scenarios on a stand."""

    def __init__(self, stand: Stand, plan: Plan, folder: Path) -> None:
        self._stand = stand
        self._plan = plan
        self._folder = folder

    async def run(
        self, scenarios: Sequence[Scenario], say: Callable[[str], None]
    ) -> list[ScenarioResult]:
        """Return what each scenario costs; raises LoadFailed where requests fail."""
        for subject in (self._stand.picker, self._stand.grpc, self._stand.floor):
            for envoy in subject.envoys.values():
                await load.own(envoy.port, SHORT.requests(), connections=4, seconds=0.3)
        tallies = [Tally() for _ in scenarios]
        for at in range(self._plan.rounds):
            for scenario, tally in zip(scenarios, tallies, strict=True):
                if at < self._plan.slow_rounds or not scenario.workload.seconds:
                    say(f"measuring {scenario.name}, round {at + 1}")
                    await self._round(scenario, tally)
        return [
            result(scenario.name, tally) for scenario, tally in zip(scenarios, tallies, strict=True)
        ]

    async def _round(self, scenario: Scenario, tally: Tally) -> None:
        picker, grpc, floor = self._stand.picker, self._stand.grpc, self._stand.floor
        if picker.profile is not None:
            await picker.samples()  # what was before is not this scenario's
        tally.picker.append(await self._cost(picker, scenario))
        if picker.profile is not None:
            tally.samples.update(await picker.samples())
        if scenario.workload.name in COMPARED_DOORS:
            tally.grpc.append(await self._cost(grpc, scenario))
        if self._plan.whole_floor or scenario.workload is SHORT:
            tally.floor.append(await self._cost(floor, scenario))
        if scenario.workload.seconds < LONGEST_TIMED_SECONDS:
            through = picker.envoys[scenario.mode].port
            tally.direct += await self._one_client(self._stand.direct.port, scenario.workload)
            tally.through += await self._one_client(through, scenario.workload)

    async def paced(self, short: ScenarioResult) -> Paced:
        """Return what short requests wait at half of the rate that was borne."""
        per_second = short.picker.per_second / 2
        port = self._stand.picker.envoys["lean"].port
        requests = SHORT.requests()
        done = await load.paced(
            port, requests, per_second=per_second, seconds=self._plan.paced_seconds
        )
        p50, p99 = statistics.median(done.latencies), _p99(done.latencies)
        return Paced(per_second, done.requests, p50 * 1e3, p99 * 1e3)

    async def _cost(self, subject: Subject, scenario: Scenario) -> Cost:
        envoy = subject.envoys[scenario.mode]
        pids = (subject.child.pid, envoy.child.pid)
        began, before = time.perf_counter(), [cpu_seconds(pid) for pid in pids]
        done = await self._load(envoy.port, scenario)
        await asyncio.sleep(SETTLE_SECONDS)
        own, gateway = (cpu_seconds(pid) - used for pid, used in zip(pids, before, strict=True))
        own -= subject.cores_at_rest * (time.perf_counter() - began)
        return Cost(
            done.requests,
            done.requests / done.seconds,
            own / done.requests * 1e6,
            gateway / done.requests * 1e6,
            own / gateway,
        )

    async def _load(self, port: int, scenario: Scenario) -> Load:
        workload = scenario.workload
        if workload.seconds:
            # `wrk` would cut the requests that are open at its end, which is most of them.
            return await load.own(
                port,
                workload.requests(),
                connections=SLOW_CONNECTIONS[scenario.mode],
                seconds=self._plan.slow_seconds,
            )
        seconds = self._plan.load_seconds
        if load.has_wrk():
            return await load.wrk(
                port, workload.bodies(), self._folder, connections=CONNECTIONS, seconds=seconds
            )
        return await load.own(port, workload.requests(), connections=CONNECTIONS, seconds=seconds)

    async def _one_client(self, port: int, workload: Workload) -> Sequence[float]:
        seconds = max(self._plan.latency_seconds / 2, 1.5 * workload.seconds)  # two at least
        done = await load.own(port, workload.requests(), connections=1, seconds=seconds)
        # The first request also opens Envoy's connections.
        return done.latencies[1:] or done.latencies


def result(name: str, tally: Tally) -> ScenarioResult:
    """Return the figures of a scenario, of its rounds; what was not measured is missing."""
    picker, grpc, floor = tally.picker, tally.grpc, tally.floor
    cost = median(picker)
    seen = tally.samples.total()
    return ScenarioResult(
        name,
        cost,
        median(grpc) if grpc else None,
        relation(picker, grpc) if grpc else None,
        median(floor) if floor else None,
        relation(picker, floor) if floor else None,
        added_latency(tally.direct, tally.through) if tally.through else None,
        {stage: count / seen * cost.own_us for stage, count in tally.samples.items()},
    )


def median(rounds: Sequence[Cost]) -> Cost:
    """Return the median of each figure, of several rounds."""
    return Cost(
        sum(one.requests for one in rounds),
        statistics.median(one.per_second for one in rounds),
        statistics.median(one.own_us for one in rounds),
        statistics.median(one.envoy_us for one in rounds),
        statistics.median(one.ratio for one in rounds),
    )


def relation(picker: Sequence[Cost], others: Sequence[Cost]) -> float:
    """Return the picker's CPU as a multiple of another's: the median of rounds side by side."""
    pairs = zip(picker, others, strict=True)
    return statistics.median(one.own_us / other.own_us for one, other in pairs)


def added_latency(direct: Sequence[float], through: Sequence[float]) -> Latency:
    """Return how much later the median response and the slowest hundredth begin."""
    enough = min(len(direct), len(through)) >= MIN_SAMPLES_OF_P99
    return Latency(
        len(through),
        (statistics.median(through) - statistics.median(direct)) * 1e6,
        (_p99(through) - _p99(direct)) * 1e6 if enough else None,
    )


def _p99(latencies: Sequence[float]) -> float:
    return statistics.quantiles(latencies, n=100, method="inclusive")[98]
