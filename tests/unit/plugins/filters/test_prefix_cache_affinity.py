"""Sticky until saturated: who holds the prompt is kept, until it is too far behind."""

from collections.abc import Sequence
from random import Random
from typing import Any

import pytest

from epp.framework import (
    INFLIGHT_LOAD,
    PREFIX_MATCH,
    ConfigError,
    EndpointView,
    InFlightLoad,
    PluginContext,
    PrefixMatch,
    Registry,
)
from epp.testing import assert_conforms, endpoint, request
from epp_plugins.filters.prefix_cache_affinity import PrefixCacheAffinityFilter

POOL = EndpointView([endpoint(name) for name in "abc"])


def affinity(**parameters: Any) -> PrefixCacheAffinityFilter:
    context = PluginContext("affinity", random=Random(5))
    return PrefixCacheAffinityFilter(context=context, **parameters)


def kept(
    plugin: PrefixCacheAffinityFilter,
    blocks: Sequence[int] | None,
    tokens: Sequence[int] | None = None,
    pool: EndpointView = POOL,
) -> str:
    """The names of those kept of a prompt of ten blocks."""
    asked = request()
    if blocks is not None:
        asked.attributes.put(PREFIX_MATCH, PrefixMatch(blocks, 10, 64, POOL))
    if tokens is not None:
        load = InFlightLoad([0] * len(tokens), tokens, [0] * len(tokens), 640, POOL)
        asked.attributes.put(INFLIGHT_LOAD, load)
    return "".join(one.id.name for one in plugin.filter(asked, pool))


def test_it_keeps_the_promises_of_a_filter() -> None:
    assert_conforms(affinity)


@pytest.mark.parametrize(
    ("parameters", "blocks", "expected"),
    [
        pytest.param({}, [9, 5, 0], "a", id="the-one-that-holds-enough"),
        pytest.param({}, [9, 0, 8], "ac", id="those-that-hold-enough"),
        pytest.param({}, [7, 5, 0], "abc", id="none-holds-enough"),
        pytest.param({}, [10, 10, 10], "abc", id="all-hold-enough"),
        pytest.param({}, None, "abc", id="nothing-is-known"),
        pytest.param({"affinity_threshold": 0.0}, [9, 0, 0], "abc", id="no-threshold"),
        pytest.param({"affinity_threshold": -1.0}, [9, 0, 0], "abc", id="less-than-none"),
        pytest.param({"exploration_probability": 1.0}, [9, 0, 0], "abc", id="exploring"),
    ],
)
def test_who_holds_enough_of_the_prompt_is_kept(
    parameters: dict[str, Any], blocks: list[int] | None, expected: str
) -> None:
    assert kept(affinity(**parameters), blocks) == expected


def test_a_prompt_shorter_than_a_block_goes_anywhere() -> None:
    asked = request()
    asked.attributes.put(PREFIX_MATCH, PrefixMatch([0, 0, 0], 0, 64, POOL))

    assert len(affinity().filter(asked, POOL)) == 3


def test_a_share_of_the_requests_explores() -> None:
    plugin = affinity(exploration_probability=0.25)
    explored = [kept(plugin, [9, 0, 0]) == "abc" for _ in range(400)]

    assert 70 < sum(explored) < 130


@pytest.mark.parametrize(
    ("tokens", "penalty", "expected"),
    [
        pytest.param([5000, 0, 9000], 5000.0, "a", id="as-late-as-may-be"),
        pytest.param([5001, 0, 9000], 5000.0, "abc", id="later"),
        pytest.param([9000, 4000, 4500], 5000.0, "a", id="beside-the-best-of-the-others"),
        pytest.param([10**9, 0, 0], 0.0, "a", id="no-penalty-is-never-broken"),
        pytest.param(None, 5000.0, "a", id="nothing-is-known-of-the-load"),
    ],
)
def test_stickiness_breaks_where_the_first_token_would_be_too_late(
    tokens: list[int] | None, penalty: float, expected: str
) -> None:
    plugin = affinity(maxTTFTPenaltyMs=penalty, peak_prefill_throughput=1000.0)

    assert kept(plugin, [9, 0, 0], tokens) == expected


def test_the_least_busy_of_the_sticky_ones_counts() -> None:
    plugin = affinity(maxTTFTPenaltyMs=1000.0, peak_prefill_throughput=1000.0)

    assert kept(plugin, [9, 9, 0], [5000, 900, 0]) == "ab"


def test_one_candidate_is_kept() -> None:
    assert kept(affinity(), [0, 0, 0], pool=EndpointView([POOL[1]])) == "b"


def test_it_works_behind_another_filter() -> None:
    pool = EndpointView([POOL[1], POOL[2]])

    assert kept(affinity(), [0, 2, 9], [0, 0, 10**9], pool) == "bc"
    assert kept(affinity(), [0, 2, 9], [10**9, 0, 0], pool) == "c"


def test_the_load_is_counted_only_where_it_matters() -> None:
    assert affinity().consumes == (PREFIX_MATCH, INFLIGHT_LOAD)
    assert affinity(maxTTFTPenaltyMs=0.0).consumes == (PREFIX_MATCH,)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"affinityThreshold": 1.1}, r"affinityThreshold must be from -1e\+09 to 1, got 1\.1"),
        ({"explorationProbability": -0.1}, r"must be from 0 to 1, got -0\.1"),
        ({"maxTTFTPenaltyMs": -1}, r"maxTTFTPenaltyMs must be from 0 to 1e\+09, got -1"),
        (
            {"peakPrefillThroughput": 0},
            r"peakPrefillThroughput must be from 1e-06 to 1e\+09, got 0",
        ),
        ({"ttftSource": "latencyPredictor"}, r"no latency prediction yet, got 'latencyPredictor'"),
        ({"ttftSource": "oracle"}, r"'oracle'"),
    ],
)
def test_a_parameter_that_makes_no_sense_is_refused(
    parameters: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        Registry().build("prefix-cache-affinity-filter", "mine", parameters)
