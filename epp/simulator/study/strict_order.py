"""
What the strict order of admission prevents: a swapped-out request that newcomers keep outside.

Two long requests grow until the cache is too small for both, and the later one goes to the CPU's
memory. When the other has ended there is room for it, unless small newcomers, who need few blocks
each, have taken them. With the strict order nobody new comes in while somebody is outside; without
it newcomers do, and the more of them a second, the longer the long request stays out. The order
has its price, and that is measured too: how long newcomers wait meanwhile.
"""

import dataclasses
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from epp.simulator.engine import PROFILES, Engine, EngineOptions, EngineRequest
from epp.simulator.study.run import run
from epp.simulator.study.statistics import Spread, percentile, spread

RATES = (0.0, 2.0, 4.0, 6.0, 8.0, 10.0)
SECONDS = 120.0
"""How long newcomers keep coming."""
PROFILE = "a100-7b"

LONG_PROMPT, LONG_REPLY = 512, 1000
SHORT_PROMPT, SHORT_REPLY = 64, 100

OPTIONS = EngineOptions(
    max_num_seqs=64,  # never short
    num_gpu_blocks=150,
    num_cpu_blocks=600,
    prefix_caching=False,
    preemption_mode="swap",
)


class Trial(NamedTuple):
    """One run to do: newcomers a second, and whether the order is strict."""

    rate: float
    strict: bool
    seed: int


class Outcome(NamedTuple):
    """What came of one run."""

    trial: Trial
    absence: float
    """How many seconds the long request that was swapped out stayed outside."""
    newcomers_p99_ttft: float


def trials(seeds: int) -> Sequence[Trial]:
    """Return the runs of this many seeds."""
    return [
        Trial(rate, strict, seed)
        for rate in RATES
        for strict in (True, False)
        for seed in range(seeds)
    ]


def workload(trial: Trial) -> Sequence[EngineRequest]:
    """Return the two long requests and the newcomers of a seed."""
    requests = [
        EngineRequest(f"long-{number}", range(LONG_PROMPT), range(LONG_REPLY))
        for number in range(2)
    ]
    if trial.rate:
        dice = random.Random(trial.seed)
        now = dice.expovariate(trial.rate)
        while now < SECONDS:
            requests.append(
                EngineRequest(
                    f"newcomer-{len(requests)}",
                    range(SHORT_PROMPT),
                    range(SHORT_REPLY),
                    arrival=now,
                )
            )
            now += dice.expovariate(trial.rate)
    return requests


def attempt(trial: Trial) -> Outcome:
    """Do one run."""
    engine = Engine(dataclasses.replace(OPTIONS, strict_order=trial.strict), PROFILES[PROFILE])
    records = run(engine, workload(trial)).records
    long, newcomers = records[:2], records[2:]
    return Outcome(
        trial,
        max(one.swapped_seconds for one in long),
        percentile([one.ttft for one in newcomers], 99),
    )


@dataclass(frozen=True, slots=True)
class Absence:
    """One rate of newcomers, with the strict order and without it; in seconds."""

    rate: float
    strict: Spread
    loose: Spread
    strict_newcomers_p99_ttft: Spread
    loose_newcomers_p99_ttft: Spread


def summarise(outcomes: Sequence[Outcome]) -> Sequence[Absence]:
    """Return how long the swapped one was outside, by rate."""
    absences = []
    for rate in dict.fromkeys(one.trial.rate for one in outcomes):
        strict = [one for one in outcomes if one.trial.rate == rate and one.trial.strict]
        loose = [one for one in outcomes if one.trial.rate == rate and not one.trial.strict]
        absences.append(
            Absence(
                rate,
                spread(one.absence for one in strict),
                spread(one.absence for one in loose),
                spread(one.newcomers_p99_ttft for one in strict),
                spread(one.newcomers_p99_ttft for one in loose),
            )
        )
    return absences
