import pytest

from epp.simulator.timing import AdapterSlots, StepTiming


@pytest.mark.parametrize(
    ("tokens", "sequences", "lora_loads", "seconds"),
    [
        pytest.param(0, 0, 0, 1.0, id="an empty step takes the base"),
        pytest.param(3, 0, 0, 31.0, id="tokens"),
        pytest.param(0, 2, 0, 201.0, id="sequences"),
        pytest.param(0, 0, 1, 1001.0, id="a load"),
        pytest.param(3, 2, 1, 1231.0, id="all of them add up"),
    ],
)
def test_a_step_takes_the_sum_of_its_parts(
    tokens: int, sequences: int, lora_loads: int, seconds: float
):
    timing = StepTiming(
        base_seconds=1, token_seconds=10, sequence_seconds=100, lora_load_seconds=1000
    )

    assert timing.duration(tokens=tokens, sequences=sequences, lora_loads=lora_loads) == seconds


def test_the_adapter_that_was_unused_for_longest_gives_up_its_slot():
    slots = AdapterSlots(2)

    loads = [slots.activate(adapters) for adapters in (["a", "b"], ["a"], ["c"], ["a"], ["b"])]

    assert loads == [2, 0, 1, 0, 1]
