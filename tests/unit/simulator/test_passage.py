from typing import Any

import pytest

from epp.simulator.engine import EngineLoad, EngineOptions
from epp.simulator.telemetry import EngineTelemetry, Passage, Siblings, Telemetry
from support.metric_pages import histogram, values

IDLE = EngineLoad(running=0, waiting=0, deferred=0, swapped=0, kv_usage=0.0, cpu_usage=0.0)


def telemetry() -> Telemetry:
    return Telemetry("m", EngineOptions())


def arrived(engine: EngineTelemetry, now: float = 0.0, **facts: Any) -> Passage:
    return engine.arrive(now, **{"prompt_tokens": 10, "max_tokens": None, **facts})


def test_a_request_is_counted_on_its_way():
    sut = telemetry()
    passage = arrived(sut.engines[0], prompt_tokens=40)

    passage.admit(0.1, 32)
    passage.token(0.3)
    sut.engines[0].report(IDLE, queries=40, hits=32)
    passage.token(0.32)

    counted = {
        name: values(sut, name)
        for name in (
            "prefix_cache_queries", "prefix_cache_hits", "prompt_tokens", "prompt_tokens_cached",
            "generation_tokens",
        )
    }  # fmt: skip
    assert counted == {
        "prefix_cache_queries": {(): 40},
        "prefix_cache_hits": {(): 32},
        "prompt_tokens": {(): 40},
        "prompt_tokens_cached": {(): 32},
        "generation_tokens": {(): 2},
    }
    assert values(sut, "prompt_tokens_by_source") == {
        ("local_compute",): 8,
        ("local_cache_hit",): 32,
        ("external_kv_transfer",): 0,
    }
    assert values(sut, "prompt_tokens_cached_by_source")[("device",)] == 32
    assert histogram(sut, "time_to_first_token_seconds") == (1, 0.3)
    assert histogram(sut, "inter_token_latency_seconds") == (1, 0.02)


def test_a_steps_tokens_are_those_it_gave_and_those_computed_of_the_prompts_it_ended():
    sut = telemetry()
    engine = sut.engines[0]
    short, long = arrived(engine, prompt_tokens=40), arrived(engine, prompt_tokens=900)

    short.admit(0.1, 32)
    long.admit(0.1, 0)
    engine.report(IDLE)  # nothing came out of this step
    short.token(0.2)
    engine.report(IDLE)
    after_two_steps = histogram(sut, "iteration_tokens_total")
    short.token(0.3)
    long.token(0.3)
    engine.report(IDLE)

    assert after_two_steps == (1, 8 + 1)
    assert histogram(sut, "iteration_tokens_total") == (2, 8 + 1 + 900 + 2)


def _finished(sut: Telemetry) -> None:
    passage = arrived(sut.engines[0], 1.0, prompt_tokens=40, max_tokens=7)
    passage.admit(1.5, 32)
    for now in (2.5, 3.0, 4.5):
        passage.token(now)
    passage.finish(4.5, "length")


@pytest.mark.parametrize(
    ("name", "seen"),
    [
        ("request_prompt_tokens", 40),
        ("request_generation_tokens", 3),
        ("request_max_num_generation_tokens", 3),
        ("request_params_n", 1),
        ("request_params_max_tokens", 7),
        ("request_time_per_output_token_seconds", 1.0),
        ("e2e_request_latency_seconds", 3.5),
        ("request_queue_time_seconds", 0.5),
        ("request_inference_time_seconds", 3.0),
        ("request_prefill_time_seconds", 1.0),
        ("request_decode_time_seconds", 2.0),
        ("request_num_preemptions", 0),
        ("request_prefill_kv_computed_tokens", 8),
    ],
)
def test_a_request_is_measured_when_it_ends(name: str, seen: float):
    sut = telemetry()
    before = histogram(sut, name)

    _finished(sut)

    assert before == (0, 0)
    assert histogram(sut, name) == (1, seen)


def test_an_end_has_a_reason():
    sut = telemetry()

    _finished(sut)

    ends = {reason: count for (reason,), count in values(sut, "request_success").items() if count}
    assert ends == {"length": 1}


def test_a_reply_of_one_token_took_no_time_a_token():
    sut = telemetry()
    passage = arrived(sut.engines[0])
    passage.admit(0.1, 0)
    passage.token(0.5)

    passage.finish(0.5, "stop")

    assert histogram(sut, "request_time_per_output_token_seconds") == (1, 0)


def test_a_request_that_asks_for_any_number_of_tokens_is_not_among_those_that_ask_for_some():
    sut = telemetry()

    arrived(sut.engines[0], max_tokens=None).finish(1.0, "stop")

    assert histogram(sut, "request_params_max_tokens") == (0, 0)


def test_a_request_that_ends_in_the_queue_spent_all_its_time_there():
    sut = telemetry()

    arrived(sut.engines[0], 1.0).finish(3.0, "abort")

    assert values(sut, "request_success")[("abort",)] == 1
    assert histogram(sut, "request_queue_time_seconds") == (1, 2)
    assert histogram(sut, "request_inference_time_seconds") == (1, 0)


def test_a_request_whose_reader_left_is_counted_nowhere():
    sut = telemetry()
    passage = arrived(sut.engines[0])
    passage.admit(0.1, 0)
    passage.token(0.2)

    passage.leave()

    assert histogram(sut, "e2e_request_latency_seconds") == (0, 0)
    assert set(values(sut, "request_success").values()) == {0}


def test_replies_of_one_prompt_are_one_in_what_was_asked_for():
    sut = telemetry()
    siblings = Siblings(2)
    first, second = (arrived(sut.engines[0], siblings=siblings) for _ in range(2))
    for passage, tokens in ((first, 5), (second, 3)):
        for now in range(tokens):
            passage.token(now)

    first.finish(5, "stop")
    after_the_first = histogram(sut, "request_params_n")
    second.finish(5, "stop")

    assert after_the_first == (0, 0)
    assert histogram(sut, "request_params_n") == (1, 2)
    assert histogram(sut, "request_max_num_generation_tokens") == (1, 5)
    assert histogram(sut, "request_generation_tokens") == (2, 8)


def test_a_preemption_shows_with_the_next_token():
    sut = telemetry()
    passage = arrived(sut.engines[0])
    passage.admit(0.1, 0)
    passage.token(0.2)

    passage.preempt()
    at_once = values(sut, "num_preemptions")
    passage.admit(0.5, 9)
    passage.token(0.6)
    later = values(sut, "num_preemptions")
    passage.token(0.7)
    passage.finish(0.7, "stop")

    assert (at_once, later) == ({(): 0}, {(): 1})
    assert values(sut, "num_preemptions") == {(): 1}
    assert histogram(sut, "request_num_preemptions") == (1, 1)


def test_only_the_first_admission_says_when_it_was_and_what_was_cached():
    passage = arrived(telemetry().engines[0])
    passage.admit(0.1, 4)
    passage.preempt()

    passage.admit(0.5, 9)

    assert (passage.admitted, passage.cached_tokens) == (0.1, 4)


def test_a_passage_knows_how_far_it_came():
    passage = arrived(telemetry().engines[0], 1.0)
    passage.admit(1.5, 0)
    passage.token(2.0)
    passage.token(2.5)

    assert (passage.arrived, passage.first_token, passage.last_token) == (1.0, 2.0, 2.5)
    assert (passage.generated, passage.preemptions, passage.prompt_tokens) == (2, 0, 10)
