"""
Decide as the field's first picker did: by a chain of filters instead of weighted scores.

For whoever wants to compare old against new, or to move over one step at a time; put a
`random-picker` behind it.
"""

from collections.abc import Callable, Sequence

from epp.framework import (
    Endpoint,
    EndpointView,
    Filter,
    InferenceRequest,
    PluginContext,
)

Kept = Sequence[Endpoint]

LARGEST = 2**31


class FilterChainFilter(Filter):
    """
    Keeps the endpoints that the decision tree of Gateway API Inference Extension 0.3 would.

    Where queues are short (`queueingThresholdLora`), it looks for the adapter first and for the
    shortest queues then, else the other way round; the least KV cache use decides in the end. The
    adapter is sought among those that have it, with the probability `loraAffinityThreshold`, and
    otherwise among those that have room for it. A request of negative priority is dropped (429)
    unless an endpoint has a queue of at most `queueThresholdCritical` and a KV cache use of at most
    `kvCacheThreshold`.
    """

    def __init__(
        self,
        *,
        context: PluginContext,
        queueing_threshold_lora: int = 128,
        lora_affinity_threshold: float = 0.999,
        queue_threshold_critical: int = 5,
        kv_cache_threshold: float = 0.8,
    ) -> None:
        _check("loraAffinityThreshold", lora_affinity_threshold, 1)
        _check("kvCacheThreshold", kv_cache_threshold, 1)
        _check("queueingThresholdLora", queueing_threshold_lora)
        _check("queueThresholdCritical", queue_threshold_critical)
        self._random = context.random
        self._lora_queue = queueing_threshold_lora
        self._affinity = lora_affinity_threshold
        self._critical_queue = queue_threshold_critical
        self._critical_kv = kv_cache_threshold

    def filter(self, request: InferenceRequest, endpoints: EndpointView) -> Kept:
        """Return the endpoints at the end of the chain, in their order; none drops the request."""
        pool = EndpointView(endpoints)
        if request.priority < 0:
            pool = _where(
                pool,
                lambda one, at: (
                    one.queue[at] <= self._critical_queue and one.kv_usage[at] <= self._critical_kv
                ),
            )
            if not pool:
                return []
        quick = _where(pool, lambda one, at: one.queue[at] <= self._lora_queue)
        if quick:
            pool = _least(self._with_adapter(request.model, quick), "queue")
        else:
            pool = self._with_adapter(request.model, _least(pool, "queue"))
        return _least(pool, "kv_usage").rows

    def _with_adapter(self, model: str, pool: EndpointView) -> EndpointView:
        """Return those that have the adapter or, once in a while, those that have room for it."""
        having = [one for one in pool if model in _adapters(one)]
        roomy = [one for one in pool if len(_adapters(one)) < one.metrics.max_adapters]
        roomy = [one for one in roomy if model not in _adapters(one)]
        if having and roomy:
            return EndpointView(having if self._random.random() < self._affinity else roomy)
        return EndpointView(having or roomy or pool)


def _adapters(endpoint: Endpoint) -> frozenset[str]:
    return endpoint.metrics.running_adapters | endpoint.metrics.waiting_adapters


def _where(pool: EndpointView, holds: Callable[[EndpointView, int], bool]) -> EndpointView:
    return EndpointView([one for at, one in enumerate(pool) if holds(pool, at)])


def _least(pool: EndpointView, column: str) -> EndpointView:
    """Return those in the lowest of as many equal ranges as there are endpoints."""
    values: Sequence[float] = getattr(pool, column)
    if not values:
        return pool
    least = min(values)
    bound = least + (max(values) - least) / len(values)
    return _where(pool, lambda one, at: getattr(one, column)[at] <= bound)


def _check(name: str, value: float, most: float = LARGEST) -> None:
    if not 0 <= value <= most:
        message = f"parameters.{name} must be from 0 to {most}, got {value}"
        raise ValueError(message)
