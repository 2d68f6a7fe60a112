from pathlib import Path

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from epp.simulator.engine import EngineLoad, EngineOptions
from epp.simulator.exposition import Page
from epp.simulator.telemetry import Telemetry

REAL_PAGE = Path(__file__).with_name("captures") / "metrics_under_load.txt"


def telemetry(**options: int) -> Telemetry:
    return Telemetry("m", EngineOptions(**options), lora=True, wall_clock=lambda: 1.7e9)


def parsed(page: bytes) -> dict[str, Metric]:
    return {family.name: family for family in text_string_to_metric_families(page.decode())}


def values(page: bytes, name: str) -> dict[tuple[str, ...], float]:
    """Return the samples of a family, by those labels that tell them apart."""
    plain = {"model_name", "engine"}
    return {
        tuple(value for label, value in sample.labels.items() if label not in plain): sample.value
        for sample in parsed(page)[name].samples
    }


def test_every_series_is_one_of_the_real_page_with_its_type_labels_and_buckets():
    real = parsed(REAL_PAGE.read_bytes())
    sut = telemetry(max_model_len=2048)
    sut.report(EngineLoad(1, 2, 1, 0.5), ["a"])

    ours = parsed(sut.page())

    described = {"vllm:cache_config_info", "vllm:lora_requests_info"}
    for name, family in ours.items():
        assert family.type == real[name].type
        if name not in described:
            assert _shape(family) == _shape(real[name])
    for name in described:
        assert ours[name].samples[0].labels.keys() <= real[name].samples[0].labels.keys()


def _shape(family: Metric) -> set[tuple[str, tuple[tuple[str, str], ...]]]:
    return {
        (sample.name, tuple(sorted({**sample.labels, "model_name": ""}.items())))
        for sample in family.samples
    }


def test_the_waiting_are_told_apart_by_their_reason_and_sum_up():
    sut = telemetry()

    sut.report(EngineLoad(running=4, waiting=18, deferred=1, kv_usage=0.25), [])

    assert values(sut.page(), "vllm:num_requests_running") == {(): 4}
    assert values(sut.page(), "vllm:num_requests_waiting") == {(): 18}
    assert values(sut.page(), "vllm:num_requests_waiting_by_reason") == {
        ("capacity",): 17,
        ("deferred",): 1,
    }
    assert values(sut.page(), "vllm:kv_cache_usage_perc") == {(): 0.25}


def test_adapters_seen_once_stay_on_the_page_with_the_time_they_were_last_seen():
    clock = iter([1.70e9, 1.71e9, 1.72e9, 1.73e9])
    sut = Telemetry("m", EngineOptions(max_loras=2), lora=True, wall_clock=lambda: next(clock))

    for adapters in (["c"], ["c", "a"], [], ["c"]):
        sut.report(EngineLoad(0, 0, 0, 0.0), adapters)

    assert values(sut.page(), "vllm:lora_requests_info") == {
        ("2", "c", "c"): 1.73e9,
        ("2", "c,a", "c,a"): 1.71e9,
        ("2", "", ""): 1.72e9,
    }


def test_before_the_first_step_the_adapters_have_a_name_on_the_page_and_no_series():
    assert parsed(telemetry().page())["vllm:lora_requests_info"].samples == []


def test_a_server_without_adapters_has_no_word_of_them():
    sut = Telemetry("m", EngineOptions())
    sut.report(EngineLoad(1, 0, 0, 0.0), [])

    assert b"lora" not in sut.page()


def test_a_request_is_counted_on_its_way():
    sut = telemetry()

    sut.count_step(tokens=40, preemptions=1)
    sut.count_admission(prompt_tokens=40, cached_tokens=32, waited=0.1)
    sut.count_first_token(prompt_tokens=40, latency=0.3)
    sut.count_next_token(0.02)
    sut.count_finish("stop", prompt_tokens=40, generated_tokens=2, latency=0.32)

    counted = {
        name: next(iter(values(sut.page(), f"vllm:{name}").values()))
        for name in (
            "prefix_cache_queries", "prefix_cache_hits", "prompt_tokens", "generation_tokens",
            "num_preemptions", "request_success",
        )
    }  # fmt: skip

    assert counted == {
        "prefix_cache_queries": 40,
        "prefix_cache_hits": 32,
        "prompt_tokens": 40,
        "generation_tokens": 2,
        "num_preemptions": 1,
        "request_success": 1,
    }


def test_a_cache_is_described_by_its_blocks():
    page = telemetry(block_size=32, num_gpu_blocks=101, max_model_len=1600).page()

    labels = parsed(page)["vllm:cache_config_info"].samples[0].labels

    assert labels == {
        "block_size": "32",
        "enable_prefix_caching": "True",
        "engine": "0",
        "kv_cache_max_concurrency": "2.0",
        "kv_cache_size_tokens": "3200",
        "num_gpu_blocks": "101",
    }


@pytest.mark.parametrize(
    ("value", "counts"),
    [
        pytest.param(0.5, {"1.0": 1, "2.0": 1, "+Inf": 1}, id="below the first bound"),
        pytest.param(1.0, {"1.0": 1, "2.0": 1, "+Inf": 1}, id="a bound belongs to its bucket"),
        pytest.param(1.5, {"1.0": 0, "2.0": 1, "+Inf": 1}, id="between two bounds"),
        pytest.param(99.0, {"1.0": 0, "2.0": 0, "+Inf": 1}, id="beyond all bounds"),
    ],
)
def test_a_value_counts_in_each_bucket_that_holds_it(value: float, counts: dict[str, int]):
    page = Page()
    page.histogram("h", "Help.", {}, [1.0, 2.0]).observe(value)

    samples = parsed(page.render())["h"].samples
    buckets = {sample.labels["le"]: sample.value for sample in samples if "le" in sample.labels}
    rest = {sample.name: sample.value for sample in samples if not sample.labels}

    assert buckets == counts
    assert rest == {"h_count": 1, "h_sum": value}


def test_labels_may_hold_what_the_format_must_escape():
    page = Page()
    page.gauge("g", "Help.", {"model_name": 'a "b"\\\n'}).value = 2

    assert parsed(page.render())["g"].samples[0].labels == {"model_name": 'a "b"\\\n'}
