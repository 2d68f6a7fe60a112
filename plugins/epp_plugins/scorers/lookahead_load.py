"""
Prefer the endpoints that would answer soonest: tokens still to compute over the speed learned.

An engine computes prompts one after the other, so the time to the first token is what lies ahead of
it. Tokens in flight and the request's own are known here without any scrape, and how fast an
endpoint gets through them is learned from the responses it gave.
"""

from collections.abc import Mapping, Sequence
from operator import add, mul

import msgspec

from epp.framework import (
    INFLIGHT_LOAD,
    AttributeKey,
    Endpoint,
    EndpointLoad,
    EndpointView,
    FirstByteObserver,
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

LEAST_TOKENS = 2048
"""Fewer are computed in a step or two: their time tells of the network, not of the speed."""

SMOOTHING = 0.2
"""The weight of one more sample."""

MOST_SWING = 4.0
"""A sample counts as at most so many times slower or faster than what was known."""

PLAUSIBLE = 16.0
"""A response so many times faster than the prior was not computed: it is an error's, say."""

FORGET_SECONDS = 300.0
"""A speed that no response confirmed for so long counts no more."""

RENEW_SECONDS = 1.0
"""How long a learned speed may take to be used."""

NOT_SERVED = (
    TerminationCause.MODEL_SERVER_ERROR,
    TerminationCause.REFUSED,
    TerminationCause.FAILED,
)
"""Ends whose first byte may be that of an error."""

LEAST, LARGEST = 1e-6, 1e9

MAX_ENDPOINTS = 4096
"""Speeds remembered at once, so that churn cannot fill the memory."""


class _Pick(msgspec.Struct):
    """
    A request on its way: what lay ahead of its first token, and how long that took to come.

    One that the gateway took elsewhere `moved`: its time is that of two attempts.
    """

    load: EndpointLoad
    tokens: int
    sent_at: float
    seconds: float | None = None
    moved: bool = False


class LookaheadLoadScorer(
    Scorer, PreRequest, FirstByteObserver, ResponseCompletionObserver, StateDumper
):
    """
    The score is 1 where the first token comes soonest, and 0.5 `scaleSeconds` later.

    Expected seconds are (uncached tokens in flight + those that this request would add) * seconds a
    token, the first two by the attribute `inflight-load`; without it everyone scores 1. A cached
    prefix is tokens less, so cache and load are weighed in one unit, that of time.

    The seconds a token are learned for each life of an endpoint from streamed responses with enough
    tokens ahead of them: a smoothed mean, in which no sample counts for more than four times slower
    or faster than expected, and neither failed or refused responses, nor those that the gateway got
    elsewhere, nor implausibly fast ones count at all.
    What is not known, or was not confirmed for five minutes, is taken for the mean of the others,
    and for `peakPrefillThroughput` tokens a second where none is known.
    """

    consumes = (INFLIGHT_LOAD,)

    def __init__(
        self,
        *,
        context: PluginContext,
        scale_seconds: float = 1.0,
        peak_prefill_throughput: float = 15928.0,
    ) -> None:
        _check("scaleSeconds", scale_seconds)
        _check("peakPrefillThroughput", peak_prefill_throughput)
        self._scale = scale_seconds
        self._clock = context.clock
        self._speeds = _Speeds(1.0 / peak_prefill_throughput)
        self._key: AttributeKey[_Pick] = AttributeKey(f"{context.name}/pick")
        # Of the last request scored: the choice follows before another is.
        self._scored: InferenceRequest | None = None
        self._ahead: list[int] = []
        self._loads: list[EndpointLoad] = []

    def score(self, request: InferenceRequest, endpoints: EndpointView) -> Sequence[float]:
        """Return how soon each endpoint would answer, beside the one that is soonest."""
        load = request.attributes.get(INFLIGHT_LOAD)
        if load is None or not endpoints:
            self._scored = None
            return [1.0] * len(endpoints)
        speeds = self._speeds.of(endpoints.rows, self._clock())
        in_flight, own = load.tokens_of(endpoints), load.uncached_tokens_of(endpoints)
        ahead = list(map(add, in_flight, own))
        self._scored, self._ahead, self._loads = request, ahead, self._speeds.loads
        seconds = list(map(mul, speeds, ahead))
        scale, soonest = self._scale, min(seconds)
        return [scale / (scale + (one - soonest)) for one in seconds]

    def pre_request(self, request: InferenceRequest, result: SchedulingResult) -> Mapping[str, str]:
        """Remember what lies ahead of the first token; add no headers."""
        load = result.endpoint.load
        if self._scored is request and request.stream and load in self._loads:
            tokens = self._ahead[self._loads.index(load)]
            if tokens >= LEAST_TOKENS:
                request.attributes.put(self._key, _Pick(load, tokens, self._clock()))
        self._scored = None
        return {}

    def on_first_byte(self, request: InferenceRequest, result: SchedulingResult) -> None:
        """Note how long it took."""
        pick = request.attributes.get(self._key)
        if pick is not None:
            pick.seconds = self._clock() - pick.sent_at

    def on_response_complete(
        self,
        request: InferenceRequest,
        result: SchedulingResult,
        cause: TerminationCause,
        usage: Usage | None,
    ) -> None:
        """Learn from the response, unless it was the failure of one."""
        pick = request.attributes.get(self._key)
        if pick is None:
            return
        pick.moved = pick.moved or cause is TerminationCause.MOVED
        if pick.seconds is not None and not pick.moved and cause not in NOT_SERVED:
            self._speeds.learn(pick.load, pick.seconds / pick.tokens, self._clock())

    def dump_state(self) -> Mapping[str, float]:
        """Return how many speeds are known, and their mean in tokens a second."""
        return {
            "endpoints": self._speeds.known,
            "tokensPerSecond": round(1.0 / self._speeds.usual),
        }


class _Speeds:
    """Seconds a token of each life of an endpoint, and the column of them for a pool."""

    def __init__(self, prior: float, max_endpoints: int = MAX_ENDPOINTS) -> None:
        self._prior = prior
        self._max_endpoints = max_endpoints
        self.usual = prior
        """What is taken for the speed of an endpoint of which none is known."""
        # By the object that all snapshots of one life share; the one confirmed last is the last.
        self._learned: dict[EndpointLoad, tuple[float, float]] = {}
        self._rows: tuple[Endpoint, ...] = ()
        self.loads: list[EndpointLoad] = []
        """The lives of the endpoints that the column was last asked for."""
        self._column: list[float] = []
        self._renewed_at = 0.0
        self._changed = False

    @property
    def known(self) -> int:
        """Of how many endpoints the speed is known."""
        return len(self._learned)

    def of(self, rows: tuple[Endpoint, ...], now: float) -> list[float]:
        """Return the seconds a token of each endpoint."""
        due = self._changed and now - self._renewed_at >= RENEW_SECONDS
        if rows is not self._rows:
            loads = [one.load for one in rows]
            # A scrape makes a new snapshot of endpoints that mostly are the same lives.
            due = due or loads != self.loads
            self._rows, self.loads = rows, loads
        if due or now - self._renewed_at > FORGET_SECONDS:
            self._renew(now)
        return self._column

    def learn(self, load: EndpointLoad, sample: float, now: float) -> None:
        """Take in the seconds a token of one response."""
        if sample * PLAUSIBLE < self._prior:
            return
        before, _ = self._learned.pop(load, (self.usual, now))
        sample = min(max(sample, before / MOST_SWING), before * MOST_SWING)
        sample = min(sample, self._prior * PLAUSIBLE)
        if len(self._learned) >= self._max_endpoints:
            del self._learned[next(iter(self._learned))]
        self._learned[load] = (before + SMOOTHING * (sample - before), now)
        self._changed = True

    def _renew(self, now: float) -> None:
        self._learned = {
            load: one for load, one in self._learned.items() if now - one[1] <= FORGET_SECONDS
        }
        known = [seconds for seconds, _ in self._learned.values()]
        self.usual = sum(known) / len(known) if known else self._prior
        unknown = (self.usual, now)
        self._column = [self._learned.get(load, unknown)[0] for load in self.loads]
        self._renewed_at, self._changed = now, False


def _check(name: str, value: float) -> None:
    if not LEAST <= value <= LARGEST:
        message = f"parameters.{name} must be from {LEAST:g} to {LARGEST:g}, got {value}"
        raise ValueError(message)
