"""The scorers of what this picker has in flight: requests, tokens, and both."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from epp.framework import INFLIGHT_LOAD, Endpoint, EndpointView, InferenceRequest, InFlightLoad
from epp.testing import assert_conforms, endpoint, request
from epp_plugins.scorers.active_request import ActiveRequestScorer
from epp_plugins.scorers.lmetric import LMetricScorer
from epp_plugins.scorers.load_aware import LoadAwareScorer
from epp_plugins.scorers.token_load import TokenLoadScorer


def pool(*counts: int) -> EndpointView:
    return EndpointView([endpoint(str(at), in_flight=one) for at, one in enumerate(counts)])


def loaded(
    endpoints: Sequence[Endpoint],
    tokens: Sequence[int],
    own: Sequence[int],
    requests: Sequence[int] = (),
) -> InferenceRequest:
    """A request for which a producer has counted."""
    asked = request()
    load = InFlightLoad(requests or [0] * len(tokens), tokens, own, max(own), endpoints)
    asked.attributes.put(INFLIGHT_LOAD, load)
    return asked


@pytest.mark.parametrize(
    "make", [LoadAwareScorer, ActiveRequestScorer, TokenLoadScorer, LMetricScorer]
)
def test_it_keeps_the_promises_of_a_scorer(make: Callable[[], Any]) -> None:
    assert_conforms(make)


@pytest.mark.parametrize(
    ("threshold", "expected"),
    [
        pytest.param(10, [0.4, 0.5, 0.0], id="in-proportion-to-the-threshold"),
        pytest.param(0, [0.4921875, 0.5, 0.44140625], id="none-is-the-default-of-128"),
    ],
)
def test_a_queue_scores_what_it_leaves_of_the_threshold(
    threshold: int, expected: list[float]
) -> None:
    queues = EndpointView([endpoint(str(at), waiting=one) for at, one in enumerate([2, 0, 15])])

    scores = LoadAwareScorer(threshold=threshold).score(request(), queues)

    assert pytest.approx(expected) == scores


def test_requests_sent_since_the_scrape_count_as_waiting() -> None:
    sent = EndpointView([endpoint("a", in_flight=5, in_flight_at_update=0), endpoint("b")])

    scores = LoadAwareScorer(threshold=10).score(request(), sent)

    assert scores == [0.25, 0.5]


@pytest.mark.parametrize(
    ("parameters", "counts", "expected"),
    [
        pytest.param({}, [0, 0], [1.0, 1.0], id="nobody-has-any"),
        pytest.param({}, [3, 0, 6], [0.5, 1.0, 0.0], id="in-proportion-below-the-busiest"),
        pytest.param({}, [4, 0, 1], [0.0, 1.0, 0.75], id="an-idle-one-is-best"),
        pytest.param({}, [3, 11], [0.7272, 0.0], id="nobody-is-idle"),
        pytest.param({"max_busy_score": 0.0}, [0, 0], [1.0, 1.0], id="idle-without-busy-scores"),
        pytest.param({"max_busy_score": 0.0}, [1, 0], [0.0, 1.0], id="busy-scores-nothing"),
        pytest.param(
            {"idle_threshold": 1, "max_busy_score": 0.5},
            [1, 2, 0],
            [1.0, 0.0, 1.0],
            id="one-request-is-idle",
        ),
        pytest.param(
            {"idle_threshold": 1, "max_busy_score": 0.5},
            [1, 2, 4],
            [1.0, 0.25, 0.0],
            id="the-best-busy-score",
        ),
    ],
)
def test_few_requests_in_flight_score_best(
    parameters: dict[str, Any], counts: list[int], expected: list[float]
) -> None:
    scores = ActiveRequestScorer(**parameters).score(request(), pool(*counts))

    assert pytest.approx(expected, abs=1e-4) == scores


def test_counts_are_read_anew_for_each_request() -> None:
    scorer, endpoints = ActiveRequestScorer(), pool(0, 0)
    scorer.score(request(), endpoints)
    endpoints[0].load.in_flight += 1

    scores = scorer.score(request(), endpoints)

    assert scores == [0.0, 1.0]


@pytest.mark.parametrize(
    "wrong", [1.5, -0.1, math.nan, math.inf], ids=["above", "below", "nan", "infinite"]
)
def test_a_best_score_out_of_range_counts_as_one(wrong: float) -> None:
    scores = ActiveRequestScorer(max_busy_score=wrong).score(request(), pool(0, 1, 4))

    assert scores == [1.0, 0.75, 0.0]


def test_a_negative_threshold_is_refused() -> None:
    with pytest.raises(ValueError, match="idleThreshold must be from 0 to 2147483648, got -1"):
        ActiveRequestScorer(idle_threshold=-1)


@pytest.mark.parametrize(
    ("in_flight", "own", "expected"),
    [
        pytest.param(0, 0, 1.0, id="nothing-to-do"),
        pytest.param(500, 0, 0.5, id="half-of-the-threshold"),
        pytest.param(1000, 0, 0.0, id="the-threshold"),
        pytest.param(0, 250, 0.75, id="the-request-itself"),
        pytest.param(250, 250, 0.5, id="both"),
        pytest.param(750, 250, 0.0, id="both-make-the-threshold"),
        pytest.param(2000, 250, 0.0, id="beyond-the-threshold"),
    ],
)
def test_tokens_score_what_they_leave_of_the_threshold(
    in_flight: int, own: int, expected: float
) -> None:
    endpoints = pool(0)

    scores = TokenLoadScorer(queue_threshold_tokens=1000).score(
        loaded(endpoints, [in_flight], [own]), endpoints
    )

    assert pytest.approx([expected]) == scores


def test_a_threshold_of_none_is_the_default() -> None:
    endpoints = pool(0)

    scores = TokenLoadScorer(queue_threshold_tokens=0).score(
        loaded(endpoints, [128 * 32 * 1024 // 4], [0]), endpoints
    )

    assert scores == [0.75]


@pytest.mark.parametrize(
    ("tokens", "own", "requests", "expected"),
    [
        pytest.param([100, 0], [100, 100], [1, 0], [0.25, 1.0], id="both-factors-count"),
        pytest.param([0, 0], [25, 100], [3, 0], [1.0, 1.0], id="cache-against-load"),
        pytest.param([0, 0], [100, 100], [0, 0], [1.0, 1.0], id="equals"),
        pytest.param([0, 5], [0, 0], [7, 0], [1.0, 0.0], id="nothing-to-compute-is-best"),
    ],
)
def test_the_product_scores_its_ratio_to_the_least(
    tokens: list[int], own: list[int], requests: list[int], expected: list[float]
) -> None:
    endpoints = pool(0, 0)

    scores = LMetricScorer().score(loaded(endpoints, tokens, own, requests), endpoints)

    assert expected == scores


@pytest.mark.parametrize("scorer", [TokenLoadScorer(), LMetricScorer()])
def test_without_a_count_everybody_scores_alike(scorer: Any) -> None:
    assert scorer.score(request(), pool(3, 9)) == [1.0, 1.0]


@pytest.mark.parametrize(
    ("scorer", "expected"),
    [
        (TokenLoadScorer(queue_threshold_tokens=100), [0.9, 0.5]),
        (LMetricScorer(), [1.0, 0.2]),
    ],
)
def test_behind_a_filter_each_endpoint_keeps_its_own_numbers(
    scorer: Any, expected: list[float]
) -> None:
    endpoints = pool(0, 0, 0)
    asked = loaded(endpoints, [80, 0, 40], [10, 10, 10])

    scores = scorer.score(asked, EndpointView([endpoints[1], endpoints[2]]))

    assert pytest.approx(expected) == scores
