"""
Pick any endpoint, whatever the scores say.

The baseline that a routing policy has to beat.
"""

from collections.abc import Sequence

from epp.framework import InferenceRequest, Picker, PluginContext, ScoredEndpoint, ScoredView


class RandomPicker(Picker):
    """
    Every candidate is as likely as the others; scores are ignored.

    `maxNumOfEndpoints` above 1 adds further ones as fallbacks, equally at random.
    """

    def __init__(self, *, context: PluginContext, max_num_of_endpoints: int = 1) -> None:
        self._random = context.random
        self._count = max(1, max_num_of_endpoints)

    def pick(self, request: InferenceRequest, scored: ScoredView) -> Sequence[ScoredEndpoint]:
        """Return distinct endpoints in random order."""
        return self._random.sample(scored, min(self._count, len(scored)))
