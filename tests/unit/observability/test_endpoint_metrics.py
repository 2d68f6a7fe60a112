"""Scrapes counted by endpoint, the pool as it is when asked for, and nothing of what is gone."""

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
from prometheus_client.registry import DuplicateTimeseries

from epp.framework import Endpoint, EndpointUpdate
from epp.observability.metrics import Metrics
from epp.testing import endpoint

A = endpoint("a", waiting=3, running=8, kv_usage=0.5, updated_at=99.5)
B = endpoint("b", waiting=4, running=1, kv_usage=0.25, updated_at=98.0)
NEW = endpoint("new", stale=True, in_flight=2)


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


def value(metrics: Metrics, name: str, of: str = "default/a", **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, {"endpoint": of, **labels})


def watched(pool: Sequence[Endpoint]) -> Metrics:
    metrics = Metrics()
    metrics.watch_pool(lambda: pool, lambda: 100.0)
    return metrics


def endpoints_of(metrics: Metrics) -> set[str]:
    return {
        sample.labels["endpoint"]
        for family in metrics.registry.collect()
        for sample in family.samples
        if "endpoint" in sample.labels
    }


def test_scrapes_are_counted_by_result(metrics: Metrics) -> None:
    metrics.scrapes.scraped(A, 0.002, EndpointUpdate())
    metrics.scrapes.failed(A, "timeout")
    metrics.scrapes.failed(A, "timeout")

    assert value(metrics, "epp_scrapes_total", result="ok") == 1
    assert value(metrics, "epp_scrapes_total", result="timeout") == 2
    assert metrics.registry.get_sample_value("epp_scrape_duration_seconds_sum") == 0.002


def test_values_that_could_not_be_read_are_counted(metrics: Metrics) -> None:
    metrics.scrapes.scraped(A, 0.002, EndpointUpdate(parse_errors=2))
    metrics.scrapes.scraped(A, 0.002, EndpointUpdate(parse_errors=1))

    assert value(metrics, "epp_scrape_parse_errors_total") == 3


def test_a_missing_signal_shows_until_it_is_back(metrics: Metrics) -> None:
    seen = []
    for missing in ({"waiting"}, {"waiting", "kv_usage"}, {"kv_usage"}, set[str]()):
        metrics.scrapes.scraped(A, 0.002, EndpointUpdate(missing=frozenset(missing)))
        seen.append(
            [
                value(metrics, "epp_endpoint_missing_signal", signal=signal)
                for signal in ("waiting", "kv_usage")
            ]
        )

    assert seen == [[1, None], [1, 1], [0, 1], [0, 0]]


def test_picks_are_counted_by_endpoint(metrics: Metrics) -> None:
    metrics.pick(A)
    metrics.pick(replace(A, port=9000))
    metrics.pick(B)

    assert value(metrics, "epp_endpoint_picks_total") == 2
    assert value(metrics, "epp_endpoint_picks_total", "default/b") == 1


def test_an_endpoint_that_is_forgotten_leaves_no_series(metrics: Metrics) -> None:
    for one in (A, B):
        metrics.pick(one)
        metrics.scrapes.failed(one, "connect")
        metrics.scrapes.scraped(
            one, 0.1, EndpointUpdate(missing=frozenset({"waiting"}), parse_errors=1)
        )
    metrics.forget("default/a")

    assert endpoints_of(metrics) == {"default/b"}


def test_an_endpoint_that_returns_counts_from_nothing(metrics: Metrics) -> None:
    metrics.pick(A)
    metrics.scrapes.failed(A, "connect")
    metrics.forget("default/a")
    metrics.pick(A)
    metrics.scrapes.failed(A, "connect")

    assert value(metrics, "epp_endpoint_picks_total") == 1
    assert value(metrics, "epp_scrapes_total", result="connect") == 1


def test_an_endpoint_that_was_never_seen_can_be_forgotten(metrics: Metrics) -> None:
    metrics.forget("default/never")

    assert endpoints_of(metrics) == set()


def test_the_pool_shows_what_is_believed_of_each_endpoint() -> None:
    A.load.in_flight = 7
    metrics = watched([A, B, NEW])
    A.load.in_flight = 1

    assert value(metrics, "epp_endpoint_queue") == 4
    assert value(metrics, "epp_endpoint_running") == 8
    assert value(metrics, "epp_endpoint_kv_usage_ratio") == 0.5
    assert value(metrics, "epp_endpoint_in_flight") == 1
    assert value(metrics, "epp_endpoint_signal_age_seconds") == 0.5
    assert value(metrics, "epp_endpoint_stale") == 0
    A.load.in_flight = 0


def test_an_endpoint_without_signals_has_no_values_for_them() -> None:
    metrics = watched([A, NEW])

    assert value(metrics, "epp_endpoint_queue", "default/new") is None
    assert value(metrics, "epp_endpoint_running", "default/new") is None
    assert value(metrics, "epp_endpoint_kv_usage_ratio", "default/new") is None
    assert value(metrics, "epp_endpoint_in_flight", "default/new") == 2
    assert value(metrics, "epp_endpoint_signal_age_seconds", "default/new") == math.inf
    assert value(metrics, "epp_endpoint_stale", "default/new") == 1


def test_averages_are_over_endpoints_with_signals_and_not_truncated() -> None:
    metrics = watched([A, B, NEW])

    averages = [
        metrics.registry.get_sample_value(f"epp_pool_average_{name}")
        for name in ("queue", "running", "kv_usage_ratio")
    ]
    assert averages == [3.5, 4.5, 0.375]
    assert metrics.registry.get_sample_value("epp_pool_endpoints") == 3


@pytest.mark.parametrize("pool", [[], [NEW]], ids=["an empty pool", "a pool without signals"])
def test_where_nothing_is_known_there_is_no_average(pool: Sequence[Endpoint]) -> None:
    metrics = watched(pool)

    assert metrics.registry.get_sample_value("epp_pool_average_queue") is None
    assert metrics.registry.get_sample_value("epp_pool_endpoints") == len(pool)


def test_the_pool_is_read_when_the_page_is_asked_for() -> None:
    pool = [A, B]
    metrics = watched(pool)
    pool.remove(B)

    assert endpoints_of(metrics) == {"default/a"}


def test_a_registry_shows_one_pool() -> None:
    metrics = watched([A])
    with pytest.raises(DuplicateTimeseries):
        metrics.watch_pool(lambda: [B], lambda: 0.0)
