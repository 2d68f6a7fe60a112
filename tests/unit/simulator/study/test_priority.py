"""What must hold between scheduling policies, whatever the seed."""

from collections.abc import Mapping

import pytest

from epp.simulator.study import priority
from epp.simulator.study.priority import Summary

pytestmark = pytest.mark.timeout(60)  # whichever test comes first pays for all runs

SEEDS = 1
SECONDS = 120.0
LIMITED = next(name for name in priority.VARIANTS if "limit" in name)


@pytest.fixture(scope="module")
def summaries() -> Mapping[str, Summary]:
    return priority.summarise(
        [priority.attempt(trial) for trial in priority.trials(SEEDS, SECONDS)]
    )


def interactive(summaries: Mapping[str, Summary], variant: str, figure: str) -> float:
    return summaries[variant].classes["interactive"][figure].mean


def batch(summaries: Mapping[str, Summary], variant: str, figure: str) -> float:
    return summaries[variant].classes["batch"][figure].mean


@pytest.mark.parametrize("variant", [one for one in priority.VARIANTS if "priority" in one])
def test_interactive_requests_wait_longest_where_priority_counts_for_nothing(
    summaries: Mapping[str, Summary], variant: str
):
    fcfs = interactive(summaries, "fcfs", "p99_ttft_seconds")

    assert interactive(summaries, variant, "p99_ttft_seconds") < fcfs


def test_taking_seats_shortens_the_wait_further(summaries: Mapping[str, Summary]):
    patient = interactive(summaries, "priority", "p99_ttft_seconds")

    for variant in ("priority+preemption", "priority+swap"):
        assert interactive(summaries, variant, "p99_ttft_seconds") < patient


def test_what_is_swapped_is_not_computed_again_and_so_batch_gets_more_done(
    summaries: Mapping[str, Summary],
):
    anew, swapped = "priority+preemption", "priority+swap"

    assert (
        0 == batch(summaries, swapped, "recomputed_tokens") == summaries[anew].swapped_blocks.mean
    )
    assert batch(summaries, anew, "recomputed_tokens") > 0
    assert summaries[swapped].swapped_blocks.mean > 0
    assert batch(summaries, anew, "tokens_per_second") < batch(
        summaries, swapped, "tokens_per_second"
    )


def test_with_ageing_no_batch_request_starves(summaries: Mapping[str, Summary]):
    """Ten levels make up for the difference in priority; behind that comes the common queue."""
    levels = priority.LOADS["batch"].priority - priority.LOADS["interactive"].priority
    even = levels * priority.OPTIONS.ageing_seconds

    longest = batch(summaries, "ageing+preemption", "max_ttft_seconds")

    assert longest < even + interactive(summaries, "ageing+preemption", "max_ttft_seconds") + 5


def test_a_class_limit_keeps_the_pace_of_the_tokens(summaries: Mapping[str, Summary]):
    others = [name for name in summaries if name not in {LIMITED, "priority+swap"}]

    limited = interactive(summaries, LIMITED, "p99_itl_ms")

    assert limited < min(interactive(summaries, name, "p99_itl_ms") for name in others)
    assert batch(summaries, LIMITED, "max_itl_ms") < 500


def test_every_request_of_a_load_is_in_the_figures():
    load = priority.workload(0, 20.0)

    outcome = priority.attempt(priority.Trial("fcfs", 0, 20.0))

    counted = sum(figures["requests"] for figures in outcome.classes.values())

    assert len(load) == counted
    assert all(one.arrival < 20.0 for one in load)
    assert {0, 10} == {one.priority for one in load}


def test_the_shortest_study_has_a_request_of_each_class():
    names = [one.id for one in priority.workload(0, 0.001)]

    assert names == ["interactive-0", "batch-0"]
