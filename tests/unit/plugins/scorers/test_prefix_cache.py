"""The prefix score, from the attribute that a producer wrote."""

from typing import Any

import pytest

from epp.framework import (
    PREFIX_MATCH,
    EndpointView,
    PluginContext,
    PrefixMatch,
    ProfileResult,
    SchedulingResult,
    ScoredEndpoint,
)
from epp.testing import endpoint, request
from epp_plugins.data_producers.approximate_prefix import ApproximatePrefixProducer
from epp_plugins.scorers.prefix_cache import PrefixCacheScorer

POOL = [endpoint(name) for name in "abc"]


@pytest.mark.parametrize(
    ("match", "expected"),
    [
        pytest.param(PrefixMatch([5, 2, 0], 10, 64), [0.5, 0.2, 0.0], id="the-matched-fraction"),
        pytest.param(PrefixMatch([10, 0, 0], 10, 64), [1.0, 0.0, 0.0], id="the-whole-prompt"),
        pytest.param(PrefixMatch([0, 0, 0], 0, 64), [0.0, 0.0, 0.0], id="less-than-a-block"),
        pytest.param(None, [0.0, 0.0, 0.0], id="no-producer"),
    ],
)
def test_the_score_is_the_matched_fraction(
    match: PrefixMatch | None, expected: list[float]
) -> None:
    asked = request()
    if match is not None:
        asked.attributes.put(PREFIX_MATCH, match)

    scores = PrefixCacheScorer().score(asked, EndpointView(POOL))

    assert expected == scores


def test_behind_a_filter_each_endpoint_keeps_its_own_number() -> None:
    producer = ApproximatePrefixProducer(context=PluginContext("test"))
    first, second = request(b"x" * 512), request(b"x" * 1024)
    for asked in (first, second):
        asked.attributes.put(PREFIX_MATCH, producer.produce(asked, EndpointView(POOL)))
        scored = [ScoredEndpoint(POOL[2], 1.0)]
        producer.pre_request(asked, SchedulingResult({"p": ProfileResult(scored, POOL, {})}, "p"))

    scores = PrefixCacheScorer().score(second, EndpointView([POOL[0], POOL[2]]))

    assert scores == [0.0, 0.5]


def test_numbers_that_belong_to_unknown_candidates_are_not_used() -> None:
    """A filter removed some, and the match does not say whom its numbers are for."""
    asked = request()
    asked.attributes.put(PREFIX_MATCH, PrefixMatch([1, 2, 3], 4, 64))

    scores = PrefixCacheScorer().score(asked, EndpointView(POOL[1:]))

    assert scores == [0.0, 0.0]


@pytest.mark.parametrize(
    ("weight", "scale", "match", "expected"),
    [
        pytest.param(0.5, 100, PrefixMatch([5], 10, 4), 0.25125, id="short"),
        pytest.param(0.5, 100, PrefixMatch([50], 100, 4), 0.375, id="half-of-a-long-one"),
        pytest.param(1.0, 100, PrefixMatch([50], 1000, 4), 0.25, id="length-alone"),
        pytest.param(1.0, 100, PrefixMatch([500], 1000, 4), 1.0, id="longer-than-the-scale"),
        pytest.param(1.0, 128, PrefixMatch([1], 1, 256), 0.25, id="blocks-of-64-tokens"),
        pytest.param(0.5, 100, PrefixMatch([0], 10, 4), 0.0, id="no-match"),
        pytest.param(0.5, 100, PrefixMatch([0], 0, 4), 0.0, id="less-than-a-block"),
        pytest.param(0.0, 0, PrefixMatch([5], 10, 4), 0.5, id="no-weight-needs-no-scale"),
    ],
)
def test_the_length_of_the_match_may_weigh_too(
    weight: float, scale: int, match: PrefixMatch, expected: float
) -> None:
    scorer = PrefixCacheScorer(match_length_weight=weight, match_length_scale_tokens=scale)
    asked = request()
    asked.attributes.put(PREFIX_MATCH, match)

    scores = scorer.score(asked, EndpointView(POOL[:1]))

    assert list(scores) == pytest.approx([expected])


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"match_length_weight": -0.1}, "parameters.matchLengthWeight must be from 0 to 1"),
        ({"match_length_weight": 1.1}, "parameters.matchLengthWeight must be from 0 to 1"),
        ({"match_length_weight": float("nan")}, "parameters.matchLengthWeight must be"),
        (
            {"match_length_weight": 0.1, "match_length_scale_tokens": 0},
            "parameters.matchLengthScaleTokens must be at least 1",
        ),
    ],
    ids=str,
)
def test_parameters_that_make_no_sense_are_refused(
    parameters: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        PrefixCacheScorer(**parameters)
