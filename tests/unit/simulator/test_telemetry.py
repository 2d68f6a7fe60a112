import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from epp.simulator.engine import EngineLoad, EngineOptions
from epp.simulator.telemetry import EngineTelemetry, LoraInfoMode, Passage, Telemetry
from support.metric_pages import parsed, values

CAPTURES = Path(__file__).with_name("captures")
MODEL = "tiny-llama"
IDLE = EngineLoad(running=0, waiting=0, deferred=0, swapped=0, kv_usage=0.0, cpu_usage=0.0)
PREFIXES_LEFT_OUT = {
    "python": "the interpreter's own",
    "process": "the process's own",
    "http": "the HTTP server's own",
}


def telemetry(
    *, engines: int = 1, lora_info: LoraInfoMode = "current", **options: Any
) -> Telemetry:
    return Telemetry(
        MODEL,
        EngineOptions(**options),
        engines=engines,
        lora=True,
        lora_info=lora_info,
        wall_clock=lambda: 1.7e9,
    )


def arrived(engine: EngineTelemetry, now: float = 0.0, **facts: Any) -> Passage:
    return engine.arrive(now, **{"prompt_tokens": 10, "max_tokens": None, **facts})


def lora_info(sut: Telemetry) -> list[tuple[str, ...]]:
    """Return the running and the waiting adapters, in the order in which they were reported."""
    return [key[1:] for key in values(sut, "lora_requests_info")]


def skeleton(page: bytes) -> Iterator[str]:
    """Yield a page's lines without what is free to differ: help texts, times, measured values."""
    for line in page.decode().splitlines():
        name = line.split()[2] if line.startswith("#") else line.partition("{")[0]
        if name.startswith("vllm:") and not line.startswith("vllm:lora_requests_info"):
            shortened = re.sub(r"^(# HELP \S+) .*", r"\1", line)
            shortened = re.sub(r"^(vllm:cache_config_info)\{.*", r"\1", shortened)
            yield re.sub(r"\} \S+$", "}", shortened)


def test_the_page_of_an_idle_server_is_that_of_a_real_one_line_by_line():
    real = (CAPTURES / "metrics_idle_fresh.txt").read_bytes()
    sut = telemetry(max_model_len=2048)

    assert list(skeleton(real)) == list(skeleton(sut.page()))


def test_an_idle_server_shows_the_values_of_a_real_one():
    real = (CAPTURES / "metrics_idle_fresh.txt").read_bytes()
    ours = telemetry(max_model_len=2048).page()

    def shown(page: bytes) -> list[str]:
        return [
            line
            for line in page.decode().splitlines()
            if line.startswith("vllm:") and "_created{" not in line and "cache_config" not in line
        ]

    assert shown(real) == shown(ours)


def test_only_families_that_are_not_the_engines_are_left_out():
    real = parsed((CAPTURES / "metrics_idle_fresh.txt").read_bytes())
    ours = parsed(telemetry().page())

    left_out = {name for name in real if name not in ours}

    assert {re.split("[_:]", name)[0] for name in left_out} == set(PREFIXES_LEFT_OUT)


def test_a_server_of_two_engines_shows_both_in_the_order_of_a_real_one():
    real = (CAPTURES / "metrics_dp2_under_load.txt").read_bytes()
    ours = telemetry(engines=2, max_model_len=2048).page()

    lines = [line for line in skeleton(ours) if "_bucket{" not in line]

    assert list(skeleton(real)) == lines


def test_caches_are_described_with_the_labels_and_values_of_a_real_server():
    real = parsed((CAPTURES / "metrics_dp2_under_load.txt").read_bytes())
    options = {
        "block_size": 32,
        "num_gpu_blocks": 32768,
        "max_model_len": 2048,
        "prefix_caching_hash_algorithm": "sha256_cbor",
    }
    sut = telemetry(engines=2, **options)

    ours = [sample.labels for sample in parsed(sut.page())["vllm:cache_config_info"].samples]
    expected = [sample.labels for sample in real["vllm:cache_config_info"].samples]
    for labels in expected:
        labels["kv_cache_memory_bytes"] = "None"  # blocks are given here, not bytes

    assert expected == ours


def test_a_cache_is_described_as_it_is():
    sut = telemetry(
        block_size=16,
        num_gpu_blocks=41,
        max_model_len=512,
        prefix_caching=False,
        preemption_mode="swap",
        num_cpu_blocks=7,
    )

    labels = parsed(sut.page())["vllm:cache_config_info"].samples[0].labels

    assert {
        "block_size": "16",
        "enable_prefix_caching": "False",
        "kv_cache_max_concurrency": "1.28125",
        "kv_cache_size_tokens": "656",
        "num_cpu_blocks": "7",
        "num_gpu_blocks": "41",
        "user_specified_block_size": "False",
    }.items() <= labels.items()


def test_the_waiting_are_told_apart_by_their_reason_and_sum_up():
    sut = telemetry()

    sut.engines[0].report(IDLE._replace(running=4, waiting=18, deferred=1, kv_usage=0.25))

    assert values(sut, "num_requests_running") == {(): 4}
    assert values(sut, "num_requests_waiting") == {(): 18}
    assert values(sut, "num_requests_waiting_by_reason") == {("capacity",): 17, ("deferred",): 1}
    assert values(sut, "kv_cache_usage_perc") == {(): 0.25}


def test_engines_report_apart_from_each_other():
    sut = telemetry(engines=2)

    sut.engines[0].report(IDLE._replace(running=4))
    sut.engines[1].report(IDLE._replace(running=3))

    samples = parsed(sut.page())["vllm:num_requests_running"].samples
    assert {sample.labels["engine"]: sample.value for sample in samples} == {"0": 4, "1": 3}
    assert [engine.load.running for engine in sut.engines] == [4, 3]


def test_a_server_that_swaps_shows_whom_and_where_to():
    sut = telemetry(preemption_mode="swap")

    sut.engines[0].report(IDLE._replace(waiting=3, swapped=2, cpu_usage=0.5))

    assert values(sut, "num_requests_swapped") == {(): 2}
    assert values(sut, "cpu_cache_usage_perc") == {(): 0.5}


def test_a_server_that_does_not_swap_has_no_word_of_it():
    sut = telemetry()
    sut.engines[0].report(IDLE)

    assert b"swapped" not in sut.page()
    assert b"cpu_cache" not in sut.page()


def test_an_engine_is_awake():
    assert values(telemetry(), "engine_sleep_state") == {
        ("awake",): 1,
        ("weights_offloaded",): 0,
        ("discard_all",): 0,
    }


def test_what_is_turned_away_is_counted_for_the_whole_server():
    sut = telemetry(engines=2)

    sut.count_rejection("max_num_queued_reqs")

    samples = parsed(sut.page())["vllm:admission_rejections"].samples
    counted = [s.labels for s in samples if s.value == 1]
    assert counted == [{"model_name": MODEL, "reason": "max_num_queued_reqs"}]


def _wait(passage: Passage) -> None:
    """Leave it where it is."""


def _admit(passage: Passage) -> None:
    passage.admit(0.1, 0)


def _answer(passage: Passage) -> None:
    passage.admit(0.1, 0)
    passage.token(0.2)


def _preempt(passage: Passage) -> None:
    _answer(passage)
    passage.preempt()


def _readmit(passage: Passage) -> None:
    _preempt(passage)
    passage.admit(0.4, 0)


def _resume(passage: Passage) -> None:
    _preempt(passage)
    passage.resume()


def _resume_twice(passage: Passage) -> None:
    _resume(passage)
    passage.resume()


def _leave_queue(passage: Passage) -> None:
    passage.leave()


def _leave(passage: Passage) -> None:
    _answer(passage)
    passage.leave()


def _leave_preempted(passage: Passage) -> None:
    _preempt(passage)
    passage.leave()


def _finish(passage: Passage) -> None:
    _answer(passage)
    passage.finish(0.3, "stop")


STAGES = [
    pytest.param(_wait, ("", ""), ("", "a"), id="waits"),
    pytest.param(_admit, ("", ""), ("a", ""), id="runs without a token"),
    pytest.param(_answer, ("a", "a"), ("a", ""), id="has a token"),
    pytest.param(_preempt, ("a", "a"), ("", "a"), id="preempted"),
    pytest.param(_readmit, ("a", "a"), ("a", ""), id="admitted again"),
    pytest.param(_resume, ("a", "a"), ("a", ""), id="swapped in again"),
    pytest.param(_resume_twice, ("a", "a"), ("a", ""), id="told so twice"),
    pytest.param(_leave_queue, ("", ""), ("", ""), id="left the queue"),
    pytest.param(_leave, ("", ""), ("", ""), id="left"),
    pytest.param(_leave_preempted, ("", ""), ("", ""), id="left while preempted"),
    pytest.param(_finish, ("", ""), ("", ""), id="finished"),
]


@pytest.mark.parametrize(("go", "current", "old"), STAGES)
def test_adapters_are_told_as_each_version_tells_them(
    go: Callable[[Passage], None], current: tuple[str, str], old: tuple[str, str]
):
    told = {}
    modes: list[LoraInfoMode] = ["current", "old"]
    for mode in modes:
        sut = telemetry(lora_info=mode)
        go(arrived(sut.engines[0], adapter="a"))
        sut.engines[0].report(IDLE)
        told[mode] = lora_info(sut)

    assert told == {"current": [current], "old": [old]}


def test_an_adapter_of_several_requests_is_told_once_until_the_last_has_ended():
    sut = telemetry()
    engine = sut.engines[0]
    passages = [arrived(engine, adapter=adapter) for adapter in ("c", "a", "c")]
    for passage in passages:
        _answer(passage)
    for passage in passages:
        engine.report(IDLE)
        passage.finish(0.3, "stop")

    assert lora_info(sut) == [("c,a", "c,a"), ("c", "c")]


def test_adapters_seen_once_stay_on_the_page_with_the_time_they_were_last_seen():
    clock = iter([1.70e9, 1.71e9, 1.72e9, 1.73e9])
    options = EngineOptions(max_loras=2)
    sut = Telemetry(MODEL, options, lora=True, wall_clock=lambda: next(clock))
    engine = sut.engines[0]

    first = arrived(engine, adapter="c")
    _answer(first)
    engine.report(IDLE)
    second = arrived(engine, adapter="a")
    _answer(second)
    engine.report(IDLE)
    first.leave()
    second.leave()
    engine.report(IDLE)
    _answer(arrived(engine, adapter="c"))
    engine.report(IDLE)

    assert values(sut, "lora_requests_info") == {
        ("2", "c", "c"): 1.73e9,
        ("2", "c,a", "c,a"): 1.71e9,
        ("2", "", ""): 1.72e9,
    }


def test_before_the_first_step_the_adapters_have_a_name_on_the_page_and_no_series():
    assert parsed(telemetry().page())["vllm:lora_requests_info"].samples == []


def test_a_server_without_adapters_has_no_word_of_them():
    sut = Telemetry(MODEL, EngineOptions())
    sut.engines[0].report(IDLE)

    assert b"lora" not in sut.page()
