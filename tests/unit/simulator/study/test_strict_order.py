"""The starvation that the strict order of admission prevents."""

import pytest

from epp.simulator.study import strict_order
from epp.simulator.study.strict_order import Trial


def absence(rate: float, *, strict: bool) -> float:
    return strict_order.attempt(Trial(rate, strict, 0)).absence


@pytest.mark.parametrize("rate", strict_order.RATES)
def test_the_order_keeps_the_time_outside_what_it_is_without_newcomers(rate: float):
    alone = absence(0.0, strict=True)

    assert alone == pytest.approx(absence(rate, strict=True), rel=0.05)


def test_without_the_order_many_newcomers_keep_the_swapped_one_outside_as_long_as_they_come():
    longest = absence(max(strict_order.RATES), strict=False)

    assert longest > 0.8 * strict_order.SECONDS


def test_the_order_has_its_price_for_newcomers():
    with_order, without = (
        strict_order.attempt(Trial(8.0, strict, 0)).newcomers_p99_ttft for strict in (True, False)
    )

    assert without < with_order


def test_absences_are_laid_side_by_side_by_rate():
    trials = [one for one in strict_order.trials(2) if one.rate <= 2]

    absences = strict_order.summarise([strict_order.attempt(one) for one in trials])

    assert [one.rate for one in absences] == [0.0, 2.0]
    assert absences[0].strict == absences[0].loose
    assert absences[1].strict.mean < absences[1].loose.mean
