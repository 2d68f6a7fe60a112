"""Percentiles and spreads, by the definitions that benchmarks use."""

import pytest

from epp.simulator.study.statistics import Spread, mean, percentile, spread


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [
        pytest.param([3.0, 1.0, 2.0], 50, 2.0, id="the middle of an odd number"),
        pytest.param([4.0, 1.0, 2.0, 3.0], 50, 2.5, id="between two of an even number"),
        pytest.param([0.0, 100.0], 99, 99.0, id="near the top of two"),
        pytest.param([5.0], 99, 5.0, id="of one value"),
        pytest.param([1.0, 2.0], 100, 2.0, id="the most"),
        pytest.param([], 99, 0.0, id="of none"),
    ],
)
def test_percentiles_lie_between_the_values_around_them(
    values: list[float], percent: float, expected: float
):
    assert expected == percentile(values, percent)


def test_a_single_seed_has_no_spread():
    assert Spread(7.0, 0.0) == spread([7.0])


def test_the_spread_is_that_of_a_sample():
    assert Spread(2.0, 1.0) == spread([1.0, 2.0, 3.0])


def test_the_mean_of_none_is_zero():
    assert mean([]) == 0.0
