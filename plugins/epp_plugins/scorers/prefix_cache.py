"""
Prefer the endpoints that hold the most of the prompt in their KV cache.

What is cached is not computed again: the longer the match, the sooner the first token.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from epp.framework import PREFIX_MATCH, AttributeKey, EndpointView, InferenceRequest, Scorer

PRODUCER = "approx-prefix-cache-producer"
BYTES_PER_TOKEN = 4
LARGEST = 2**31


class PrefixCacheScorer(Scorer):
    """
    The score is the matched fraction of the prompt's blocks.

    With a `matchLengthWeight` w it is w · min(1, matched tokens / `matchLengthScaleTokens`)² +
    (1 - w) · fraction: half of a long prompt saves more than all of a short one.

    It reads the attribute `prefix-match`, which `approx-prefix-cache-producer` writes, or the
    plugin named `prefixMatchInfoProducerName`. Without it, or for a prompt shorter than a block,
    every endpoint scores 0. Use it together with a load scorer: alone it sends all requests with
    one prefix to one endpoint.
    """

    consumes = (PREFIX_MATCH,)

    def __init__(
        self,
        *,
        prefix_match_info_producer_name: str = PRODUCER,
        match_length_weight: float = 0.0,
        match_length_scale_tokens: int = 8192,
    ) -> None:
        if not 0.0 <= match_length_weight <= 1.0:
            message = f"parameters.matchLengthWeight must be from 0 to 1, got {match_length_weight}"
            raise ValueError(message)
        if match_length_weight > 0 and match_length_scale_tokens <= 0:
            message = (
                "parameters.matchLengthScaleTokens must be at least 1 where matchLengthWeight is"
                f" positive, got {match_length_scale_tokens}"
            )
            raise ValueError(message)
        if match_length_scale_tokens > LARGEST:
            message = (
                f"parameters.matchLengthScaleTokens must be at most {LARGEST}, got"
                f" {match_length_scale_tokens}"
            )
            raise ValueError(message)
        name = prefix_match_info_producer_name
        self.producers: Mapping[AttributeKey[Any], str] = (
            {} if name == PRODUCER else {PREFIX_MATCH: name}
        )
        self._weight = match_length_weight
        self._scale = match_length_scale_tokens

    def score(self, request: InferenceRequest, endpoints: EndpointView) -> Sequence[float]:
        """Return the fraction of the prompt that each endpoint is expected to hold."""
        match = request.attributes.get(PREFIX_MATCH)
        if match is None or match.total_blocks <= 0:
            return [0.0] * len(endpoints)
        matched, total = match.blocks_of(endpoints), match.total_blocks
        if not any(matched):
            return [0.0] * len(endpoints)
        if not self._weight:
            return [blocks / total for blocks in matched]
        # Endpoints have few numbers between them: most hold as much as some other does.
        scores = {blocks: self._of(blocks, total, match.block_bytes) for blocks in set(matched)}
        return [scores[blocks] for blocks in matched]

    def _of(self, blocks: int, total: int, block_bytes: int) -> float:
        length = min(1.0, blocks * block_bytes / BYTES_PER_TOKEN / self._scale)
        return self._weight * length**2 + (1 - self._weight) * blocks / total
