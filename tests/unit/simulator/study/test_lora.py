"""The published benchmark of vLLM's LoRA scheduling, run again on a few seeds."""

import random
from collections.abc import Sequence

import pytest

from epp.simulator.study import lora
from epp.simulator.study.lora import Outcome

pytestmark = pytest.mark.timeout(60)  # whichever test comes first pays for all runs

SEEDS = 12


@pytest.fixture(scope="module")
def outcomes() -> Sequence[Outcome]:
    return [lora.attempt(trial) for trial in lora.trials(SEEDS)]


@pytest.mark.parametrize(
    ("rule", "figure"),
    [
        ("stop", "requests_per_second"),
        ("stop", "mean_ttft_ms"),
        ("stop", "p99_ttft_ms"),
        ("stop", "mean_tpot_ms"),
        ("skip", "requests_per_second"),
        ("skip", "mean_ttft_ms"),
        ("skip", "p99_ttft_ms"),
    ],
)
def test_the_published_figures_come_out_within_a_tenth(
    outcomes: Sequence[Outcome], rule: str, figure: str
):
    [comparison] = [
        one for one in lora.compare(outcomes) if (one.rule, one.figure) == (rule, figure)
    ]

    assert comparison.published == pytest.approx(comparison.simulated.mean, rel=0.1)
    assert not comparison.outside
    assert not comparison.bimodal


def test_passing_over_serves_about_seven_times_as_many_requests(outcomes: Sequence[Outcome]):
    assert 6.0 < lora.gap(outcomes).mean < 7.5


def test_the_published_median_is_that_of_draws_whose_first_wave_exceeds_the_seats(
    outcomes: Sequence[Outcome],
):
    fits, exceeds = (
        [one.figures["median_ttft_ms"] for one in some] for some in lora.by_wave(outcomes).values()
    )

    assert pytest.approx(sum(exceeds) / len(exceeds), rel=0.1) == 6_406
    assert max(exceeds) < sum(fits) / len(fits)


def test_adapters_are_loaded_once_each_where_nobody_holds_up_the_others(
    outcomes: Sequence[Outcome],
):
    loads = {one.lora_loads for one in outcomes if one.trial.rule == "skip"}

    assert {lora.NUM_ADAPTERS} == loads


@pytest.mark.parametrize("seed", range(5))
def test_prompts_add_up_exactly_and_keep_their_bounds(seed: int):
    lengths = lora.prompt_lengths(random.Random(seed))

    assert (len(lengths), sum(lengths)) == (lora.NUM_PROMPTS, lora.INPUT_TOKENS)
    assert min(lengths) >= lora.SHORTEST_PROMPT
    assert max(lengths) <= lora.LONGEST_PROMPT


def test_a_seed_says_all_about_its_load():
    assert lora.workload(3) == lora.workload(3)
    assert lora.workload(3) != lora.workload(4)
