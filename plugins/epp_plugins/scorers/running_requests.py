"""
Prefer the endpoints that run the fewest requests.

The number is what was scraped, the requests in the engine's current batch, corrected by those that
this picker itself sent and saw end since.
"""

from collections.abc import Sequence

from epp.framework import EndpointView, InferenceRequest, Scorer

LARGEST_SCALE = 1e9


class RunningRequestsScorer(Scorer):
    """
    The smallest batch scores 1, the largest 0, the others in proportion between them.

    Equal batches score 1 everywhere. Where the largest exceeds the smallest by less than `scale`
    requests, that many are taken for the whole way from 1 to 0, so that one more or less does not
    outweigh every other scorer. Use it beside a queue scorer: it still tells endpoints apart while
    nobody has to wait.
    """

    def __init__(self, *, scale: float = 10.0) -> None:
        if not 0.0 <= scale <= LARGEST_SCALE:
            message = f"parameters.scale must be from 0 to {LARGEST_SCALE:g}, got {scale}"
            raise ValueError(message)
        self._scale = scale

    def score(self, request: InferenceRequest, endpoints: EndpointView) -> Sequence[float]:
        """Return the place of each batch between the largest (0) and the smallest (1)."""
        batches = endpoints.running
        largest = max(batches, default=0.0)
        spread = largest - min(batches, default=0.0)
        if not spread:
            return [1.0] * len(batches)
        if spread < self._scale:
            largest += self._scale - spread
            spread = self._scale
        return [(largest - batch) / spread for batch in batches]
