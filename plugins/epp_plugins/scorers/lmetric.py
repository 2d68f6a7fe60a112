"""
Prefer the endpoints where tokens still to compute, times requests in flight, are fewest.

The product needs no weights and no calibration: neither factor's unit matters, only who has less.
That suits mixed fleets, and pools whose speed nobody has measured.
"""

from collections.abc import Sequence

from epp.framework import INFLIGHT_LOAD, EndpointView, InferenceRequest, Scorer


class LMetricScorer(Scorer):
    """
    The best endpoint scores 1, one whose product is twice as large 0.5, and so on.

    The product is (uncached tokens in flight + those this request would add) * (requests in flight
    + 1), by the attribute `inflight-load`; without it everyone scores 1. A cached prefix lowers the
    first factor, so no prefix scorer is needed beside it.
    """

    consumes = (INFLIGHT_LOAD,)

    def score(self, request: InferenceRequest, endpoints: EndpointView) -> Sequence[float]:
        """Return the least product divided by that of each endpoint."""
        load = request.attributes.get(INFLIGHT_LOAD)
        if load is None or not endpoints:
            return [1.0] * len(endpoints)
        costs = [
            (tokens + own) * (requests + 1)
            for tokens, own, requests in zip(
                load.tokens_of(endpoints),
                load.uncached_tokens_of(endpoints),
                load.requests_of(endpoints),
                strict=True,
            )
        ]
        best = min(costs)
        if best <= 0:
            # Nothing to compute is the best there is, and has no ratio to the others.
            return [float(cost <= 0) for cost in costs]
        return [best / cost for cost in costs]
