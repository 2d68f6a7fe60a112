"""
Batches and steps: what an engine decided to compute, and what came of it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from epp.simulator.engine.cache_events import CacheEvent
from epp.simulator.engine.request import ActiveRequest, FinishReason


class Admission(NamedTuple):
    """A request that got a seat, and how many of its tokens were cached; `resumed` if not anew."""

    request_id: str
    prompt_tokens: int
    cached_tokens: int
    resumed: bool


class Emission(NamedTuple):
    """One token that came out; the last of its request has a finish reason."""

    request_id: str
    token: int
    finish_reason: FinishReason | None


class EngineLoad(NamedTuple):
    """
    How full the engine is.

    The waiting ones include those that are deferred (their adapter or class is at its limit) and
    those that are swapped out.
    """

    running: int
    waiting: int
    deferred: int
    swapped: int
    kv_usage: float
    cpu_usage: float


@dataclass(slots=True)
class Lookups:
    """Tokens that admissions looked up in the prefix cache; those of returning requests apart."""

    queries: int = 0
    hits: int = 0
    preempted_queries: int = 0


@dataclass(slots=True)
class Batch:
    """A step under way: what it computes for whom, and who came and went for it."""

    budget: int
    """How many tokens it could still compute."""
    scheduled: dict[str, int] = field(default_factory=dict)
    """Tokens by request id."""
    requests: list[ActiveRequest] = field(default_factory=list)
    """The scheduled requests, in the order of `scheduled`."""
    adapters: dict[str, None] = field(default_factory=dict)
    admitted: list[Admission] = field(default_factory=list)
    preempted: list[str] = field(default_factory=list)
    sent_away: set[str] = field(default_factory=set)
    """Of the preempted ones, those that made way for a more urgent request."""
    swapped_out: list[str] = field(default_factory=list)
    """Of the preempted ones, those that kept their blocks, in the CPU's memory."""
    swapped_in: list[str] = field(default_factory=list)
    swapped_blocks: int = 0
    lookups: Lookups = field(default_factory=Lookups)
    lora_loads: int = 0
    duration: float = 0.0

    def add(self, request: ActiveRequest, num_tokens: int) -> None:
        """Give a request these many tokens of the budget."""
        self.budget -= num_tokens
        self.scheduled[request.id] = num_tokens
        self.requests.append(request)
        if request.adapter is not None:
            self.adapters[request.adapter.name] = None

    def take_back(self, request: ActiveRequest) -> None:
        """Return a preempted request's tokens to the budget, if it had been given any."""
        num_tokens = self.scheduled.pop(request.id, 0)
        if num_tokens:
            self.budget += num_tokens
            self.requests.remove(request)
            self.adapters = {
                one.adapter.name: None for one in self.requests if one.adapter is not None
            }


@dataclass(frozen=True, slots=True)
class Step:
    """What one step did, and the tokens and cache events that came of it."""

    scheduled: Mapping[str, int]
    admitted: Sequence[Admission]
    preempted: Sequence[str]
    swapped_out: Sequence[str]
    swapped_in: Sequence[str]
    lookups: Lookups
    lora_loads: int
    duration: float
    emitted: Sequence[Emission]
    events: Sequence[CacheEvent]


class Stretch(NamedTuple):
    """
    Several steps at once, in which each running request got one token a step and nothing else was.

    `tokens` holds each request's, a token a step; `events` come with the number of their step.
    """

    durations: Sequence[float]
    tokens: Mapping[str, Sequence[int]]
    events: Sequence[tuple[int, CacheEvent]]
