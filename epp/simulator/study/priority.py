"""
The study `priority`: interactive requests beside a batch load, under each scheduling policy.

Both classes come at random (Poisson) for as long as the study lasts, and together they ask for as
much as the engine can just do: sixteen seats, and a cache for some nine batch requests. Interactive
requests are short and have priority 0; batch requests have long prompts, long replies and priority
10. Whatever still waits at the end is served to its end, so that no latency is missing from the
figures; throughput and the number of finished requests are those of the time in which requests
came.
"""

import dataclasses
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, NamedTuple, get_args

from epp.simulator.engine import PROFILES, ClassLimit, Engine, EngineOptions, EngineRequest
from epp.simulator.study.run import Record, run
from epp.simulator.study.statistics import Spread, mean, percentile, spread

ClassName = Literal["interactive", "batch"]
CLASSES: Sequence[ClassName] = get_args(ClassName)

SECONDS = 180.0
PROFILE = "a100-7b"


class Load(NamedTuple):
    """What one class asks for: requests a second, and the least and most tokens of each."""

    priority: int
    rate: float
    prompt_tokens: tuple[int, int]
    reply_tokens: tuple[int, int]


LOADS: Mapping[ClassName, Load] = {
    "interactive": Load(0, 3.0, (32, 256), (60, 200)),
    "batch": Load(10, 0.9, (800, 2000), (300, 600)),
}

OPTIONS = EngineOptions(
    max_num_seqs=16,
    max_num_batched_tokens=2048,
    num_gpu_blocks=1000,
    num_cpu_blocks=4000,
    prefix_caching=False,  # random prompts share nothing
    ageing_seconds=6.0,  # after a minute, batch is as urgent as what is interactive and new
)

_BATCH_SEATS = 7
_PREEMPTING = {"scheduling_policy": "priority", "priority_preemption": True}
_VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "fcfs": {},
    "priority": {"scheduling_policy": "priority"},
    "priority+preemption": _PREEMPTING,
    "priority+swap": {**_PREEMPTING, "preemption_mode": "swap"},
    "ageing+preemption": {"scheduling_policy": "ageing", "priority_preemption": True},
    "qoe": {"scheduling_policy": "qoe"},
    "qoe+preemption": {"scheduling_policy": "qoe", "priority_preemption": True},
    f"priority+limit {LOADS['batch'].priority}:{_BATCH_SEATS}": {
        "scheduling_policy": "priority",
        "class_limits": (ClassLimit(LOADS["batch"].priority, _BATCH_SEATS),),
    },
}
VARIANTS: Mapping[str, EngineOptions] = {
    name: dataclasses.replace(OPTIONS, **changes) for name, changes in _VARIANTS.items()
}
"""
The engine's options by what a reader calls them; the first is what others are compared to.

`+preemption` may take seats for the more urgent, and what it sends away is computed anew; `+swap`
keeps its blocks in the CPU's memory instead. `+limit` lets so many batch requests run at most.
"""

REFERENCE = next(iter(VARIANTS))


class Trial(NamedTuple):
    """One run to do."""

    variant: str
    seed: int
    seconds: float


Figures = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one run."""

    trial: Trial
    classes: Mapping[ClassName, Figures]
    ttfts: Mapping[ClassName, Sequence[float]]
    swapped_blocks: int


def trials(seeds: int, seconds: float) -> Sequence[Trial]:
    """Return the runs of this many seeds."""
    return [Trial(variant, seed, seconds) for variant in VARIANTS for seed in range(seeds)]


def workload(seed: int, seconds: float) -> Sequence[EngineRequest]:
    """Return the requests of a seed, each class drawn by dice of its own."""
    return [
        request
        for name, load in LOADS.items()
        for request in _requests(name, load, random.Random(f"{name} {seed}"), seconds)
    ]


def _requests(
    name: ClassName, load: Load, dice: random.Random, seconds: float
) -> Iterator[EngineRequest]:
    now = dice.expovariate(load.rate)
    number = 0
    while now < seconds or not number:  # a very short study has one of each
        yield EngineRequest(
            f"{name}-{number}",
            range(dice.randint(*load.prompt_tokens)),
            range(dice.randint(*load.reply_tokens)),
            priority=load.priority,
            arrival=now,
        )
        now += dice.expovariate(load.rate)
        number += 1


def attempt(trial: Trial) -> Outcome:
    """Do one run."""
    engine = Engine(VARIANTS[trial.variant], PROFILES[PROFILE])
    done = run(engine, workload(trial.seed, trial.seconds), token_times=True)
    records = {
        name: [one for one in done.records if one.priority == load.priority]
        for name, load in LOADS.items()
    }
    return Outcome(
        trial,
        {name: measure(some, trial.seconds) for name, some in records.items()},
        {name: [one.ttft for one in some] for name, some in records.items()},
        done.swapped_blocks,
    )


def measure(records: Sequence[Record], seconds: float) -> Figures:
    """Return the figures of one class."""
    ttfts = [one.ttft for one in records]
    gaps = [later - earlier for one in records for earlier, later in pairwise(one.token_times)]
    in_time = sum(time <= seconds for one in records for time in one.token_times)
    return {
        "mean_ttft_seconds": mean(ttfts),
        "p50_ttft_seconds": percentile(ttfts, 50),
        "p99_ttft_seconds": percentile(ttfts, 99),
        "max_ttft_seconds": max(ttfts, default=0.0),
        "mean_itl_ms": mean(gaps) * 1e3,
        "p99_itl_ms": percentile(gaps, 99) * 1e3,
        "max_itl_ms": max(gaps, default=0.0) * 1e3,
        "tokens_per_second": in_time / seconds,
        "requests": len(records),
        "finished": sum(one.last_token <= seconds for one in records),
        "preemptions": sum(one.preemptions for one in records),
        "swap_outs": sum(one.swap_outs for one in records),
        "recomputed_tokens": sum(one.recomputed_tokens for one in records),
    }


@dataclass(frozen=True, slots=True)
class Summary:
    """One variant over all seeds: each figure of each class, and the blocks that were swapped."""

    classes: Mapping[ClassName, Mapping[str, Spread]]
    swapped_blocks: Spread


def summarise(outcomes: Sequence[Outcome]) -> Mapping[str, Summary]:
    """Return the summaries of all variants, in their order."""
    return {
        variant: _summary([one for one in outcomes if one.trial.variant == variant])
        for variant in dict.fromkeys(one.trial.variant for one in outcomes)
    }


def _summary(outcomes: Sequence[Outcome]) -> Summary:
    return Summary(
        {
            name: {
                figure: spread(one.classes[name][figure] for one in outcomes)
                for figure in outcomes[0].classes[name]
            }
            for name in CLASSES
        },
        spread(one.swapped_blocks for one in outcomes),
    )
