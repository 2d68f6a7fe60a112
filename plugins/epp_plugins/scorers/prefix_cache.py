"""
Prefer the endpoints that hold the most of the prompt in their KV cache.

What is cached is not computed again: the longer the match, the sooner the first token.
"""

from collections.abc import Sequence

from epp.framework import PREFIX_MATCH, EndpointView, InferenceRequest, Scorer


class PrefixCacheScorer(Scorer):
    """
    The score is the matched fraction of the prompt's blocks.

    It reads the attribute `prefix-match` of a data producer such as `approx-prefix-cache-producer`.
    Without one, or for a prompt shorter than a block, every endpoint scores 0. Use it together with
    a load scorer: alone it sends all requests with one prefix to one endpoint.
    """

    consumes = (PREFIX_MATCH,)

    def score(self, request: InferenceRequest, endpoints: EndpointView) -> Sequence[float]:
        """Return the fraction of the prompt that each endpoint is expected to hold."""
        match = request.attributes.get(PREFIX_MATCH)
        if match is None or match.total_blocks <= 0:
            return [0.0] * len(endpoints)
        total = match.total_blocks
        return [blocks / total for blocks in match.blocks_of(endpoints)]
