"""Limits on how busy an endpoint may be."""

import math
from typing import Any

import msgspec
import pytest

from epp.framework import ConfigError, Endpoint, EndpointView, Registry
from epp.testing import assert_conforms, endpoint, request
from epp_plugins.filters.utilization import Condition, UtilizationFilter


def limit(metric: Any, most: float) -> Condition:
    return Condition(metric=metric, max_value=most)


def kept(pool: list[Endpoint], *conditions: Condition, **parameters: Any) -> list[int]:
    plugin = UtilizationFilter(conditions=list(conditions), **parameters)
    return [pool.index(one) for one in plugin.filter(request(), EndpointView(pool))]


def caches(*usages: float) -> list[Endpoint]:
    return [endpoint(str(at), kv_usage=one) for at, one in enumerate(usages)]


def test_it_keeps_the_promises_of_a_filter() -> None:
    assert_conforms(lambda: UtilizationFilter(conditions=[limit("waiting-queue", 2)]))


@pytest.mark.parametrize(
    ("condition", "pool", "expected"),
    [
        pytest.param(
            limit("active-requests", 2),
            [endpoint(str(count), in_flight=count) for count in (1, 2, 3, 0)],
            [0, 1, 3],
            id="active-requests",
        ),
        pytest.param(
            limit("running-requests", 4),
            [endpoint(str(count), running=count) for count in (5, 4)],
            [1],
            id="running-requests",
        ),
        pytest.param(
            limit("waiting-queue", 4),
            [
                endpoint("a", waiting=4),
                endpoint("b", waiting=3, in_flight=2, in_flight_at_update=0),
            ],
            [0],
            id="waiting-queue-with-what-was-sent-since",
        ),
        pytest.param(
            limit("kv-cache-utilization", 0.8), caches(0.5, 0.8, 0.9), [0, 1], id="kv-cache"
        ),
        pytest.param(
            limit("kv-cache-utilization", 0.8),
            [*caches(0.5, 0.9), endpoint("c", stale=True)],
            [0, 2],
            id="an-unknown-one-is-taken-for-the-mean",
        ),
    ],
)
def test_endpoints_within_the_limit_are_kept(
    condition: Condition, pool: list[Endpoint], expected: list[int]
) -> None:
    assert kept(pool, condition) == expected


def test_all_limits_hold() -> None:
    pool = [
        endpoint("a", waiting=9, kv_usage=0.1),
        endpoint("b", waiting=1, kv_usage=0.9),
        endpoint("c", waiting=1, kv_usage=0.1),
    ]
    conditions = [limit("waiting-queue", 5), limit("kv-cache-utilization", 0.8)]

    assert kept(pool, *conditions) == [2]


def test_the_stricter_of_two_limits_holds() -> None:
    usage = "kv-cache-utilization"

    assert kept(caches(0.4, 0.6), limit(usage, 0.5), limit(usage, 0.9)) == [0]


@pytest.mark.parametrize(("fallback", "expected"), [(False, []), (True, [0, 1])])
def test_nobody_is_left_unless_it_falls_back(*, fallback: bool, expected: list[int]) -> None:
    conditions = [limit("kv-cache-utilization", 0.5)]

    assert kept(caches(0.9, 0.8), *conditions, fallback_on_empty=fallback) == expected


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        pytest.param({}, "conditions", id="not-given"),
        pytest.param({"conditions": []}, r"parameters\.conditions must not be empty", id="none"),
        pytest.param(
            {"conditions": [{"metric": "gpu", "maxValue": 1}]},
            "'gpu'",
            id="an-unknown-metric",
        ),
        pytest.param(
            {"conditions": [{"metric": "waiting-queue"}]}, "`maxValue`", id="without-a-limit"
        ),
        pytest.param(
            {"conditions": [{"metric": "waiting-queue", "maxValue": -1}]},
            r"conditions\[0\]\.maxValue must be a number of 0 or more, got -1",
            id="a-negative-limit",
        ),
        pytest.param(
            {"conditions": [{"metric": "kv-cache-utilization", "maxValue": 1.5}]},
            r"conditions\[0\]\.maxValue must be at most 1 for a fraction, got 1\.5",
            id="more-than-all-of-a-cache",
        ),
        pytest.param(
            {"conditions": [{"metric": "waiting-queue", "maxValue": math.inf}]},
            r"conditions\[0\]\.maxValue must be a number of 0 or more, got inf",
            id="no-limit",
        ),
    ],
)
def test_a_configuration_that_makes_no_sense_is_refused(
    parameters: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        Registry().build("utilization-filter", "mine", parameters)


def test_a_condition_is_written_in_camel_case() -> None:
    read = msgspec.convert({"metric": "waiting-queue", "maxValue": 5}, Condition)

    assert read == limit("waiting-queue", 5)
