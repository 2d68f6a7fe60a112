"""
Prefer the endpoints that run the fewest requests.

The number is as scraped: the requests in the engine's current batch, without those that wait.
"""

from collections.abc import Sequence

from epp.framework import EndpointView, InferenceRequest, Scorer


class RunningRequestsScorer(Scorer):
    """
    The smallest batch scores 1, the largest 0, the others in proportion between them.

    Equal batches score 1 everywhere. Use it beside a queue scorer: it still tells endpoints apart
    while nobody has to wait.
    """

    def score(self, request: InferenceRequest, endpoints: EndpointView) -> Sequence[float]:
        """Return the place of each batch between the largest (0) and the smallest (1)."""
        batches = endpoints.running
        largest = max(batches, default=0.0)
        spread = largest - min(batches, default=0.0)
        if not spread:
            return [1.0] * len(batches)
        return [(largest - batch) / spread for batch in batches]
