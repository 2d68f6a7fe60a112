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

    def score(self, request: InferenceRequest, endpoints: EndpointView) -> Sequence[float]:
        """Return the fraction of each KV cache that is free."""
        return [
            1.0 - usage if 0.0 <= usage <= 1.0 else float(usage < 0.0)
            for usage in endpoints.kv_usage
        ]
