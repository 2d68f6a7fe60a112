"""
Prefer the endpoints with few waiting requests, on a scale that does not depend on the others.

The queue is what was scraped, corrected by the requests this picker itself sent and saw end since.
"""

from collections.abc import Sequence

from epp.framework import EndpointView, InferenceRequest, Scorer

DEFAULT_THRESHOLD = 128
LARGEST = 2**31


class LoadAwareScorer(Scorer):
    """
    An empty queue scores 0.5, one of `threshold` requests or more 0, those between in proportion.

    The range ends at 0.5 by design, so that beside an affinity scorer of the same weight a full
    match outweighs any queue. The scale is absolute: queues of three and of four requests score
    nearly alike, whoever else is a candidate. A `threshold` of 0 or less stands for the default.
    """

    def __init__(self, *, threshold: int = DEFAULT_THRESHOLD) -> None:
        if threshold > LARGEST:
            message = f"parameters.threshold must be at most {LARGEST}, got {threshold}"
            raise ValueError(message)
        self._threshold = threshold if threshold > 0 else DEFAULT_THRESHOLD

    def score(self, request: InferenceRequest, endpoints: EndpointView) -> Sequence[float]:
        """Return half the share of the threshold that each queue leaves free."""
        threshold = self._threshold
        step = 0.5 / threshold
        return [0.5 - queue * step if queue < threshold else 0.0 for queue in endpoints.queue]
