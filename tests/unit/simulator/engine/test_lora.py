"""Adapters in a step: the rule that vLLM had, and the one that it has."""

import pytest

from epp.simulator.engine import StepTiming
from support.engines import engine, other_prompt, request, run, scheduled

WORKED_EXAMPLE = (
    None, None, None, "L1", "L3", "L2", "L4", "L5", "L5", "L5", "L5", "L1", "L2", "L3", "L4", None,
)  # fmt: skip
"""The adapters of R1 to R16 in the description of the change to vLLM's scheduler (its PR 15422)."""


@pytest.mark.parametrize(
    ("lora_waiting", "first_step"),
    [
        ("skip", [*range(1, 8), *range(12, 17)]),
        ("stop", [*range(1, 8)]),
    ],
)
def test_the_worked_example_of_the_change(lora_waiting: str, first_step: list[int]):
    sut = engine(
        max_num_seqs=256, max_num_batched_tokens=2048, max_loras=4, lora_waiting=lora_waiting
    )
    for number, adapter in enumerate(WORKED_EXAMPLE, 1):
        sut.add_request(request(f"R{number}", other_prompt(number, 20), adapter=adapter))

    step = sut.step()

    assert list(step.scheduled) == [f"R{number}" for number in first_step]


def test_a_request_whose_adapter_is_one_too_many_is_passed_over_and_keeps_its_place():
    sut = engine(max_num_seqs=8)
    for name, adapter, reply in (
        ("a", "x", 2), ("b", "y", 4), ("c", "z", 2), ("d", "x", 2), ("e", None, 2), ("f", "w", 2),
    ):  # fmt: skip
        sut.add_request(request(name, adapter=adapter, reply=reply))

    steps = [sut.step()]
    load, deferred = sut.load, sut.deferred_ids()
    steps += run(sut)

    assert [list(step.scheduled) for step in steps[:3]] == [
        ["a", "b", "d", "e"],
        ["a", "b", "d", "e"],
        ["b", "c"],
    ]
    assert load[:3] == (4, 2, 2)
    assert deferred == ["c", "f"]
    assert sut.load.deferred == 0


def test_an_adapter_is_loaded_once_while_it_keeps_its_slot():
    sut = engine()
    timing = StepTiming()
    sut.add_request(request("a", adapter="x", reply=2))

    steps = run(sut)

    assert [step.duration for step in steps] == [
        timing.duration(tokens=10, sequences=1, lora_loads=1),
        timing.duration(tokens=1, sequences=1, lora_loads=0),
    ]
    assert [step.lora_loads for step in steps] == [1, 0]


def test_an_unloaded_adapter_is_loaded_anew():
    sut = engine()
    sut.add_request(request("a", adapter="x", reply=1))
    run(sut)

    sut.forget_adapter("x")
    sut.add_request(request("b", adapter="x", reply=1))

    assert [step.lora_loads for step in run(sut)] == [1]
    assert sut.resident_adapters == (("x",), ("x",))


def test_base_requests_never_count_as_an_adapter():
    sut = engine(max_loras=1, max_num_seqs=8)
    for name, adapter in (("a", None), ("b", "x"), ("c", None)):
        sut.add_request(request(name, adapter=adapter))

    assert scheduled([sut.step()]) == [{"a": 10, "b": 10, "c": 10}]
