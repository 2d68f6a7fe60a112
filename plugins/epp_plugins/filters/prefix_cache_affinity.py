"""
Keep the endpoints that hold most of the prompt, until they are too far behind with their work.

Sticky until saturated: a cached prompt is worth a wait, but not any wait. Within the endpoints that
are left, scorers of load decide.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from epp.framework import (
    INFLIGHT_LOAD,
    PREFIX_MATCH,
    AttributeKey,
    Endpoint,
    EndpointView,
    Filter,
    InferenceRequest,
    PluginContext,
    PrefixMatch,
)

MATCHED_BY = "approx-prefix-cache-producer"
COUNTED_BY = "inflight-load-producer"

LARGEST = 1e9


class PrefixCacheAffinityFilter(Filter):
    """
    Endpoints that hold `affinityThreshold` of the prompt are kept, everybody where none does.

    Stickiness is broken, so that everybody is kept, where the least busy of them would have a first
    token `maxTTFTPenaltyMs` later than the least busy of the others; 0 never breaks it. The time to
    the first token is the uncached tokens in flight over `peakPrefillThroughput`, in tokens a
    second: measure it once, as the tokens of a full step over the time of that step.

    `explorationProbability` keeps everybody for that share of requests. A threshold of 0 or less
    turns the filter off. It is a preference written as a filter, so it never rejects a request.
    """

    def __init__(
        self,
        *,
        context: PluginContext,
        affinity_threshold: float = 0.8,
        exploration_probability: float = 0.0,
        maxTTFTPenaltyMs: float = 18000.0,  # noqa: N803 - the name in YAML, where TTFT is one word
        ttft_source: Literal["prefillThroughput", "latencyPredictor"] = "prefillThroughput",
        peak_prefill_throughput: float = 15928.0,
        prefix_match_info_producer_name: str = MATCHED_BY,
        in_flight_load_producer_name: str = COUNTED_BY,
    ) -> None:
        _check("affinityThreshold", affinity_threshold, -LARGEST, 1.0)
        _check("explorationProbability", exploration_probability, 0.0, 1.0)
        _check("maxTTFTPenaltyMs", maxTTFTPenaltyMs, 0.0, LARGEST)
        _check("peakPrefillThroughput", peak_prefill_throughput, 1e-6, LARGEST)
        if ttft_source != "prefillThroughput":
            message = (
                "parameters.ttftSource must be 'prefillThroughput': this version has no latency"
                f" prediction yet, got {ttft_source!r}"
            )
            raise ValueError(message)
        producers: dict[AttributeKey[Any], str] = {}
        if prefix_match_info_producer_name != MATCHED_BY:
            producers[PREFIX_MATCH] = prefix_match_info_producer_name
        if in_flight_load_producer_name != COUNTED_BY:
            producers[INFLIGHT_LOAD] = in_flight_load_producer_name
        self.producers: Mapping[AttributeKey[Any], str] = producers
        self._threshold = affinity_threshold
        self._exploration = exploration_probability
        self._most_tokens = maxTTFTPenaltyMs / 1000 * peak_prefill_throughput
        self._random = context.random
        self.consumes = (PREFIX_MATCH, INFLIGHT_LOAD) if self._most_tokens else (PREFIX_MATCH,)

    def filter(self, request: InferenceRequest, endpoints: EndpointView) -> Sequence[Endpoint]:
        """Return the endpoints that hold enough of the prompt, or all."""
        match = request.attributes.get(PREFIX_MATCH)
        if match is None or len(endpoints) <= 1 or self._threshold <= 0 or self._explores():
            return endpoints
        sticky = self._sticky(match, endpoints)
        if (
            not sticky
            or len(sticky) == len(endpoints)
            or self._too_late(request, endpoints, sticky)
        ):
            return endpoints
        return [endpoints[at] for at in sticky]

    def _explores(self) -> bool:
        return self._exploration > 0 and self._random.random() < self._exploration

    def _sticky(self, match: PrefixMatch, endpoints: EndpointView) -> list[int]:
        """Return the positions of those that hold enough of the prompt."""
        blocks = match.blocks_of(endpoints)
        least = self._threshold * match.total_blocks
        if match.total_blocks <= 0 or max(blocks) < least:
            return []
        return [at for at, matched in enumerate(blocks) if matched >= least]

    def _too_late(
        self, request: InferenceRequest, endpoints: EndpointView, sticky: Sequence[int]
    ) -> bool:
        load = request.attributes.get(INFLIGHT_LOAD)
        if load is None or not self._most_tokens:
            return False
        tokens = list(load.tokens_of(endpoints))
        least_sticky = min([tokens[at] for at in sticky])
        for at in reversed(sticky):
            del tokens[at]
        return least_sticky - min(tokens) > self._most_tokens


def _check(name: str, value: float, least: float, most: float) -> None:
    if not least <= value <= most:
        message = f"parameters.{name} must be from {least:g} to {most:g}, got {value}"
        raise ValueError(message)
