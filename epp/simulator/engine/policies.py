"""
Scheduling policies: who is more urgent.

A policy ranks requests; the engine asks in each step, looks at the waiting queue in the order of
ranks, and takes blocks or seats away from the last. A rank is a level and an arrival, smaller means
more urgent; one level is one unit of the priority that a request came with, so that what time does
to a request and what its owner said of it add up.

`priority` is vLLM's. `ageing` is the classic cure for the starvation that fixed priorities bring:
whoever is in the engine gains a level every so often. It gains while it runs, too: what one has
gained on another stays as it is, so that no two requests take each other's seat in turn.

`qoe` follows Andes (Liu et al., "Andes: Defining and Enhancing Quality-of-Experience in LLM-Based
Text Streaming Services", 2024): a reader expects the first token after some time and then tokens at
a pace, and the stream that is furthest behind gains, one level for each second. Andes takes seats
away for that, as this one does under `priority_preemption`, from each request once at most, for
Andes caps its preemptions too: else streams that all fall behind would take turns and none get on.
Without it `qoe` decides who is admitted next and who loses its blocks.
"""

from math import inf
from typing import NamedTuple, Protocol

from epp.simulator.engine.options import EngineOptions
from epp.simulator.engine.request import ActiveRequest


class Rank(NamedTuple):
    """How urgent a request is; the smaller the more."""

    level: float
    arrival: float


class SchedulingPolicy(Protocol):
    """Ranks requests, running or waiting."""

    dynamic: bool
    """Whether the order of those who wait changes while nothing but time passes."""
    margin: float
    """By how many levels a waiting request must lead to take a running one's seat."""
    patience: float
    """How often a request may lose its seat that way; what it computed is lost each time."""

    def rank(self, request: ActiveRequest, now: float) -> Rank:
        """Return the rank of a request at this time."""
        ...


class PriorityPolicy:
    """The priority that a request came with, then its arrival (vLLM's `priority`)."""

    dynamic = False
    margin = 0.0
    patience = inf

    def rank(self, request: ActiveRequest, now: float) -> Rank:
        """Return priority and arrival, whatever the time."""
        return Rank(request.priority, request.arrival)


class AgeingPolicy:
    """The priority, less one for each so many seconds since the arrival; so that none starves."""

    dynamic = False
    margin = 0.0
    patience = inf

    def __init__(self, level_seconds: float) -> None:
        self._level_seconds = level_seconds

    def rank(self, request: ActiveRequest, now: float) -> Rank:
        """Return the rank by when the request came: the older, the more it has gained."""
        # Less what all have gained since time 0, so that rounding cannot reorder them in time.
        return Rank(request.priority + request.arrival / self._level_seconds, request.arrival)


class ExperiencePolicy:
    """The priority, less one for each second by which the stream is behind expectation."""

    dynamic = False
    margin = 1.0
    patience = 1.0

    def __init__(self, pace: float, first_token_seconds: float) -> None:
        self._token_seconds = 1 / pace
        self._first_token_seconds = first_token_seconds

    def rank(self, request: ActiveRequest, now: float) -> Rank:
        """Return the rank by when the reader expects the next token."""
        due = request.arrival + self._first_token_seconds + request.produced * self._token_seconds
        return Rank(request.priority + due, request.arrival)  # likewise


def scheduling_policy(options: EngineOptions) -> SchedulingPolicy | None:
    """Return the policy that the options name; None stands for the order of arrival."""
    match options.scheduling_policy:
        case "fcfs":
            return None
        case "priority":
            return PriorityPolicy()
        case "ageing":
            return AgeingPolicy(options.ageing_seconds)
        case "qoe":
            return ExperiencePolicy(options.qoe_pace, options.qoe_first_token_seconds)
