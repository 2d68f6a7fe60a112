"""
Pick at random, an endpoint as often as its share of the scores.

It trades a little of the best choice for not sending every request of a moment to one endpoint.
"""

from collections.abc import Sequence
from heapq import nsmallest

from epp.framework import InferenceRequest, Picker, PluginContext, ScoredEndpoint, ScoredView


class WeightedRandomPicker(Picker):
    """
    An endpoint with twice the score is picked twice as often.

    A score of 0 or less, or one that is not a number, is picked only when there is no other; where
    all are such, each is as likely as the others. `maxNumOfEndpoints` above 1 adds fallbacks, drawn
    in the same way from those that remain.
    """

    def __init__(self, *, context: PluginContext, max_num_of_endpoints: int = 1) -> None:
        self._random = context.random
        self._count = max(1, max_num_of_endpoints)

    def pick(self, request: InferenceRequest, scored: ScoredView) -> Sequence[ScoredEndpoint]:
        """Return distinct endpoints, drawn by weight."""
        return nsmallest(self._count, scored, key=self._arrival)

    def _arrival(self, one: ScoredEndpoint) -> tuple[bool, float]:
        """
        Return when this endpoint comes in, in a race where scores are rates.

        The first of exponential clocks is each with a chance in proportion to its rate; it is the
        order of the keys U^(1/score), without their underflow at small scores.
        """
        if one.score > 0.0:
            return False, self._random.expovariate(one.score)
        return True, self._random.random()
