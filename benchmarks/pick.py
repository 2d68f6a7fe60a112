"""
The pick alone: the director's decision in this process, without Envoy and without a transport.

The objects are those of the shipped application with its default configuration. Only its endpoints
are made up, each with fresh metrics, and prompts differ in their second half.
"""

import gc
import itertools
import statistics
import tempfile
import time
import timeit
from collections.abc import Sequence
from pathlib import Path

from prometheus_client import CollectorRegistry

from benchmarks.report import PickResult
from benchmarks.workloads import PATH, WORKLOADS, Workload
from epp.app import App, Options
from epp.framework import EndpointId, EndpointUpdate, EndpointUpserted, RawRequest, TerminationCause
from epp.requestcontrol.director import RoutedRequest

POOLS = (10, 100, 1000)
PROMPTS = ("short", "long")
BATCH = 32

STAGES = {
    "parser": "parser",
    "data-producer": "producers",
    "scorer": "scorers",
    "picker": "picker",
    "profile-handler": "handler",
    "pre-request": "pre-request",
}
"""The extension points that a decision passes, and what they are called in the report."""
ELSEWHERE = "elsewhere"
"""What is in none of them: sums, metrics, results."""


class Pool:
    """One pool and one kind of prompt under measurement, batch after batch."""

    def __init__(self, count: int, workload: Workload, batches: int) -> None:
        self._count = count
        self._prompt = workload.name
        self._app = _app(count)
        # None comes twice, for the prefix index knows a prompt that it has seen.
        self._bodies = iter(workload.bodies((batches + 1) * BATCH))
        self._means: list[float] = []
        self._batch()
        self._before = _stages(self._app.metrics.registry)

    def measure(self) -> None:
        """Measure one batch more."""
        self._means.append(self._batch())

    def result(self) -> PickResult:
        """Return the figures of all batches so far."""
        means = self._means
        after = _stages(self._app.metrics.registry)
        picks = len(means) * BATCH
        stages = {
            name: (after[point] - self._before[point]) / picks * 1e6
            for point, name in STAGES.items()
        }
        stages[ELSEWHERE] = statistics.mean(means) * 1e6 - sum(stages.values())
        median, best = statistics.median(means), min(means)
        return PickResult(self._count, self._prompt, median * 1e6, best * 1e6, stages)

    def _batch(self) -> float:
        headers = {":path": PATH, ":method": "POST", "x-request-id": "bench"}
        bodies = itertools.islice(self._bodies, BATCH)
        return batch(self._app, [RawRequest(headers, body) for body in bodies])


def measure(*, batches: int) -> list[PickResult]:
    """
    Return the cost of a pick for each pool and prompt, of so many batches.

    All take turns, so that a disturbance falls on a batch of each and not on all of one.
    """
    workloads = [one for one in WORKLOADS if one.name in PROMPTS]
    pools = [Pool(count, one, batches) for count, one in itertools.product(POOLS, workloads)]
    gc.collect()
    gc.freeze()
    try:
        for _ in range(batches):
            for pool in pools:
                pool.measure()
    finally:
        gc.unfreeze()
    return [pool.result() for pool in pools]


def loop_us() -> float:
    """Return the microseconds of 1,000 additions in a Python loop, the least of many times."""
    return min(timeit.repeat("for i in range(1000): n += i", "n = 0", number=1, repeat=500)) * 1e6


def batch(app: App, requests: Sequence[RawRequest]) -> float:
    """Return the mean seconds of a decision; what follows a decision is not counted."""
    seconds = 0.0
    for raw in requests:
        began = time.thread_time()
        routed = _decide(app, raw)
        seconds += time.thread_time() - began
        app.director.finish(routed, TerminationCause.COMPLETED)
    return seconds / len(requests)


def _decide(app: App, raw: RawRequest) -> RoutedRequest:
    """Run the decision, which suspends nowhere, without an event loop."""
    try:
        app.director.handle_request(raw).send(None)
    except StopIteration as finished:
        routed: RoutedRequest = finished.value
        return routed
    raise AssertionError("a decision suspended: some producer waits")


def _app(count: int) -> App:
    """Return an application that knows so many endpoints, and has just scraped them all."""
    with tempfile.NamedTemporaryFile(suffix=".yaml") as file:
        app = App(Options(endpoints_file=Path(file.name)))
    for at in range(count):
        name = EndpointId("default", f"endpoint-{at:04}")
        app.datastore.apply(EndpointUpserted(name, f"10.0.{at // 250}.{at % 250 + 1}", 8000))
        update = EndpointUpdate(waiting=at % 7, running=at % 11, kv_usage=at % 13 / 20)
        app.datastore.record(name, update, in_flight=0)
    return app


def _stages(registry: CollectorRegistry) -> dict[str, float]:
    """Return the seconds spent so far in the plugins of each extension point."""
    spent = dict.fromkeys(STAGES, 0.0)
    for metric in registry.collect():
        for sample in metric.samples:
            if sample.name == "epp_plugin_duration_seconds_sum":
                point = sample.labels["extension_point"]
                if point in spent:
                    spent[point] += sample.value
    return spent
