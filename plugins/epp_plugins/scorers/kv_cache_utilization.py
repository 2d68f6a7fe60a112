"""
Prefer the endpoints with the most KV cache to spare.

An engine whose cache is full preempts running requests and computes them again.
"""

from collections.abc import Sequence

from epp.framework import EndpointView, InferenceRequest, Scorer


class KVCacheUtilizationScorer(Scorer):
    """
    The score is the free fraction of the KV cache.

    It is absolute, not relative to the other candidates: equally full endpoints score alike, and
    small differences stay small. A usage outside [0, 1] counts as its nearer end, one that is not a
    number as full.
    """

    def __init__(self) -> None:
        # The column of an unchanged pool is the same list, and so are the scores made of it.
        self._column: Sequence[float] | None = None
        self._scores: list[float] = []

    def score(self, request: InferenceRequest, endpoints: EndpointView) -> Sequence[float]:
        """Return the fraction of each KV cache that is free."""
        column = endpoints.kv_usage
        if column is not self._column:
            self._column = column
            self._scores = [
                1.0 - usage if 0.0 <= usage <= 1.0 else float(usage < 0.0) for usage in column
            ]
        return self._scores
