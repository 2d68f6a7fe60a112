"""Many steps at once are what they are one by one."""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.simulator.engine import (
    PROFILES,
    Adapter,
    ClassLimit,
    Engine,
    EngineOptions,
    EngineRequest,
)
from support.engines import OPTIONS, check, engine, other_prompt, request

Meanwhile = Callable[[Engine, float], object]


class Arrival(NamedTuple):
    """A request that comes, and what else happens just before it does."""

    at: float
    request: EngineRequest
    meanwhile: Meanwhile


def history(sut: Engine, arrivals: list[Arrival], *, fast: bool) -> list[object]:
    """Return all that an engine says and does, step by step, however it takes them."""
    seen: list[object] = []
    due = list(reversed(arrivals))
    now = 0.0
    while sut.has_work or due:
        if not sut.has_work:
            now = max(now, due[-1].at)
        while due and due[-1].at <= now:
            arrival = due.pop()
            arrival.meanwhile(sut, now)
            sut.add_request(arrival.request)
        until = due[-1].at if due else float("inf")
        stretch = sut.fast_forward(now, until) if fast else None
        if stretch is not None:
            for at, duration in enumerate(stretch.durations):
                said = [(name, tokens[at], None) for name, tokens in stretch.tokens.items()]
                events = [event for step, event in stretch.events if step == at]
                seen.append((now, duration, said, events))
                now += duration
            check(sut)
            seen.append((sut.resident_adapters, sut.waiting_ids(), sut.load))
            continue
        step = sut.step(now)
        said = [tuple(one) for one in step.emitted]
        seen.append((now, step.duration, said, list(step.events)))
        now += step.duration
        seen.append((sut.resident_adapters, sut.waiting_ids(), sut.load))
    return seen


def _reprioritise(sut: Engine, now: float) -> None:
    for name in (*sut.running_ids()[:1], *sut.waiting_ids()[-1:]):
        sut.set_priority(name, 1, now)


MEANWHILE: dict[str, Meanwhile] = {
    "nothing": lambda _sut, _now: None,
    "abort": lambda sut, _: [sut.abort(name) for name in sut.running_ids()[-1:]],
    "unload": lambda sut, _: sut.forget_adapter("x"),
    "priority": _reprioritise,
}

arrivals = st.lists(
    st.tuples(
        st.sampled_from([0.0, 0.0, 0.1, 1.0]),  # seconds after the one before
        st.integers(0, 2),  # which prompt
        st.integers(1, 100),  # its length
        st.integers(1, 90),  # the reply's length
        st.sampled_from([None, "x", "y", "z"]),
        st.integers(0, 2),  # the priority
        st.sampled_from(["nothing", "nothing", *MEANWHILE]),
    ),
    min_size=1,
    max_size=12,
)
options = st.builds(
    lambda **given: replace(OPTIONS, kv_events=True, **given),
    num_gpu_blocks=st.integers(14, 40),
    max_num_seqs=st.integers(1, 5),
    max_num_batched_tokens=st.sampled_from([3, 64]),
    max_loras=st.integers(1, 2),
    lora_waiting=st.sampled_from(["skip", "stop"]),
    scheduling_policy=st.sampled_from(["fcfs", "priority", "ageing", "qoe"]),
    priority_preemption=st.booleans(),
    preemption_mode=st.sampled_from(["recompute", "swap"]),
    strict_order=st.booleans(),
    class_limits=st.sampled_from([(), (ClassLimit(1, 1),)]),
    prefix_caching=st.booleans(),
)


@given(arrivals, options, st.sampled_from(["a100-7b", "a100-7b-context"]))
def test_a_stretch_is_what_its_steps_are(
    arrivals: list[tuple[float, int, int, int, str | None, int, str]],
    options: EngineOptions,
    profile: str,
):
    due = []
    now = 0.0
    for number, (gap, prompt, length, reply, adapter, priority, meanwhile) in enumerate(arrivals):
        now += gap
        request = EngineRequest(
            str(number),
            other_prompt(prompt, length),
            range(1000, 1000 + reply),
            adapter and Adapter(adapter),
            priority=priority,
            arrival=now,
        )
        due.append(Arrival(now, request, MEANWHILE[meanwhile]))

    one_by_one = history(Engine(options, PROFILES[profile]), due, fast=False)
    at_once = history(Engine(options, PROFILES[profile]), due, fast=True)

    assert steps_of(one_by_one) == steps_of(at_once)
    assert states_after(at_once, one_by_one)


def steps_of(history: list[object]) -> list[object]:
    """Return the steps alone."""
    return [one for one in history if len(one) == 4]


def states_after(at_once: list[object], one_by_one: list[object]) -> bool:
    """Whether each state that a stretch left is the one after the same step."""
    states = {}
    count = 0
    for one in one_by_one:
        if len(one) == 4:
            count += 1
        else:
            states[count] = one
    count = 0
    for one in at_once:
        if len(one) == 4:
            count += 1
        elif states[count] != one:
            return False
    return True


def test_most_of_a_long_reply_is_one_stretch():
    sut = engine()
    sut.add_request(request("a", reply=200))
    sut.step()

    stretch = sut.fast_forward(0, float("inf"))

    assert stretch is not None
    assert len(stretch.durations) == 198
    assert list(stretch.tokens["a"]) == list(range(1001, 1199))


def test_a_stretch_ends_with_the_step_during_which_somebody_arrives():
    sut = engine()
    sut.add_request(request("a", reply=200))
    step = sut.step()

    stretch = sut.fast_forward(0, 3.5 * step.duration)

    assert stretch is not None
    assert sum(stretch.durations[:-1]) < 3.5 * step.duration <= sum(stretch.durations)


@pytest.mark.parametrize("waiting", ["a seat", "an adapter's slot"])
def test_there_is_no_stretch_while_somebody_might_come_in(waiting: str):
    sut = engine(max_num_seqs=2)
    sut.add_request(request("a", reply=50, adapter="x"))
    sut.add_request(request("b", other_prompt(2, 9), reply=50, adapter="y"))
    sut.step()
    sut.add_request(request("c", other_prompt(3, 9), adapter="z" if waiting != "a seat" else None))
    full = sut.fast_forward(0, float("inf"))
    sut.abort("b")

    assert full is not None
    assert sut.fast_forward(0, float("inf")) is None


def test_an_idle_engine_has_no_stretch():
    assert engine().fast_forward(0, float("inf")) is None


def test_a_step_that_loads_an_adapter_is_no_part_of_a_stretch():
    sut = engine()
    sut.add_request(request("a", reply=50, adapter="x"))
    sut.step()

    sut.forget_adapter("x")

    assert sut.fast_forward(0, float("inf")) is None
    assert sut.step().lora_loads == 1
    assert sut.fast_forward(0, float("inf")) is not None
