"""The watch reads the pages that a picker serves, and tells each decision once."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import aiohttp
import pytest
from prometheus_client import CollectorRegistry

from epp.demo.watch import Watch
from epp.framework import ProfileResult, SchedulingResult, ScoredEndpoint
from epp.observability import exporter
from epp.requestcontrol.decisions import RecentDecisions
from epp.testing import endpoint

pytestmark = pytest.mark.looptime(False)  # noqa: FBT003 - real sockets need real time

A, B = endpoint("a"), endpoint("b", address="10.0.0.2")
WEIGHTS = {"queue-scorer": 2.0}
RESULT = SchedulingResult(
    {"default": ProfileResult([ScoredEndpoint(B, 2.0)], [A, B], {"queue-scorer": [0.5, 1.0]})},
    "default",
)
STATE = {
    "version": "1",
    "endpoints": [
        {
            "id": "default/a",
            "destination": "10.0.0.1:8000",
            "in_flight": 2,
            "queue": 1,
            "running": 3,
            "kv_usage": 0.25,
            "running_adapters": ["sql-lora"],
        }
    ],
}


def ring(capacity: int = 100) -> RecentDecisions:
    return RecentDecisions(weights={"default": WEIGHTS}, clock=lambda: 0.0, capacity=capacity)


@asynccontextmanager
async def watching(decisions: RecentDecisions) -> AsyncIterator[Watch]:
    def state() -> Mapping[str, object]:
        return STATE

    more = {"/debug/decisions": decisions.dump}
    async with (
        exporter.serve("127.0.0.1", 0, CollectorRegistry(), state, more) as site,
        aiohttp.ClientSession() as session,
    ):
        yield Watch(session, f"http://127.0.0.1:{site.port}")


async def test_endpoints_are_told_as_the_picker_sees_them() -> None:
    async with watching(ring()) as watch:
        (state,) = await watch.endpoints()

    assert (state.name, state.in_flight, state.queue, state.running) == ("a", 2, 1, 3)
    assert (state.kv_usage, state.running_adapters) == (0.25, ["sql-lora"])


async def test_a_decision_is_told_with_its_scores_and_their_weights() -> None:
    decisions = ring()
    decisions.record("id", "llama", RESULT, 0.0)
    async with watching(decisions) as watch:
        (decision,), weights = await watch.decisions()

    scores = [(one.name, one.total, one.scores) for one in decision.candidates]
    assert weights == WEIGHTS
    assert (decision.request_id, decision.name, decision.model) == ("id", "b", "llama")
    assert scores == [("b", 2.0, {"queue-scorer": 1.0}), ("a", 1.0, {"queue-scorer": 0.5})]


async def test_each_decision_is_told_once_and_in_order() -> None:
    decisions = ring(capacity=3)
    told = []
    async with watching(decisions) as watch:
        for batch in (["1", "2"], [], ["3", "4"]):
            for name in batch:
                decisions.record(name, "", RESULT, 0.0)
            told.append([one.request_id for one in (await watch.decisions())[0]])

    assert told == [["1", "2"], [], ["3", "4"]]


async def test_of_a_ring_that_ran_over_the_rest_is_told() -> None:
    decisions = ring(capacity=2)
    for name in ("1", "2", "3"):
        decisions.record(name, "", RESULT, 0.0)
    async with watching(decisions) as watch:
        told, _ = await watch.decisions()

    assert [one.request_id for one in told] == ["2", "3"]
