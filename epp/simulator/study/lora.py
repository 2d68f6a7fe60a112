"""
The study `lora`: a published benchmark of vLLM with more adapters than slots, run again.

The benchmark is that of vLLM's change to how waiting requests are passed over (pull request 15422):
500 prompts at once to Llama-2-7b, each for one of eight adapters at random, of which four fit into
a step. Before the change (`stop`) the first waiting request whose adapter had no slot held up all
behind it; since the change (`skip`) it is passed over.

What was not published is made up here, once for all seeds: how long the prompts are (lognormal;
only their sum is known), and that prompts reach the scheduler one after the other, as a server
reads them. The time model is the profile `a100-7b`, which was fitted to these published runs.
"""

import dataclasses
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from epp.simulator.engine import PROFILES, Adapter, Engine, EngineOptions, EngineRequest
from epp.simulator.engine.options import LoraWaiting
from epp.simulator.study.run import Record, run
from epp.simulator.study.statistics import Spread, mean, percentile, spread

NUM_PROMPTS = 500
INPUT_TOKENS = 124_520
OUTPUT_TOKENS = 120
NUM_ADAPTERS = 8
PROFILE = "a100-7b"
RULES: Sequence[LoraWaiting] = ("stop", "skip")
TOLERANCE = 0.1

SHORTEST_PROMPT, LONGEST_PROMPT = 4, 1024
"""What the benchmark takes of ShareGPT's conversations."""
SIGMA = 1.2
"""The spread of the prompts' lengths: their median is about half their mean, as in ShareGPT."""

FIRST_INGEST_SECONDS = 0.05
INGEST_SECONDS = 0.0005
"""When the first prompt reaches the scheduler, and how long after it each further one."""

OPTIONS = EngineOptions(
    max_num_seqs=256,
    max_num_batched_tokens=4096,
    max_loras=4,
    num_gpu_blocks=16384,  # never short
    prefix_caching=False,  # random prompts share nothing
)

PUBLISHED: Mapping[LoraWaiting, Mapping[str, float]] = {
    "stop": {
        "requests_per_second": 2.49,
        "mean_ttft_ms": 99_070,
        "p99_ttft_ms": 195_995,
        "mean_tpot_ms": 15.1,
    },
    "skip": {
        "requests_per_second": 16.75,
        "mean_ttft_ms": 11_862,
        "p99_ttft_ms": 24_553,
        "mean_tpot_ms": 73.6,
        "median_ttft_ms": 6_406,
    },
}
"""One run each, of main and of the change."""

BIMODAL = frozenset({("skip", "mean_tpot_ms"), ("skip", "median_ttft_ms")})
"""What jumps with the draw of the adapters, so that a mean over seeds says little of one run."""

WAVES: Mapping[str, Callable[[int], bool]] = {
    f"up to {OPTIONS.max_num_seqs}": lambda requests: requests <= OPTIONS.max_num_seqs,
    f"more than {OPTIONS.max_num_seqs}": lambda requests: requests > OPTIONS.max_num_seqs,
}
"""The two kinds of draws: do all requests for the first four adapters find a seat at once?"""


class Trial(NamedTuple):
    """One run to do."""

    rule: LoraWaiting
    seed: int


class Life(NamedTuple):
    """One request: its adapter, when it was admitted, and when its first and last token came."""

    adapter: int
    admitted: float
    first_token: float
    last_token: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one run."""

    trial: Trial
    figures: Mapping[str, float]
    first_wave: int
    """How many requests the first four adapters have."""
    lora_loads: int
    lives: Sequence[Life]


def prompt_lengths(dice: random.Random) -> Sequence[int]:
    """Return lognormal lengths within their bounds, scaled so that they add up exactly."""
    drawn = [dice.lognormvariate(0, SIGMA) for _ in range(NUM_PROMPTS)]

    def scaled(factor: float) -> list[int]:
        return [min(max(round(one * factor), SHORTEST_PROMPT), LONGEST_PROMPT) for one in drawn]

    low, high = 0.0, INPUT_TOKENS * 1.0
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if sum(scaled(middle)) < INPUT_TOKENS else (low, middle)
    lengths = scaled(high)
    surplus = sum(lengths) - INPUT_TOKENS  # of prompts that are rounded up at the same factor
    for at, length in enumerate(lengths):
        if surplus and length > SHORTEST_PROMPT:
            lengths[at] -= 1
            surplus -= 1
    return lengths


def workload(seed: int) -> Sequence[EngineRequest]:
    """Return the requests of a seed."""
    dice = random.Random(seed)
    lengths = prompt_lengths(dice)
    adapters = [Adapter(str(number), number=number) for number in range(NUM_ADAPTERS)]
    return [
        EngineRequest(
            f"{at:03}",
            range(length),
            range(OUTPUT_TOKENS),
            adapter=dice.choice(adapters),
            arrival=FIRST_INGEST_SECONDS + INGEST_SECONDS * at,
        )
        for at, length in enumerate(lengths)
    ]


def first_wave(requests: Sequence[EngineRequest]) -> int:
    """Return how many requests are for the adapters that come first and take all slots."""
    wanted = [one.adapter for one in requests]
    first = list(dict.fromkeys(wanted))[: OPTIONS.max_loras]
    return sum(adapter in first for adapter in wanted)


def measure(records: Sequence[Record]) -> Mapping[str, float]:
    """Return the figures of a run as the benchmark's client counts: all prompts were sent at 0."""
    ttfts = [one.first_token for one in records]
    return {
        "requests_per_second": len(records) / max(one.last_token for one in records),
        "mean_ttft_ms": mean(ttfts) * 1e3,
        "p99_ttft_ms": percentile(ttfts, 99) * 1e3,
        "mean_tpot_ms": mean([one.tpot for one in records]) * 1e3,
        "median_ttft_ms": percentile(ttfts, 50) * 1e3,
    }


def attempt(trial: Trial) -> Outcome:
    """Do one run."""
    requests = workload(trial.seed)
    options = dataclasses.replace(OPTIONS, lora_waiting=trial.rule)
    done = run(Engine(options, PROFILES[PROFILE]), requests)
    lives = [
        Life(int(one.adapter or 0), one.admitted, one.first_token, one.last_token)
        for one in done.records
    ]
    return Outcome(trial, measure(done.records), first_wave(requests), done.lora_loads, lives)


@dataclass(frozen=True, slots=True)
class Comparison:
    """One figure of one rule: published, and simulated over all seeds."""

    rule: LoraWaiting
    figure: str
    published: float | None
    simulated: Spread

    @property
    def difference(self) -> float | None:
        """By how much the simulated mean is above the published figure, as a fraction of it."""
        return self.simulated.mean / self.published - 1 if self.published else None

    @property
    def bimodal(self) -> bool:
        """Whether a mean over seeds says little of one run, which the published one is."""
        return (self.rule, self.figure) in BIMODAL

    @property
    def outside(self) -> bool:
        """Whether it misses the published figure by more than the tolerance."""
        return self.difference is not None and abs(self.difference) > TOLERANCE


def compare(outcomes: Sequence[Outcome]) -> Sequence[Comparison]:
    """Return all figures of both rules."""
    comparisons = []
    for rule in RULES:
        measured = [one.figures for one in outcomes if one.trial.rule == rule]
        comparisons += [
            Comparison(
                rule, figure, PUBLISHED[rule].get(figure), spread(one[figure] for one in measured)
            )
            for figure in measured[0]
        ]
    return comparisons


def gap(outcomes: Sequence[Outcome]) -> Spread:
    """Return how many times as many requests a second `skip` does as `stop`, seed by seed."""
    rates: dict[LoraWaiting, dict[int, float]] = {rule: {} for rule in RULES}
    for one in outcomes:
        rates[one.trial.rule][one.trial.seed] = one.figures["requests_per_second"]
    return spread(rate / rates["stop"][seed] for seed, rate in rates["skip"].items())


def published_gap() -> float:
    """Return the same of the published runs."""
    figure = "requests_per_second"
    return PUBLISHED["skip"][figure] / PUBLISHED["stop"][figure]


def by_wave(outcomes: Sequence[Outcome]) -> Mapping[str, Sequence[Outcome]]:
    """Return the runs of `skip` by how many requests the first four adapters have."""
    skipping = [one for one in outcomes if one.trial.rule == "skip"]
    return {
        name: [one for one in skipping if belongs(one.first_wave)]
        for name, belongs in WAVES.items()
    }


def trials(seeds: int) -> Sequence[Trial]:
    """Return the runs of this many seeds."""
    return [Trial(rule, seed) for rule in RULES for seed in range(seeds)]
