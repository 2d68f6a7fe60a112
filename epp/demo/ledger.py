"""
The ledger: decisions and outcomes brought together by request id, and the summary drawn from them.

The picker says where a request went, the client what came of it; either may be heard first. The
user's own requests, sent by hand, are counted where they went and have no outcome here.
"""

import math
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from epp.demo.load import ADAPTERS, Outcome, Planned
from epp.demo.watch import Decision, EndpointState, Weights

KEPT_TIMES = 20_000
"""Percentiles are those of so many last requests: a demo may run all day."""

WARM = 0.5
"""A prompt is called warm where more than this fraction of it came from the cache."""


@dataclass(slots=True)
class Tally:
    """What is known of one endpoint: `routed` counts every decision, the rest the load's own."""

    routed: int = 0
    answered: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    models: Counter[str] = field(default_factory=Counter)

    @property
    def hit_rate(self) -> float:
        """The fraction of the prompts' tokens that came from the cache."""
        return fraction(self.cached_tokens, self.prompt_tokens)


@dataclass(frozen=True, slots=True)
class Routed:
    """A decision, with the request where it is one of the load's own."""

    decision: Decision
    planned: Planned | None


@dataclass(slots=True)
class _Open:
    """A request of the load that is not both decided and answered yet."""

    planned: Planned
    endpoint: str | None = None
    outcome: Outcome | None = None


class Ledger:
    """All that the demo knows of its requests; memory does not grow with their number."""

    def __init__(self, endpoints: Sequence[str], recent: int = 10, by_hand: int = 3) -> None:
        self.tallies = {name: Tally() for name in endpoints}
        self.recent: deque[Routed] = deque(maxlen=recent)
        """The latest decisions on the load, newest first."""
        self.by_hand: deque[Routed] = deque(maxlen=by_hand)
        """The latest decisions on requests of somebody else, who will look for them."""
        self.weights: Weights = {}
        self.sent = 0
        self.answered = 0
        self.errors: Counter[str] = Counter()
        self.shared_prompt_tokens = 0
        self.shared_cached_tokens = 0
        self.latencies: deque[float] = deque(maxlen=KEPT_TIMES)
        self.first_tokens: deque[float] = deque(maxlen=KEPT_TIMES)
        self.warm_first_tokens: deque[float] = deque(maxlen=KEPT_TIMES)
        self.cold_first_tokens: deque[float] = deque(maxlen=KEPT_TIMES)
        self._open: dict[str, _Open] = {}

    @property
    def failed(self) -> int:
        """How many requests were not answered whole."""
        return self.errors.total()

    @property
    def shared_hit_rate(self) -> float:
        """The fraction of the tokens of prompts with a shared beginning that came from a cache."""
        return fraction(self.shared_cached_tokens, self.shared_prompt_tokens)

    def note_sent(self, planned: Planned) -> None:
        """Note that a request is under way."""
        self.sent += 1
        self._open[planned.id] = _Open(planned)

    def note_decisions(self, decisions: Iterable[Decision], weights: Weights) -> None:
        """Note where requests went, oldest first."""
        self.weights = weights
        for decision in decisions:
            self.tallies.setdefault(decision.name, Tally()).routed += 1
            one = self._open.get(decision.request_id)
            if one is None:
                self.by_hand.appendleft(Routed(decision, None))
                continue
            self.recent.appendleft(Routed(decision, one.planned))
            one.endpoint = decision.name
            self._join(one)

    def note_end(self, outcome: Outcome) -> None:
        """Note what came of a request."""
        if outcome.error:
            self.errors[outcome.error] += 1
        else:
            self._count(outcome)
        one = self._open[outcome.planned.id]
        one.outcome = outcome
        self._join(one)

    def _count(self, outcome: Outcome) -> None:
        self.answered += 1
        self.latencies.append(outcome.seconds)
        if outcome.first_token_seconds is not None:
            self.first_tokens.append(outcome.first_token_seconds)
        if outcome.planned.group.name:
            self._count_shared(outcome)

    def _count_shared(self, outcome: Outcome) -> None:
        self.shared_prompt_tokens += outcome.prompt_tokens
        self.shared_cached_tokens += outcome.cached_tokens
        if outcome.first_token_seconds is not None:
            warm = fraction(outcome.cached_tokens, outcome.prompt_tokens) > WARM
            times = self.warm_first_tokens if warm else self.cold_first_tokens
            times.append(outcome.first_token_seconds)

    def _join(self, one: _Open) -> None:
        if one.endpoint is None or one.outcome is None:
            return
        del self._open[one.planned.id]
        if not one.outcome.error:
            tally = self.tallies[one.endpoint]
            tally.answered += 1
            tally.prompt_tokens += one.outcome.prompt_tokens
            tally.cached_tokens += one.outcome.cached_tokens
            tally.models[one.planned.group.model] += 1


@dataclass(frozen=True, slots=True)
class View:
    """What is shown while the load runs."""

    ledger: Ledger
    endpoints: Sequence[EndpointState]
    seconds: float
    curl: str


def reason(decision: Decision, weights: Weights) -> str:
    """
    Return what spoke most for the endpoint that was taken, against the best of the others.

    The number is the difference of the scores times the weight.
    """
    taken = next((one for one in decision.candidates if one.endpoint == decision.endpoint), None)
    others = [one for one in decision.candidates if one.endpoint != decision.endpoint]
    if taken is None or not others:
        return "no other choice"
    rival = max(others, key=lambda one: one.total)
    gains = {
        name: weights.get(name, 1.0) * (score - rival.scores.get(name, 0.0))
        for name, score in taken.scores.items()
    }
    best = max(gains, key=lambda name: gains[name], default="")
    if not best or gains[best] <= 0:
        return "a tie"
    return f"{scorer_title(best)} +{gains[best]:.2f}"


def scorer_title(name: str) -> str:
    """Return a scorer's name in few words."""
    return name.removesuffix("-scorer").removesuffix("-utilization").replace("-", " ")


def fraction(part: float, whole: float) -> float:
    """Return part / whole, 0 of nothing."""
    return part / whole if whole else 0.0


def percentile(values: Iterable[float], percent: float) -> float | None:
    """Return the least value that so many percent of the values do not exceed; None of none."""
    ordered = sorted(values)
    if not ordered:
        return None
    return ordered[max(0, math.ceil(percent / 100 * len(ordered)) - 1)]


@dataclass(frozen=True, slots=True)
class Summary:
    """What the demo showed, in numbers and in words."""

    tallies: Mapping[str, Tally]
    routed: int
    requests: int
    failed: int
    seconds: float
    latency: tuple[float | None, float | None]
    first_token: tuple[float | None, float | None]
    findings: Sequence[str]


def summarize(ledger: Ledger, seconds: float) -> Summary:
    """Return the summary of what the ledger holds; pairs are the 50th and 99th percentile."""
    return Summary(
        tallies=ledger.tallies,
        routed=sum(one.routed for one in ledger.tallies.values()),
        requests=ledger.answered + ledger.failed,
        failed=ledger.failed,
        seconds=seconds,
        latency=(percentile(ledger.latencies, 50), percentile(ledger.latencies, 99)),
        first_token=(
            percentile(ledger.first_tokens, 50),
            percentile(ledger.first_tokens, 99),
        ),
        findings=[*_cache_findings(ledger), *_adapter_findings(ledger)],
    )


def _cache_findings(ledger: Ledger) -> list[str]:
    findings = []
    if ledger.shared_prompt_tokens:
        findings.append(
            f"{ledger.shared_hit_rate:.0%} of the prompt tokens of requests with a shared prompt"
            " were served from a cache."
        )
    warm = percentile(ledger.warm_first_tokens, 50)
    cold = percentile(ledger.cold_first_tokens, 50)
    if warm is not None and cold is not None:
        findings.append(
            f"With a shared prompt, the first token of a stream took {milliseconds(warm)} where it"
            f" was cached and {milliseconds(cold)} where it was not (medians)."
        )
    return findings


def _adapter_findings(ledger: Ledger) -> list[str]:
    findings = []
    total = len(ledger.tallies)
    for adapter in ADAPTERS:
        counts = Counter({name: one.models[adapter] for name, one in ledger.tallies.items()})
        homes = [name for name, count in counts.most_common() if count]
        if homes:
            most = fraction(counts[homes[0]], counts.total())
            where = f"; {most:.0%} of its requests went to {homes[0]}" if len(homes) > 1 else ""
            findings.append(
                f"The adapter {adapter} lived on {len(homes)} of {total} endpoints{where}."
            )
    return findings


def milliseconds(seconds: float | None) -> str:
    """Return a time as text."""
    return "-" if seconds is None else f"{seconds * 1e3:.0f} ms"
