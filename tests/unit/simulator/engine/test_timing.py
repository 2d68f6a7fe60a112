import pytest

from epp.simulator.engine.timing import PROFILES, StepTiming


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


@pytest.mark.parametrize(
    ("part", "seconds"),
    [("context_tokens", 3e4), ("lora_fetches", 6e5), ("swapped_blocks", 9e6)],
)
def test_what_is_read_fetched_or_moved_takes_time_too(part: str, seconds: float):
    timing = StepTiming(
        base_seconds=0, context_token_seconds=1e4, lora_fetch_seconds=2e5, swap_block_seconds=3e6
    )

    assert timing.duration(tokens=0, sequences=0, **{part: 3}) == seconds


def test_the_instant_profile_takes_no_time_at_all():
    duration = PROFILES["instant"].duration(
        tokens=9, sequences=9, context_tokens=9, lora_loads=9, lora_fetches=9, swapped_blocks=9
    )

    assert duration == 0
