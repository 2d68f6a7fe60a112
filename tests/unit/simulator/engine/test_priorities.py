"""Who goes first, who gives way, and what time does to it."""

import pytest

from epp.simulator.engine import ClassLimit, Engine, StepTiming
from support.engines import check, engine, other_prompt, replies, request, run

TICK = StepTiming(base_seconds=1, token_seconds=0, sequence_seconds=0, lora_load_seconds=0)
"""Each step takes one second."""


def test_the_lower_value_is_admitted_first():
    sut = engine(max_num_seqs=1, scheduling_policy="priority")
    for name, priority in (("a", 5), ("b", -5), ("c", 0)):
        sut.add_request(request(name, reply=1, priority=priority))

    admitted = [one.request_id for step in run(sut) for one in step.admitted]

    assert admitted == ["b", "c", "a"]


def test_fcfs_ignores_priorities():
    sut = engine(max_num_seqs=1)
    for name, priority in (("a", 5), ("b", -5)):
        sut.add_request(request(name, reply=1, priority=priority))

    admitted = [one.request_id for step in run(sut) for one in step.admitted]

    assert admitted == ["a", "b"]


def test_where_blocks_run_out_the_least_urgent_gives_way_the_later_of_equals():
    sut = engine(num_gpu_blocks=10, scheduling_policy="priority")
    for at, (name, priority) in enumerate((("a", 5), ("b", 5), ("c", 0))):
        sut.add_request(
            request(name, other_prompt(at, 40), reply=20, priority=priority, arrival=at)
        )

    preempted = [name for step in run(sut) for name in step.preempted]

    assert preempted[0] == "b"


@pytest.mark.parametrize(
    ("preemption", "running"),
    [
        pytest.param(False, ["a", "b"], id="vLLM's rule: it waits for a seat"),
        pytest.param(True, ["a", "urgent"], id="it takes the least urgent one's"),
    ],
)
def test_an_urgent_request_and_full_seats(preemption: bool, running: list[str]):
    sut = engine(max_num_seqs=2, scheduling_policy="priority", priority_preemption=preemption)
    for at, (name, priority) in enumerate((("a", 5), ("b", 6))):
        sut.add_request(request(name, other_prompt(at, 10), priority=priority))
    sut.step()

    sut.add_request(request("urgent", other_prompt(9, 10), priority=0))
    sut.step()

    assert sut.running_ids() == running


def test_an_urgent_request_takes_blocks_too():
    sut = engine(
        num_gpu_blocks=8, scheduling_policy="priority", priority_preemption=True, max_num_seqs=3
    )
    for at, name in enumerate("ab"):
        sut.add_request(request(name, other_prompt(at, 40), priority=5, reply=9, arrival=at))
    sut.step()
    sut.step()

    sut.add_request(request("urgent", other_prompt(9, 40), priority=0))
    step = sut.step()

    assert step.preempted == ["b"]
    assert sut.running_ids() == ["a", "urgent"]


def test_nobody_is_sent_away_where_that_would_not_be_enough():
    sut = engine(
        num_gpu_blocks=16, scheduling_policy="priority", priority_preemption=True, max_num_seqs=3
    )
    sut.add_request(request("vip", other_prompt(1, 60), priority=-1, reply=9))
    sut.add_request(request("b", other_prompt(2, 20), priority=5, reply=9))
    for _ in range(3):
        sut.step()

    sut.add_request(request("big", other_prompt(9, 200), priority=0))
    step = sut.step()

    assert step.preempted == []


def test_nobody_is_sent_away_for_a_request_that_its_adapter_holds_back():
    sut = engine(
        max_num_seqs=2, max_loras=1, scheduling_policy="priority", priority_preemption=True
    )
    sut.add_request(request("a", other_prompt(1, 10), priority=5, adapter="x", reply=9))
    sut.add_request(request("b", other_prompt(2, 10), priority=6, adapter="x", reply=9))
    sut.step()

    sut.add_request(request("urgent", other_prompt(9, 10), priority=0, adapter="y"))

    assert sut.step().preempted == []


def test_equals_do_not_take_each_others_seats():
    sut = engine(max_num_seqs=1, scheduling_policy="priority", priority_preemption=True)
    sut.add_request(request("a", arrival=5, reply=9))
    sut.step()
    sut.add_request(request("b", other_prompt(2, 9), arrival=1))

    assert sut.step().preempted == []


def test_a_waiting_requests_priority_can_be_changed():
    sut = engine(max_num_seqs=1, scheduling_policy="priority")
    for name in "abc":
        sut.add_request(request(name, reply=1))

    changed = sut.set_priority("c", -1)

    assert changed
    assert sut.waiting_ids() == ["c", "a", "b"]


def test_a_running_requests_priority_can_be_changed():
    sut = engine(num_gpu_blocks=8, scheduling_policy="priority")
    for at, name in enumerate("ab"):
        sut.add_request(request(name, other_prompt(at, 40), reply=20, arrival=at))
    sut.step()
    sut.step()

    sut.set_priority("a", 7)

    assert next(name for step in run(sut) for name in step.preempted) == "a"


def test_there_is_nothing_to_change_of_a_request_that_is_not_there():
    assert not engine().set_priority("nobody", 1)


@pytest.mark.parametrize(
    ("policy", "served"),
    [pytest.param("priority", False, id="it starves"), pytest.param("ageing", True, id="it ages")],
)
def test_a_low_priority_beside_a_stream_of_urgent_requests(policy: str, served: bool):
    sut = engine(TICK, max_num_seqs=1, scheduling_policy=policy, ageing_seconds=10)
    sut.add_request(request("low", reply=1, priority=5))
    said = set()
    for now in range(200):
        sut.add_request(request(f"urgent{now}", other_prompt(now, 4), reply=1, arrival=now))
        said |= {one.request_id for one in sut.step(now).emitted}

    assert ("low" in said) == served


@pytest.mark.parametrize(
    ("age", "preempted"), [pytest.param(49, ["low"], id="young"), pytest.param(51, [], id="old")]
)
def test_age_makes_up_for_priority_at_a_level_every_so_often(age: int, preempted: list[str]):
    sut = engine(
        TICK, max_num_seqs=1, scheduling_policy="ageing", ageing_seconds=10,
        priority_preemption=True,
    )  # fmt: skip
    sut.add_request(request("low", other_prompt(1, 10), reply=90, priority=5))
    sut.step(age - 1)
    sut.add_request(request("urgent", other_prompt(2, 10), reply=9, arrival=age))

    assert sut.step(age).preempted == preempted


def test_two_requests_do_not_take_each_others_seat_in_turn():
    sut = engine(
        TICK, max_num_seqs=1, scheduling_policy="ageing", ageing_seconds=1,
        priority_preemption=True,
    )  # fmt: skip
    for at, name in enumerate("ab"):
        sut.add_request(request(name, other_prompt(at, 10), reply=90, arrival=at))

    assert [name for step in run(sut) for name in step.preempted] == []


def test_the_stream_that_is_furthest_behind_gains():
    sut = engine(
        TICK, max_num_seqs=2, scheduling_policy="qoe", qoe_pace=1, qoe_first_token_seconds=5,
        priority_preemption=True,
    )  # fmt: skip
    sut.add_request(request("ahead", other_prompt(1, 10), reply=90))
    sut.add_request(request("late", other_prompt(2, 10), reply=90, arrival=-20))
    for now in range(10):
        sut.step(now)
    sut.add_request(request("new", other_prompt(3, 10), reply=9, arrival=0))

    step = sut.step(12)

    assert step.preempted == ["ahead"]
    assert sut.running_ids() == ["late", "new"]


def test_a_class_limit_keeps_batch_work_to_its_share():
    sut = engine(max_num_seqs=4, scheduling_policy="priority", class_limits=(ClassLimit(10, 2),))
    for at in range(4):
        sut.add_request(request(f"batch{at}", other_prompt(at, 5), priority=10 + at, reply=9))
    sut.step()
    capped = sut.running_ids(), sut.load.deferred
    sut.add_request(request("interactive", other_prompt(9, 5)))
    sut.step()

    assert capped == (["batch0", "batch1"], 2)
    assert sut.running_ids() == ["batch0", "batch1", "interactive"]
    assert len(replies(run(sut))) == 5


def test_the_engine_is_sound_with_everything_switched_on():
    sut = engine(
        TICK, num_gpu_blocks=12, scheduling_policy="ageing", priority_preemption=True,
        preemption_mode="swap", num_cpu_blocks=6, class_limits=(ClassLimit(3, 1),),
    )  # fmt: skip
    for at in range(12):
        sut.add_request(
            request(
                str(at), other_prompt(at, 30 + at), reply=30, priority=at % 5,
                adapter="xyz"[at % 3], arrival=at / 2,
            )
        )  # fmt: skip
    now = 0.0
    while sut.has_work:
        now += sut.step(now).duration
        check(sut)

    assert not sut.load.running


def test_a_swapped_request_does_not_wait_for_one_that_its_own_class_holds_back():
    """Each would wait for the other."""
    sut = engine(
        TICK, num_gpu_blocks=7, scheduling_policy="ageing", priority_preemption=True,
        preemption_mode="swap", class_limits=(ClassLimit(3, 1),),
    )  # fmt: skip
    sut.add_request(request("old", other_prompt(1, 40), reply=20, priority=3, arrival=-100))
    sut.step()
    sut.add_request(request("urgent", other_prompt(2, 40), reply=20, priority=-20, arrival=-99))
    sut.step()
    sut.add_request(request("older", other_prompt(3, 40), reply=20, priority=3, arrival=-900))

    said = replies(run(sut, 2))

    assert set(said) >= {"old", "older"}


def test_under_qoe_a_request_loses_its_seat_once_at_most():
    """Else streams that all fall behind would take turns, and none would get on."""
    sut = engine(
        TICK, max_num_seqs=1, scheduling_policy="qoe", qoe_pace=0.5, qoe_first_token_seconds=5,
        priority_preemption=True,
    )  # fmt: skip
    for at in range(6):
        sut.add_request(request(str(at), other_prompt(at, 10), reply=60, arrival=0))

    preempted = [name for step in run(sut) for name in step.preempted]

    assert preempted
    assert len(preempted) == len(set(preempted))


def preempting(**options: object) -> Engine:
    return engine(TICK, scheduling_policy="priority", priority_preemption=True, **options)


def test_nobody_is_sent_away_for_one_that_stands_behind_a_request_without_an_adapter_slot():
    sut = preempting(max_num_seqs=2, max_loras=1, lora_waiting="stop")
    sut.add_request(request("a", other_prompt(1, 10), priority=0, adapter="x", reply=9))
    sut.add_request(request("batch", other_prompt(2, 10), priority=9, reply=9))
    sut.step()
    sut.add_request(request("stopped", other_prompt(3, 10), priority=1, adapter="y"))
    sut.add_request(request("behind", other_prompt(4, 10), priority=2))

    assert sut.step().preempted == []


def test_of_two_urgent_requests_with_new_adapters_one_slot_makes_way_for_one():
    sut = preempting(max_num_seqs=2, max_loras=1)
    for at in range(2):
        sut.add_request(request(f"batch{at}", other_prompt(at, 10), priority=9, reply=9))
    sut.step()
    for at, adapter in enumerate("xy"):
        sut.add_request(request(f"urgent{at}", other_prompt(5 + at, 10), adapter=adapter))

    step = sut.step()

    assert len(step.preempted) == 1
    assert not set(step.preempted) & set(step.scheduled)


def test_nobody_is_sent_away_for_one_that_no_tokens_are_left_for():
    sut = preempting(max_num_seqs=3, max_num_batched_tokens=16)
    for at in range(3):
        sut.add_request(request(f"batch{at}", other_prompt(at, 4), priority=9, reply=30))
    sut.step()
    for at in range(3):
        sut.add_request(request(f"urgent{at}", other_prompt(5 + at, 64)))

    step = sut.step()

    assert len(step.preempted) == 1
    assert len(sut.running_ids()) == 3


def test_equals_under_ageing_do_not_take_turns_by_rounding():
    sut = engine(
        TICK, max_num_seqs=1, scheduling_policy="ageing", ageing_seconds=0.3,
        priority_preemption=True,
    )  # fmt: skip
    sut.add_request(request("a", other_prompt(1, 10), reply=90, priority=4, arrival=0.0))
    sut.add_request(request("b", other_prompt(2, 10), reply=90, priority=0, arrival=4 * 0.3))

    assert sum(len(step.preempted) for step in run(sut)) <= 1


def test_without_the_strict_order_too_a_step_has_no_more_adapters_than_slots():
    sut = engine(
        TICK, num_gpu_blocks=7, max_loras=1, scheduling_policy="priority", strict_order=False
    )
    sut.add_request(request("least", other_prompt(1, 40), reply=20, priority=9, arrival=0))
    sut.add_request(
        request("held", other_prompt(2, 40), reply=20, priority=0, adapter="x", arrival=1)
    )
    sut.add_request(request("new", other_prompt(3, 4), reply=3, adapter="y", arrival=2))
    adapters = {"held": "x", "new": "y"}

    for step in run(sut):
        active = {adapters[name] for name in step.scheduled if name in adapters}
        assert len(active) <= 1
