"""Preemption that keeps the KV cache, and the strict order running, swapped, waiting."""

import pytest

from epp.simulator.engine import Engine, StepTiming
from support.engines import check, engine, other_prompt, replies, request, run

TIMING = StepTiming(
    base_seconds=1, token_seconds=0, sequence_seconds=0, lora_load_seconds=0, swap_block_seconds=100
)


def two_that_do_not_fit(**options: object) -> Engine:
    """Return an engine in which the second of two requests has to give way after some steps."""
    sut = engine(TIMING, num_gpu_blocks=7, preemption_mode="swap", **options)
    for at, name in enumerate("ab"):
        sut.add_request(request(name, other_prompt(at, 40), reply=20, arrival=at))
    return sut


def test_a_swapped_request_comes_back_without_being_computed_again():
    sut = two_that_do_not_fit()

    steps = run(sut)

    assert [name for step in steps for name in step.swapped_out] == ["b"]
    assert [name for step in steps for name in step.swapped_in] == ["b"]
    assert sum(sum(step.scheduled.values()) for step in steps) == 2 * (40 + 19)
    assert replies(steps) == {"a": list(range(1000, 1020)), "b": list(range(1000, 1020))}


def test_copying_blocks_takes_time_both_ways():
    sut = two_that_do_not_fit()

    moved = {
        kind: step.duration
        for step in run(sut)
        for kind in ("swapped_out", "swapped_in")
        if getattr(step, kind)
    }

    assert moved == {"swapped_out": 1 + 3 * 100, "swapped_in": 1 + 3 * 100}


def test_a_swapped_request_counts_as_waiting_and_its_blocks_as_the_cpus():
    sut = two_that_do_not_fit(num_cpu_blocks=12)
    while not sut.step().swapped_out:
        pass

    assert (sut.load.running, sut.load.waiting, sut.load.swapped) == (1, 1, 1)
    assert sut.load.cpu_usage == 3 / 12
    assert sut.swapped_ids() == ["b"]


def test_where_the_cpu_is_full_the_blocks_are_computed_again():
    sut = two_that_do_not_fit(num_cpu_blocks=2)

    steps = run(sut)

    assert [name for step in steps for name in step.preempted] == ["b"]
    assert not any(step.swapped_out for step in steps)
    assert [one.request_id for step in steps for one in step.admitted if one.resumed] == ["b"]


def test_an_aborted_swapped_request_leaves_the_cpu():
    sut = two_that_do_not_fit()
    while not sut.step().swapped_out:
        pass

    sut.abort("b")

    check(sut)
    assert sut.load.cpu_usage == 0
    assert not sut.swapped_ids()


@pytest.mark.parametrize(
    ("strict", "admitted"),
    [pytest.param(True, [], id="strict"), pytest.param(False, ["small"], id="as it used to be")],
)
def test_a_small_prompt_and_a_swapped_request_that_cannot_come_back(
    strict: bool,
    admitted: list[str],
):
    """There are free seats and a free block: enough for the newcomer, not for who is outside."""
    sut = two_that_do_not_fit(strict_order=strict)
    while not sut.step().swapped_out:
        pass
    sut.add_request(request("small", other_prompt(9, 4), reply=2))

    step = sut.step()

    assert [one.request_id for one in step.admitted] == admitted
    assert sut.swapped_ids() == ["b"]


def steps_outside(*, strict: bool) -> int:
    """
    Return for how many steps a long request stays swapped out beside a stream of small ones.

    They end one by one and free two blocks each; the long one waits for five.
    """
    sut = engine(TIMING, num_gpu_blocks=9, preemption_mode="swap", strict_order=strict)
    for number in range(2):
        sut.add_request(request(f"first{number}", other_prompt(number, 14), reply=10 + 5 * number))
    sut.add_request(request("long", other_prompt(5, 62), reply=30))
    outside = 0
    for number in range(300):
        sut.step()
        outside += "long" in sut.swapped_ids()
        sut.add_request(request(f"small{number}", other_prompt(9 + number, 17), reply=12))
    return outside


def test_the_strict_order_prevents_that_newcomers_starve_a_swapped_request():
    strict, loose = steps_outside(strict=True), steps_outside(strict=False)

    assert 0 < strict < 20
    assert loose > 10 * strict


def test_swapped_requests_are_looked_at_by_priority():
    sut = engine(TIMING, num_gpu_blocks=13, preemption_mode="swap", scheduling_policy="priority")
    for at, (name, priority) in enumerate((("a", 0), ("b", 5), ("c", 3))):
        sut.add_request(
            request(name, other_prompt(at, 60), reply=40, priority=priority, arrival=at)
        )

    back = [name for step in run(sut) for name in step.swapped_in]

    assert back
    assert back.index("c") < back.index("b") if "c" in back else back == ["b"]


def test_who_made_way_for_an_urgent_request_does_not_come_back_before_it():
    sut = engine(
        TIMING, max_num_seqs=1, preemption_mode="swap", scheduling_policy="priority",
        priority_preemption=True,
    )  # fmt: skip
    sut.add_request(request("batch", other_prompt(1, 40), reply=9, priority=5))
    sut.step()
    sut.add_request(request("urgent", other_prompt(2, 10), reply=3))

    steps = [sut.step()]
    running = sut.running_ids()
    steps += run(sut)

    assert running == ["urgent"]
    assert (steps[0].swapped_out, steps[3].swapped_in) == (["batch"], ["batch"])
