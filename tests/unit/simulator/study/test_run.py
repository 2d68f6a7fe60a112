"""Runs in virtual time: what a driver may decide, and what it must not change."""

from collections.abc import Sequence
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epp.simulator.engine import (
    PROFILES,
    Adapter,
    Batch,
    ClassLimit,
    Engine,
    EngineOptions,
    EngineRequest,
    StepTiming,
)
from epp.simulator.study.run import Record, Run, Stuck, run

SECOND_STEPS = StepTiming(
    base_seconds=1.0, token_seconds=0.0, sequence_seconds=0.0, swap_block_seconds=0.0
)


def request(
    name: str, prompt: int = 4, reply: int = 3, *, arrival: float = 0.0, priority: int = 0
) -> EngineRequest:
    return EngineRequest(name, range(prompt), range(reply), arrival=arrival, priority=priority)


def run_in_second_steps(requests: Sequence[EngineRequest], **options: object) -> Run:
    chosen = EngineOptions(prefix_caching=False, **options)  # type: ignore[arg-type]
    return run(Engine(chosen, SECOND_STEPS), requests, token_times=True)


def by_id(done: Run) -> dict[str, Record]:
    return {one.id: one for one in done.records}


@st.composite
def options(draw: st.DrawFn) -> EngineOptions:
    return EngineOptions(
        max_num_seqs=draw(st.integers(1, 5)),
        max_num_batched_tokens=draw(st.integers(3, 24)),
        long_prefill_token_threshold=draw(st.sampled_from([0, 5])),
        block_size=4,
        num_gpu_blocks=draw(st.integers(10, 24)),
        num_cpu_blocks=draw(st.integers(0, 24)),
        prefix_caching=draw(st.booleans()),
        reserve_full_prompt=draw(st.booleans()),
        scheduling_policy=draw(st.sampled_from(["fcfs", "priority", "ageing", "qoe"])),
        priority_preemption=draw(st.booleans()),
        ageing_seconds=0.05,
        qoe_pace=draw(st.sampled_from([10.0, 100.0])),
        qoe_first_token_seconds=0.1,
        class_limits=draw(st.sampled_from([(), (ClassLimit(1, 1),)])),
        preemption_mode=draw(st.sampled_from(["recompute", "swap"])),
        strict_order=draw(st.booleans()),
        max_loras=draw(st.integers(1, 2)),
        lora_waiting=draw(st.sampled_from(["skip", "stop"])),
    )


@st.composite
def requests(draw: st.DrawFn) -> Sequence[EngineRequest]:
    adapters = st.sampled_from([None, Adapter("a"), Adapter("b"), Adapter("c")])
    return [
        EngineRequest(
            str(number),
            range(draw(st.integers(1, 20))),
            range(draw(st.integers(1, 16))),
            adapter=draw(adapters),
            priority=draw(st.integers(0, 2)),
            arrival=draw(st.floats(0, 1)),
        )
        for number in range(draw(st.integers(1, 8)))
    ]


@settings(deadline=None, max_examples=200)
@given(options(), requests(), st.sampled_from(sorted(PROFILES)))
def test_fast_forward_changes_nothing_in_the_result(
    chosen: EngineOptions, load: Sequence[EngineRequest], profile: str
):
    timing = PROFILES[profile]
    quick = run(Engine(chosen, timing), load, token_times=True)

    step_by_step = run(Engine(chosen, timing), load, token_times=True, fast_forward=False)

    assert step_by_step == quick


@settings(deadline=None, max_examples=100)
@given(options(), requests())
def test_every_request_says_all_of_its_reply_in_order(
    chosen: EngineOptions, load: Sequence[EngineRequest]
):
    records = run(Engine(chosen, PROFILES["a100-7b"]), load, token_times=True).records

    for one, asked in zip(records, load, strict=True):
        assert one.id == asked.id
        assert one.num_tokens == len(asked.reply) == len(one.token_times)
        assert list(one.token_times) == sorted(one.token_times)
        assert (one.token_times[0], one.token_times[-1]) == (one.first_token, one.last_token)
        assert asked.arrival <= one.admitted < one.first_token


def test_a_request_is_seen_by_the_step_that_starts_as_it_comes():
    done = run_in_second_steps([request("first"), request("on time", arrival=1.0)])

    assert by_id(done)["on time"].admitted == 1.0
    assert by_id(done)["on time"].first_token == 2.0


def test_a_request_that_comes_within_a_step_waits_for_the_next():
    done = run_in_second_steps([request("first"), request("late", arrival=1.25)])

    assert by_id(done)["late"].admitted == 2.0
    assert by_id(done)["late"].ttft == 1.75


def test_an_idle_engine_jumps_to_the_next_arrival():
    done = run_in_second_steps([request("first"), request("much later", arrival=1000.5)])

    assert by_id(done)["much later"].admitted == 1000.5
    assert done.steps == 6
    assert done.seconds == 1003.5


def test_records_come_in_the_order_of_the_requests_whenever_they_arrive():
    done = run_in_second_steps([request("b", arrival=5.0), request("a", arrival=1.0)])

    assert [one.id for one in done.records] == ["b", "a"]


def test_time_per_token_leaves_the_first_token_out():
    record = run_in_second_steps([request("one", reply=5, arrival=3.0)]).records[0]

    assert record.ttft == 1.0
    assert record.tpot == 1.0
    assert list(accumulate([4.0, 1, 1, 1, 1])) == list(record.token_times)


def test_a_single_token_has_no_time_per_token():
    assert run_in_second_steps([request("one", reply=1)]).records[0].tpot == 0.0


def test_what_a_preempted_request_had_computed_is_counted_when_it_is_computed_again():
    urgent = request("urgent", arrival=2.0)
    done = run_in_second_steps(
        [request("patient", prompt=10, reply=4, priority=1), urgent],
        max_num_seqs=1,
        scheduling_policy="priority",
        priority_preemption=True,
    )

    patient = by_id(done)["patient"]

    assert (patient.preemptions, patient.swap_outs) == (1, 0)
    assert patient.recomputed_tokens == 11  # the prompt and the first of its two tokens
    assert by_id(done)["urgent"].recomputed_tokens == 0


def test_what_a_swapped_request_had_computed_is_not_computed_again():
    done = run_in_second_steps(
        [request("patient", prompt=10, reply=4, priority=1), request("urgent", arrival=2.0)],
        max_num_seqs=1,
        block_size=4,
        scheduling_policy="priority",
        priority_preemption=True,
        preemption_mode="swap",
    )

    patient = by_id(done)["patient"]

    assert (patient.preemptions, patient.swap_outs) == (1, 1)
    assert patient.recomputed_tokens == 0
    assert patient.swapped_seconds == 3.0
    assert done.swapped_blocks == 6


class LockedEngine(Engine):
    """Lets time pass, and nobody in."""

    def schedule(self, now: float = 0.0) -> Batch:
        return Batch(0, duration=1.0)


def test_an_engine_of_which_nothing_comes_is_not_waited_for():
    engine = LockedEngine(EngineOptions(), SECOND_STEPS)

    with pytest.raises(Stuck, match="0 requests run, 1 wait, and no token comes out"):
        run(engine, [request("shut out")])
