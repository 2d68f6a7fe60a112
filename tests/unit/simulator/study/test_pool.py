"""Runs on several processes."""

from epp.simulator.study import lora
from epp.simulator.study.pool import map_runs


def test_outcomes_do_not_depend_on_the_number_of_processes():
    alone = map_runs(lora.attempt, lora.trials(1), processes=1)

    shared = map_runs(lora.attempt, lora.trials(1), processes=2)

    assert alone == shared


def test_no_runs_need_no_process():
    assert map_runs(lora.attempt, [], processes=4) == []
