"""The scorers of load: waiting requests, running requests, KV cache."""

import math

import pytest

from epp.framework import EndpointView
from epp.testing import endpoint, request
from epp_plugins.scorers.kv_cache_utilization import KVCacheUtilizationScorer
from epp_plugins.scorers.queue_depth import QueueScorer
from epp_plugins.scorers.running_requests import RunningRequestsScorer


@pytest.mark.parametrize(
    ("queues", "expected"),
    [
        pytest.param([10, 5, 0], [0.0, 0.5, 1.0], id="in-proportion-between-longest-and-shortest"),
        pytest.param([5, 5], [1.0, 1.0], id="equal-queues-leave-the-choice-to-others"),
        pytest.param([0, 0], [1.0, 1.0], id="empty-queues"),
        pytest.param([7], [1.0], id="the-only-candidate"),
        pytest.param([1, 0], [0.9, 1.0], id="one-request-does-not-span-the-scale"),
        pytest.param([8, 3, 5], [0.5, 1.0, 0.8], id="ten-requests-span-the-scale"),
        pytest.param([40, 20, 0], [0.0, 0.5, 1.0], id="more-than-ten-span-it-too"),
    ],
)
def test_the_shortest_queue_scores_best(queues: list[int], expected: list[float]) -> None:
    pool = EndpointView([endpoint(str(at), waiting=queue) for at, queue in enumerate(queues)])

    scores = QueueScorer().score(request(), pool)

    assert expected == scores


def test_requests_sent_since_the_scrape_count_as_waiting() -> None:
    chosen_often = endpoint("a", in_flight=10, in_flight_at_update=0)
    pool = EndpointView([chosen_often, endpoint("b")])

    scores = QueueScorer().score(request(), pool)

    assert scores == [0.0, 1.0]


def test_a_stale_endpoint_stands_in_the_middle_of_the_queues() -> None:
    pool = EndpointView([endpoint("a", waiting=20), endpoint("b"), endpoint("c", stale=True)])

    scores = QueueScorer().score(request(), pool)

    assert scores == [0.0, 1.0, 0.5]


@pytest.mark.parametrize("scorer", [QueueScorer, RunningRequestsScorer])
def test_without_a_scale_one_request_is_the_whole_way(
    scorer: type[QueueScorer] | type[RunningRequestsScorer],
) -> None:
    pool = EndpointView([endpoint("a", waiting=1, running=1), endpoint("b")])

    scores = scorer(scale=0).score(request(), pool)

    assert scores == [0.0, 1.0]


@pytest.mark.parametrize("scorer", [QueueScorer, RunningRequestsScorer])
@pytest.mark.parametrize("wrong", [-1.0, math.nan, math.inf, 1e10])
def test_a_scale_out_of_range_is_refused(
    scorer: type[QueueScorer] | type[RunningRequestsScorer], wrong: float
) -> None:
    with pytest.raises(ValueError, match=r"parameters\.scale must be from 0 to 1e\+09, got"):
        scorer(scale=wrong)


@pytest.mark.parametrize(
    ("batches", "expected"),
    [
        pytest.param([10, 5, 0], [0.0, 0.5, 1.0], id="in-proportion-between-largest-and-smallest"),
        pytest.param([5, 5], [1.0, 1.0], id="equal-batches-leave-the-choice-to-others"),
        pytest.param([0, 0], [1.0, 1.0], id="nothing-runs"),
        pytest.param([1, 0], [0.9, 1.0], id="one-request-does-not-span-the-scale"),
    ],
)
def test_the_smallest_batch_scores_best(batches: list[int], expected: list[float]) -> None:
    pool = EndpointView([endpoint(str(at), running=batch) for at, batch in enumerate(batches)])

    scores = RunningRequestsScorer().score(request(), pool)

    assert expected == scores


@pytest.mark.parametrize(
    ("usages", "expected"),
    [
        pytest.param([0.8, 0.5, 0.0], [0.2, 0.5, 1.0], id="the-free-fraction"),
        pytest.param([0.6, 0.6], [0.4, 0.4], id="absolute-and-not-relative"),
        pytest.param([0.0, 0.0], [1.0, 1.0], id="empty-caches"),
        pytest.param([1.0, 0.5], [0.0, 0.5], id="a-full-cache"),
        pytest.param([1.5, -0.5, math.nan], [0.0, 1.0, 0.0], id="values-out-of-range"),
    ],
)
def test_the_emptiest_cache_scores_best(usages: list[float], expected: list[float]) -> None:
    pool = EndpointView([endpoint(str(at), kv_usage=usage) for at, usage in enumerate(usages)])

    scores = KVCacheUtilizationScorer().score(request(), pool)

    assert pytest.approx(expected) == scores
