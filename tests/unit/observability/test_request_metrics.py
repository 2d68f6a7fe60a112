"""The life of a request in numbers, and a cap on what clients can choose."""

import random

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from epp.framework import TerminationCause, Usage
from epp.observability.metrics import Metrics


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


def value(metrics: Metrics, name: str, model: str = "llama", **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, {"model": model, **labels})


def models(metrics: Metrics) -> set[str]:
    return {
        sample.labels["model"]
        for family in metrics.registry.collect()
        for sample in family.samples
        if "model" in sample.labels
    }


def test_a_request_runs_from_its_start_to_its_end(metrics: Metrics) -> None:
    model = metrics.model("llama")
    model.started(29_000)
    running = value(metrics, "epp_requests_running")
    model.finished(2.0, TerminationCause.COMPLETED, 500, None)

    assert (running, value(metrics, "epp_requests_running")) == (1, 0)
    assert value(metrics, "epp_requests_total") == 1
    assert value(metrics, "epp_request_size_bytes_sum") == 29_000
    assert value(metrics, "epp_request_duration_seconds_sum") == 2.0
    assert value(metrics, "epp_requests_finished_total", cause="completed") == 1
    assert value(metrics, "epp_response_size_bytes_sum") == 500


def test_a_rejected_request_runs_no_longer(metrics: Metrics) -> None:
    model = metrics.model("llama")
    model.started(10)
    model.rejected(429, "rejected-saturated")

    assert value(metrics, "epp_requests_running") == 0
    assert value(metrics, "epp_request_errors_total", code="429", reason="rejected-saturated") == 1
    assert value(metrics, "epp_request_duration_seconds_count") is None


def test_a_request_refused_before_its_model_is_known_counts_without_one(metrics: Metrics) -> None:
    metrics.refused(400, "BadRequest")
    metrics.refused(400, "BadRequest")

    assert value(metrics, "epp_requests_total", "") == 2
    assert value(metrics, "epp_request_errors_total", "", code="400", reason="BadRequest") == 2
    assert value(metrics, "epp_requests_running", "") is None


def test_the_first_byte_is_told_apart_by_streaming(metrics: Metrics) -> None:
    metrics.model("llama").first_byte(0.3, streaming=True)
    metrics.model("llama").first_byte(4.0, streaming=False)

    assert value(metrics, "epp_time_to_first_byte_seconds_sum", streaming="true") == 0.3
    assert value(metrics, "epp_time_to_first_byte_seconds_sum", streaming="false") == 4.0


def test_token_counts_that_are_not_known_are_not_observed(metrics: Metrics) -> None:
    model = metrics.model("llama")
    model.finished(1.0, TerminationCause.COMPLETED, 0, Usage(prompt_tokens=7))
    model.finished(1.0, TerminationCause.COMPLETED, 0, Usage(cached_tokens=0))

    assert value(metrics, "epp_prompt_tokens_sum") == 7
    assert value(metrics, "epp_cached_tokens_count") == 1
    assert value(metrics, "epp_completion_tokens_count") is None
    assert value(metrics, "epp_response_size_bytes_count") is None


def test_token_counts_that_are_known_are_observed(metrics: Metrics) -> None:
    model = metrics.model("llama")
    model.finished(1.0, TerminationCause.COMPLETED, 10, Usage(1000, 200, 512))

    sums = [value(metrics, f"epp_{name}_tokens_sum") for name in ("prompt", "completion", "cached")]
    assert sums == [1000, 200, 512]


def test_every_cause_has_a_series_of_its_own(metrics: Metrics) -> None:
    for cause in TerminationCause:
        metrics.model("llama").finished(1.0, cause, 0, None)

    counts = [
        value(metrics, "epp_requests_finished_total", cause=cause.value)
        for cause in TerminationCause
    ]
    assert counts == [1] * len(TerminationCause)


def test_a_model_is_bound_once(metrics: Metrics) -> None:
    assert metrics.model("llama") is metrics.model("llama")


def test_models_beyond_the_cap_share_the_series_of_other() -> None:
    metrics = Metrics(max_models=2)
    for name in ("a", "b", "c", "d", "a"):
        metrics.model(name).started(1)

    assert models(metrics) == {"a", "b", "other"}
    assert value(metrics, "epp_requests_total", "other") == 2
    assert value(metrics, "epp_requests_total", "a") == 2


def test_a_request_without_a_model_and_one_called_other_take_no_room() -> None:
    metrics = Metrics(max_models=1)
    for name in ("", "other", "a", "b"):
        metrics.model(name).started(1)

    assert models(metrics) == {"", "other", "a"}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("x" * 257, id="longer than 256 characters"),
        pytest.param("half a pair \ud83d", id="half a surrogate pair"),
    ],
)
def test_a_name_that_makes_no_label_counts_as_other(name: str, metrics: Metrics) -> None:
    metrics.model(name).started(1)

    assert models(metrics) == {"other"}
    assert b'epp_requests_total{model="other"} 1.0' in generate_latest(metrics.registry)


def test_a_hundred_thousand_random_models_leave_a_bounded_number_of_series() -> None:
    metrics = Metrics(max_models=100)
    rng = random.Random(7)
    for _ in range(100_000):
        metrics.model(f"{rng.getrandbits(64):x}").started(1)

    series = sum(len(family.samples) for family in metrics.registry.collect())
    assert len(models(metrics)) == 101
    assert series < 101 * 40


def test_metrics_on_two_registries_know_nothing_of_each_other() -> None:
    one, other = Metrics(CollectorRegistry()), Metrics(CollectorRegistry())
    one.model("llama").started(1)

    assert value(one, "epp_requests_total") == 1
    assert value(other, "epp_requests_total") is None


def test_there_are_no_series_of_creation_times(metrics: Metrics) -> None:
    metrics.model("llama").started(1)

    assert b"_created" not in generate_latest(metrics.registry)
