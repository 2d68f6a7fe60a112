"""
Prefer the endpoints with the shortest waiting queues.

The queue is what was scraped, corrected by the requests this picker itself sent and saw end since,
so that a burst between two scrapes spreads.
"""

from collections.abc import Sequence

from epp.framework import EndpointView, InferenceRequest, Scorer


class QueueScorer(Scorer):
    """
    The shortest queue scores 1, the longest 0, the others in proportion between them.

    Equal queues score 1 everywhere and leave the choice to other scorers. The scale is that of the
    candidates: where queues are short, a difference of one request already spans it, so give this
    scorer a weight that the others can answer.
    """

    def score(self, request: InferenceRequest, endpoints: EndpointView) -> Sequence[float]:
        """Return the place of each queue between the longest (0) and the shortest (1)."""
        queues = endpoints.queue
        longest = max(queues, default=0.0)
        spread = longest - min(queues, default=0.0)
        if not spread:
            return [1.0] * len(queues)
        return [(longest - queue) / spread for queue in queues]
