"""How several rounds and many latencies become one figure."""

from collections import Counter

import pytest

from benchmarks import through_envoy
from benchmarks.report import Cost, Latency, ScenarioResult
from benchmarks.through_envoy import Tally


def test_the_median_of_each_figure_counts() -> None:
    rounds = [
        Cost(100, 90.0, 300.0, 170.0, 1.8),
        Cost(200, 80.0, 900.0, 150.0, 6.0),
        Cost(300, 10.0, 310.0, 160.0, 1.9),
    ]

    assert through_envoy.median(rounds) == Cost(600, 80.0, 310.0, 160.0, 1.9)


def test_a_slow_round_of_both_does_not_change_the_multiple_of_the_floor() -> None:
    picker = [Cost(1, 1.0, own, 1.0, own) for own in (200.0, 800.0, 210.0)]
    floor = [Cost(1, 1.0, own, 1.0, own) for own in (100.0, 400.0, 100.0)]

    assert through_envoy.relation(picker, floor) == 2.0


def test_added_latency_is_a_difference_of_quantiles() -> None:
    direct = [0.001] * 198 + [0.002] * 2
    through = [0.003] * 190 + [0.009] * 10

    added = through_envoy.added_latency(direct, through)
    assert added == Latency(200, pytest.approx(2000.0), pytest.approx(8000.0, abs=100.0))


def test_few_samples_have_no_slowest_hundredth() -> None:
    added = through_envoy.added_latency([0.001] * 99, [0.002] * 500)

    assert added == Latency(500, pytest.approx(1000.0), None)


def test_what_was_not_measured_is_missing_in_the_result() -> None:
    cost = Cost(100, 90.0, 300.0, 150.0, 2.0)

    assert through_envoy.result("a name", Tally([cost])) == ScenarioResult(
        "a name", cost, None, None, None, None, None
    )


def test_samples_become_shares_of_the_cost() -> None:
    cost = Cost(100, 90.0, 300.0, 150.0, 2.0)
    samples = Counter({"metrics": 1, "scorers": 3})

    stages = through_envoy.result("a name", Tally([cost], samples=samples)).stages_us
    assert stages == {"metrics": 75.0, "scorers": 225.0}
