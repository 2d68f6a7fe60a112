"""The ring of recent decisions: what it keeps, and what its page shows of them."""

import json
from collections.abc import Sequence
from typing import Any

import msgspec

from epp.framework import Endpoint, ProfileResult, SchedulingResult, ScoredEndpoint
from epp.requestcontrol.decisions import MAX_SHOWN_CANDIDATES, RecentDecisions
from epp.testing import endpoint

A = endpoint("a", address="10.0.0.1")
B = endpoint("b", address="10.0.0.2")
WEIGHTS = {"default": {"queue": 2.0, "prefix": 3.0}}


def result(
    picked: Endpoint = B,
    candidates: Sequence[Endpoint] = (A, B),
    queue: Sequence[float] = (1.0, 0.5),
    prefix: Sequence[float] = (0.0, 1.0),
) -> SchedulingResult:
    scores = {"queue": queue, "prefix": prefix}
    profile = ProfileResult([ScoredEndpoint(picked, 4.0)], candidates, scores)
    return SchedulingResult({"default": profile}, "default")


def ring(capacity: int = 100, now: float = 0.0) -> RecentDecisions:
    return RecentDecisions(weights=WEIGHTS, clock=lambda: now, capacity=capacity)


def dumped(decisions: RecentDecisions) -> Any:
    """What a reader of the page gets."""
    return json.loads(msgspec.json.encode(decisions.dump()))


def test_a_decision_shows_its_endpoint_and_the_scores_behind_it_best_first() -> None:
    decisions = ring(now=12.5)
    decisions.record("id-1", "llama", result(), 12.0)

    assert dumped(decisions) == {
        "recorded": 1,
        "weights": WEIGHTS,
        "decisions": [
            {
                "request_id": "id-1",
                "model": "llama",
                "age_seconds": 0.5,
                "endpoint": "default/b",
                "destination": "10.0.0.2:8000",
                "primary": "default",
                "profiles": {
                    "default": {
                        "picked": ["default/b"],
                        "removed": {},
                        "candidate_count": 2,
                        "candidates": [
                            {
                                "endpoint": "default/b",
                                "destination": "10.0.0.2:8000",
                                "total": 4.0,
                                "scores": {"queue": 0.5, "prefix": 1.0},
                                "weighted": {"queue": 1.0, "prefix": 3.0},
                                "metrics_age_seconds": None,
                                "stale": False,
                            },
                            {
                                "endpoint": "default/a",
                                "destination": "10.0.0.1:8000",
                                "total": 2.0,
                                "scores": {"queue": 1.0, "prefix": 0.0},
                                "weighted": {"queue": 2.0, "prefix": 0.0},
                                "metrics_age_seconds": None,
                                "stale": False,
                            },
                        ],
                    }
                },
            }
        ],
    }


def test_the_oldest_decision_makes_room_for_the_newest() -> None:
    decisions = ring(capacity=2)
    for at in range(5):
        decisions.record(f"id-{at}", "llama", result(), 0.0)

    page = dumped(decisions)
    assert page["recorded"] == 5
    assert [one["request_id"] for one in page["decisions"]] == ["id-3", "id-4"]


def test_of_many_candidates_the_best_are_shown_and_always_the_picked_one() -> None:
    pool = [endpoint(f"e{at}") for at in range(100)]
    queue = [at / 100 for at in range(100)]
    decisions = ring()
    decisions.record("id", "llama", result(pool[3], pool, queue, [0.0] * 100), 0.0)

    profile = dumped(decisions)["decisions"][0]["profiles"]["default"]
    shown = [one["endpoint"] for one in profile["candidates"]]
    best = [f"default/e{at}" for at in range(99, 100 - MAX_SHOWN_CANDIDATES, -1)]
    assert profile["candidate_count"] == 100
    assert shown == [*best, "default/e3"]


def test_a_profile_without_scorers_shows_totals_of_zero() -> None:
    profile = ProfileResult([ScoredEndpoint(A, 0.0)], [A, B], {})
    decisions = ring()
    decisions.record("id", "", SchedulingResult({"other": profile}, "other"), 0.0)

    shown = dumped(decisions)["decisions"][0]["profiles"]["other"]["candidates"]
    assert [(one["total"], one["scores"]) for one in shown] == [(0.0, {}), (0.0, {})]


def test_every_profile_that_ran_is_shown() -> None:
    one = result().profiles["default"]
    decisions = ring()
    decisions.record("id", "", SchedulingResult({"prefill": one, "default": one}, "default"), 0.0)

    assert list(dumped(decisions)["decisions"][0]["profiles"]) == ["prefill", "default"]
