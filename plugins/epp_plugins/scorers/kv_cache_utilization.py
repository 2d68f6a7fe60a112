"""
Prefer the endpoints with the most KV cache to spare.

An engine whose cache is full preempts running requests and computes them again.
"""

from collections.abc import Iterable, Mapping, Sequence

from epp.framework import (
    PREFIX_MATCH,
    Endpoint,
    EndpointLoad,
    EndpointView,
    InferenceRequest,
    PreRequest,
    ResponseCompletionObserver,
    SchedulingResult,
    Scorer,
    TerminationCause,
    Usage,
)

BYTES_PER_TOKEN = 4
"""What a token of a prompt is taken for."""

SMOOTHING = 0.1
"""The weight of one more request in the mean of what requests take."""


class KVCacheUtilizationScorer(Scorer, PreRequest, ResponseCompletionObserver):
    """
    The score is the free fraction of the KV cache.

    It is absolute, not relative to the other candidates: equally full endpoints score alike, and
    small differences stay small. A usage outside [0, 1] counts as its nearer end, one that is not a
    number as full.

    The usage is as scraped, plus what the requests take that this picker sent since, less what
    those took that it saw end: each is taken for the mean of the prompts sent lately, less what
    `prefix-match` says is cached where something produces it, of the cache size that the endpoint
    reports. An endpoint that reports none is left as scraped.
    """

    def __init__(self) -> None:
        self._mean_tokens: float | None = None
        # The gateway took it elsewhere, and it is about to be sent there: it is no second sample.
        self._moving: InferenceRequest | None = None
        # Scores of an unchanged pool are made anew only where a request was sent, or ended.
        self._pool = _Pool((), ())
        self._touched: set[EndpointLoad] = set()

    def score(self, request: InferenceRequest, endpoints: EndpointView) -> Sequence[float]:
        """Return the fraction of each KV cache that is free."""
        column = endpoints.kv_usage
        mean = self._mean_tokens or 0.0
        if column is not self._pool.usage:
            self._pool = _Pool(endpoints.rows, column)
            self._pool.correct_all(mean)
        elif self._touched:
            self._pool.correct(self._touched, mean)
        self._touched.clear()
        return self._pool.scores

    def pre_request(self, request: InferenceRequest, result: SchedulingResult) -> Mapping[str, str]:
        """Learn how many tokens requests take; add no headers."""
        self._touch(result.endpoint.load)
        if request is not self._moving:
            self._learn(request)
        self._moving = None
        return {}

    def _learn(self, request: InferenceRequest) -> None:
        size = len(request.prompt)
        match = request.attributes.get(PREFIX_MATCH)
        if match is not None:
            # The longest match stands for that of the endpoint chosen: it mostly is, and this is
            # but one sample of a mean.
            size = max(0, size - max(match.matched_blocks, default=0) * match.block_bytes)
        tokens = size / BYTES_PER_TOKEN
        mean = tokens if self._mean_tokens is None else self._mean_tokens
        self._mean_tokens = mean + SMOOTHING * (tokens - mean)

    def on_response_complete(
        self,
        request: InferenceRequest,
        result: SchedulingResult,
        cause: TerminationCause,
        usage: Usage | None,
    ) -> None:
        """Note that the endpoint has a request less."""
        if cause is TerminationCause.MOVED:
            self._moving = request
        self._touch(result.endpoint.load)

    def _touch(self, load: EndpointLoad) -> None:
        """Note that a count changed."""
        self._touched.add(load)
        if len(self._touched) > len(self._pool.scores):
            # Nobody asks for scores, while endpoints come and go.
            self._touched.clear()
            self._pool = _Pool((), ())


class _Pool:
    """A pool as scraped, with its scores."""

    def __init__(self, rows: tuple[Endpoint, ...], usage: Sequence[float]) -> None:
        self.usage = usage
        self._free = [1.0 - used if 0.0 <= used <= 1.0 else _share(1.0 - used) for used in usage]
        self.scores = self._free.copy()
        self._rows = rows
        self._places: dict[EndpointLoad, int] | None = None

    def correct_all(self, mean_tokens: float) -> None:
        """Take in what was sent and ended since each endpoint's scrape."""
        # As _correct, without a call for each row.
        for at, one in enumerate(self._rows):
            metrics = one.metrics
            more = one.load.in_flight - metrics.in_flight_at_update
            if more and (tokens := metrics.num_blocks * metrics.block_size):
                free = self._free[at] - more * mean_tokens / tokens
                self.scores[at] = free if 0.0 <= free <= 1.0 else _share(free)

    def correct(self, touched: Iterable[EndpointLoad], mean_tokens: float) -> None:
        """Take it in for some of them only."""
        if self._places is None:
            self._places = {one.load: at for at, one in enumerate(self._rows)}
        # Results of earlier requests still have the list as it was.
        self.scores = self.scores.copy()
        for load in touched:
            at = self._places.get(load)
            if at is not None:
                self._correct(at, mean_tokens)

    def _correct(self, at: int, mean_tokens: float) -> None:
        endpoint = self._rows[at]
        metrics = endpoint.metrics
        tokens = metrics.num_blocks * metrics.block_size
        if tokens:
            more = endpoint.load.in_flight - metrics.in_flight_at_update
            self.scores[at] = _share(self._free[at] - more * mean_tokens / tokens)


def _share(value: float) -> float:
    """Return the value within [0, 1]; 0 for what is not a number."""
    return value if 0.0 <= value <= 1.0 else float(value > 1.0)
