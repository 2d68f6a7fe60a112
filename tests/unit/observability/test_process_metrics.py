"""Decisions, streams, the event loop and the process itself."""

import asyncio

import pytest

from epp import __version__
from epp.observability.metrics import Metrics, watch_loop_lag


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, labels)


def test_a_decision_is_timed(metrics: Metrics) -> None:
    metrics.decision_seconds(0.0003)

    assert value(metrics, "epp_decision_duration_seconds_bucket", le="0.0005") == 1


def test_streams_are_open_until_they_close(metrics: Metrics) -> None:
    for _ in range(3):
        metrics.stream_opened()
    metrics.stream_closed("OK")
    metrics.stream_closed("OK")

    assert value(metrics, "epp_streams_open") == 1
    assert value(metrics, "epp_streams_total", code="OK") == 2


def test_draining_shows_until_it_ends(metrics: Metrics) -> None:
    metrics.draining(draining=True)
    shown = value(metrics, "epp_draining")
    metrics.draining(draining=False)

    assert (shown, value(metrics, "epp_draining")) == (1, 0)


def test_the_version_shows(metrics: Metrics) -> None:
    assert value(metrics, "epp_info", version=__version__) == 1


async def test_the_lag_of_the_loop_is_observed_at_every_interval(metrics: Metrics) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1.1):
            await watch_loop_lag(metrics, interval=0.25)

    assert value(metrics, "epp_event_loop_lag_seconds_count") == 4
    assert value(metrics, "epp_event_loop_lag_seconds_bucket", le="0.1") == 4
