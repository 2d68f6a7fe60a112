"""
Prefer the endpoints that serve the request's adapter, then those with room for it.

Loading an adapter costs time, and an engine whose adapter slots are taken makes the request wait
until one is free.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from epp.framework import (
    AttributeKey,
    EndpointView,
    InferenceRequest,
    PluginContext,
    PreRequest,
    ResponseCompletionObserver,
    SchedulingResult,
    Scorer,
    StateDumper,
    TerminationCause,
    Usage,
)
from epp_plugins.scorers.lora_affinity import placement
from epp_plugins.scorers.lora_affinity.ledger import Holding, Ledger

CROWDING = 0.05
"""What each adapter beyond the slots leaves of the score above `fullScore`."""

NOT_SERVED = (
    TerminationCause.MODEL_SERVER_ERROR,
    TerminationCause.REFUSED,
    TerminationCause.MOVED,
)
"""Ends that leave open whether the adapter was ever loaded."""

MAX_NAME_CHARS = 512
"""A longer name is no adapter's; models are files, whose names are shorter."""

LARGEST_COUNT, LARGEST_SECONDS = 2**31, 1e9

UNNEEDED = 0.1
"""What is left of `roomScore` where those that run the adapter need no help."""


class LoRAAffinityScorer(Scorer, PreRequest, ResponseCompletionObserver, StateDumper):
    """
    Levels by the adapters an endpoint runs, those this picker sent it and those it reports.

    `activeScore`: it runs the adapter that the model name selects, and no request waits for it.
    `roomScore`: it has a slot free; an adapter that runs and waits takes one slot. Where all slots
    are taken the score lies between `waitingScore` and `fullScore`, the lower the more adapters
    are there beyond the slots.

    An adapter should live on as few endpoints as its load needs. While requests of ours for it are
    open, none is reported waiting where it runs, and one of those endpoints has fewer than
    `spreadRequests` open for all adapters, endpoints with room score a tenth of `roomScore`
    and full ones 0. 0 turns this off.

    Among equals, `tieScore` more for an endpoint that ran the adapter in the last
    `residencySeconds` and is likely to have it in memory: engines report use, not residency. For
    an adapter that no candidate knows, that place is found by hashing, so that restarts and
    replicas agree. Endpoints that run the adapter among more than they have slots for lose up to
    as much. 0 turns all of that off.

    Base models are nobody's adapter: their requests score alike everywhere, as does everything in
    a pool that reports no adapters, and a name of more than 512 characters. Where some endpoints
    report them, one that does not gets `fullScore`. A base model whose name no page tells, an alias
    say, is taken for an adapter. A stale endpoint counts as one with room, yet never as better than
    the best of the others. A request that was refused or failed, or that the gateway took
    elsewhere, leaves no adapter in memory. Whether an endpoint could load the adapter at all is not
    known: engines tell it only when asked for their models, so an adapter that is configured on
    some endpoints alone may meet a 404.

    The field's rule is `roomScore` 0.8, `waitingScore` 0.6, `graded` false, `tieScore` 0 and
    `spreadRequests` 0. Without `graded`, `waitingScore` is for endpoints where requests for the
    adapter wait already and `fullScore` for the other full ones, however many wait, and an adapter
    that runs is active even if requests wait for it.
    """

    def __init__(
        self,
        *,
        context: PluginContext,
        active_score: float = 1.0,
        room_score: float = 0.75,
        waiting_score: float = 0.5,
        full_score: float = 0.0,
        graded: bool = True,
        tie_score: float = 0.2,
        spread_requests: int = 20,
        residency_seconds: float = 600.0,
    ) -> None:
        self._active = _level("activeScore", active_score)
        self._room = _level("roomScore", room_score)
        self._waiting = _level("waitingScore", waiting_score)
        self._full = _level("fullScore", full_score)
        self._graded = graded
        self._tie = _level("tieScore", tie_score)
        self._spread_requests = spread_requests
        _check("spreadRequests", spread_requests, LARGEST_COUNT)
        _check("residencySeconds", residency_seconds, LARGEST_SECONDS)
        self._clock = context.clock
        self._key: AttributeKey[list[Holding]] = AttributeKey(f"lora-affinity:{context.name}")
        self._ledger = Ledger(
            residency_seconds=residency_seconds, changed=self._update, count=context.count
        )
        self._levels: list[float] = []
        """What each candidate is worth for an adapter that it does not know."""
        self._unneeded_levels: list[float] = []
        """The same, where those that run the adapter need no help."""
        self._reported = False
        self._base_models: frozenset[str] = frozenset()

    @property
    def discrepancies(self) -> Mapping[str, int]:
        """
        How often reports and own counts disagreed, by kind.

        `absent`: an adapter that is open here was lacking in more than two reports in a row.
        `foreign`: one was reported that nobody of ours asked for, so somebody else did.
        """
        return self._ledger.discrepancies

    def score(self, request: InferenceRequest, endpoints: EndpointView) -> Sequence[float]:
        """Return the level of each endpoint for the request's model."""
        self._reported = endpoints.reports_adapters
        self._base_models = endpoints.base_models
        adapter = request.model
        if not self._is_adapter(adapter):
            return [self._full] * len(endpoints)
        ledger = self._ledger
        if ledger.attend(endpoints.rows, self._clock()):
            self._levels = [self._absent(holding) for holding in ledger.attending]
            self._unneeded_levels = [self._unneeded(holding) for holding in ledger.attending]
        stale = frozenset(endpoints.stale)
        holders = ledger.holders(adapter)
        needs_more = self._needs_more(adapter, holders, stale)
        scores = (self._levels if needs_more else self._unneeded_levels).copy()
        for holding in holders:
            scores[holding.place] = self._present(holding, adapter)
        if not holders and self._tie:
            place = placement.home(adapter, ledger.attending, scores, stale)
            if place >= 0:
                scores[place] = min(1.0, scores[place] + self._tie)
        if stale:
            self._level_out(scores, stale)
        return scores

    def pre_request(self, request: InferenceRequest, result: SchedulingResult) -> Mapping[str, str]:
        """Count the request where it goes; add no headers."""
        held = request.attributes.get(self._key)
        if held is None and self._is_adapter(request.model):
            held = []
            request.attributes.put(self._key, held)
        # One that is there already is of a request that the gateway took elsewhere.
        if held is not None:
            held.append(self._ledger.begin(result.endpoint, request.model, self._clock()))
        return {}

    def on_response_complete(
        self,
        request: InferenceRequest,
        result: SchedulingResult,
        cause: TerminationCause,
        usage: Usage | None,
    ) -> None:
        """Take the request off, whatever ended it."""
        held = request.attributes.get(self._key)
        served = cause not in NOT_SERVED
        while held:
            self._ledger.end(held.pop(), request.model, self._clock(), served=served)

    def dump_state(self) -> Mapping[str, Any]:
        """Return how much is remembered, and how often reports disagreed with it."""
        return {**self._ledger.sizes(), "discrepancies": dict(self.discrepancies)}

    def _is_adapter(self, model: str) -> bool:
        return (
            self._reported and 0 < len(model) <= MAX_NAME_CHARS and model not in self._base_models
        )

    def _update(self, holding: Holding) -> None:
        # Of endpoints that just became candidates all levels are about to be made.
        if 0 <= holding.place < len(self._levels):
            self._levels[holding.place] = self._absent(holding)
            self._unneeded_levels[holding.place] = self._unneeded(holding)

    def _needs_more(self, adapter: str, holders: Sequence[Holding], stale: Collection[int]) -> bool:
        """Whether the endpoints that run our requests for the adapter are not enough for them."""
        homes = [one for one in holders if adapter in one.open and one.place not in stale]
        if not homes or any(one.metrics.waiting for one in homes):
            return True
        return min([one.requests for one in homes]) >= self._spread_requests

    def _absent(self, holding: Holding) -> float:
        """Return what an endpoint is worth for an adapter that it does not know."""
        if holding.used < holding.slots:
            return self._room
        if not holding.slots or not self._graded:
            return self._full
        return self._crowded(holding.used + 1 - holding.slots)

    def _unneeded(self, holding: Holding) -> float:
        return self._room * UNNEEDED if holding.used < holding.slots else 0.0

    def _present(self, holding: Holding, adapter: str) -> float:
        """Return what an endpoint is worth for an adapter that runs, waits or ran there."""
        waits = adapter in holding.waiting
        runs = holding.runs(adapter)
        excess = max(0, holding.used - holding.slots) if holding.slots else 0
        if runs and not (waits and self._graded):
            return max(0.0, self._active - self._tie * (1.0 - 1.0 / (1 + excess)))
        resident = self._tie if holding.keeps(adapter) else 0.0
        level = self._absent(holding)
        if (runs or waits) and holding.used >= holding.slots:
            level = self._crowded(excess) if self._graded else self._waiting
        return min(1.0, level + resident)

    def _crowded(self, excess: int) -> float:
        """Return what is left where so many adapters more are there than there are slots."""
        return self._full + (self._waiting - self._full) * CROWDING**excess

    def _level_out(self, scores: list[float], stale: Collection[int]) -> None:
        """Let a stale endpoint be one with room, but no better than the best known one."""
        for at in stale:
            scores[at] = 0.0
        neutral = self._room
        if len(stale) < len(scores):
            neutral = min(neutral, max(scores))
        for at in stale:
            scores[at] = neutral


def _check(name: str, value: float, most: float) -> None:
    if not 0 <= value <= most:
        message = f"parameters.{name} must be from 0 to {most:g}, got {value}"
        raise ValueError(message)


def _level(name: str, value: float) -> float:
    if not 0.0 <= value <= 1.0:
        message = f"parameters.{name} must be from 0 to 1, got {value}"
        raise ValueError(message)
    return value
