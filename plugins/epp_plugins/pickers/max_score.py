"""
Pick the endpoint with the highest score, at random among equals.

Equals are common: in an idle pool all endpoints score alike, and a picker that then took the first
would send it everything.
"""

import math
from collections.abc import Sequence

from epp.framework import InferenceRequest, Picker, PluginContext, ScoredEndpoint, ScoredView


class MaxScorePicker(Picker):
    """
    The best score wins; each of several best is as likely as the others.

    `maxNumOfEndpoints` above 1 adds the next best as fallbacks, in the order of their scores. A
    score that is not a number counts as the worst.
    """

    def __init__(self, *, context: PluginContext, max_num_of_endpoints: int = 1) -> None:
        self._random = context.random
        self._count = max(1, max_num_of_endpoints)

    def pick(self, request: InferenceRequest, scored: ScoredView) -> Sequence[ScoredEndpoint]:
        """Return the best ones, best first."""
        scores = scored.scores
        if math.isnan(sum(scores)):
            scores = [-math.inf if math.isnan(score) else score for score in scores]
        if self._count == 1:
            # The usual case on the request path: no sort where one is wanted.
            best = max(scores)
            at = scores.index(best)
            ties = scores.count(best)
            if ties > 1:
                for _ in range(self._random.randrange(ties)):
                    at = scores.index(best, at + 1)
            return [scored[at]]
        order = self._random.sample(range(len(scores)), len(scores))
        order.sort(key=scores.__getitem__, reverse=True)
        return [scored[at] for at in order[: self._count]]
