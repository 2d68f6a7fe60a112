"""
Prefer the endpoints with the fewest prompt tokens still to compute.

Requests differ in size by orders of magnitude: one long prompt keeps an engine busier than a dozen
short ones.
"""

from collections.abc import Mapping, Sequence
from operator import add
from typing import Any

from epp.framework import INFLIGHT_LOAD, AttributeKey, EndpointView, InferenceRequest, Scorer

COUNTED_BY = "inflight-load-producer"
DEFAULT_THRESHOLD_TOKENS = 128 * 32 * 1024
LARGEST = 2**31


class TokenLoadScorer(Scorer):
    """
    The score is the share of `queueThresholdTokens` that is free, with this request on top.

    What counts is the uncached tokens that this picker has in flight to an endpoint, and those that
    this request would add there, by the attribute `inflight-load`; without it everyone scores 1.
    The scale is absolute, so set the threshold to what an endpoint may have waiting at most; one
    of 0 or less stands for the default.
    """

    consumes = (INFLIGHT_LOAD,)

    def __init__(
        self,
        *,
        queue_threshold_tokens: int = DEFAULT_THRESHOLD_TOKENS,
        in_flight_load_producer_name: str = COUNTED_BY,
    ) -> None:
        threshold = queue_threshold_tokens
        if threshold > LARGEST:
            message = f"parameters.queueThresholdTokens must be at most {LARGEST}, got {threshold}"
            raise ValueError(message)
        name = in_flight_load_producer_name
        self.producers: Mapping[AttributeKey[Any], str] = (
            {} if name == COUNTED_BY else {INFLIGHT_LOAD: name}
        )
        self._threshold = threshold if threshold > 0 else DEFAULT_THRESHOLD_TOKENS

    def score(self, request: InferenceRequest, endpoints: EndpointView) -> Sequence[float]:
        """Return the share of the threshold that is free at each endpoint."""
        load = request.attributes.get(INFLIGHT_LOAD)
        if load is None:
            return [1.0] * len(endpoints)
        threshold = self._threshold
        step = 1.0 / threshold
        ahead = list(map(add, load.tokens_of(endpoints), load.uncached_tokens_of(endpoints)))
        if max(ahead, default=0) < threshold and min(ahead, default=0) >= 0:
            return [1.0 - tokens * step for tokens in ahead]
        return [1.0 - min(max(tokens, 0), threshold) * step for tokens in ahead]
