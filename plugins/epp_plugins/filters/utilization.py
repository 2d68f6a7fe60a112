"""
Keep the endpoints that are not too busy, by limits on what they report and what we sent them.

A limit here is a constraint: an endpoint beyond it gets no request, however well it suits. Where
busy endpoints should only be less attractive, use a scorer.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import compress
from operator import and_
from typing import Any, Literal

import msgspec

from epp.framework import (
    INFLIGHT_LOAD,
    AttributeKey,
    Endpoint,
    EndpointView,
    Filter,
    InferenceRequest,
)

COUNTED_BY = "inflight-load-producer"
"""What the field's picker counts with. Here the framework counts, so no producer is needed."""


class Condition(
    msgspec.Struct, forbid_unknown_fields=True, frozen=True, rename="camel", kw_only=True
):
    """
    One limit: endpoints whose `metric` is above `maxValue` are removed.

    `active-requests` are this picker's own in flight, `waiting-queue` is corrected by those sent
    and ended since the scrape, `kv-cache-utilization` is a fraction.
    """

    metric: Literal["active-requests", "running-requests", "waiting-queue", "kv-cache-utilization"]
    max_value: float


class UtilizationFilter(Filter):
    """
    An endpoint is kept where every one of `conditions` holds: the metric is at most `maxValue`.

    What is not known of an endpoint is taken for the mean of the others. Where nobody is left the
    request is rejected, unless `fallbackOnEmpty` says to keep everybody then.
    """

    def __init__(
        self,
        *,
        conditions: list[Condition],
        fallback_on_empty: bool = False,
        in_flight_load_producer_name: str = COUNTED_BY,
    ) -> None:
        if not conditions:
            raise ValueError("parameters.conditions must not be empty")
        for at, one in enumerate(conditions):
            _check(one, f"parameters.conditions[{at}].maxValue")
        name = in_flight_load_producer_name
        self.producers: Mapping[AttributeKey[Any], str] = (
            {} if name == COUNTED_BY else {INFLIGHT_LOAD: name}
        )
        self._limits: Mapping[str, float] = _strictest(conditions)
        self._fallback = fallback_on_empty

    def filter(self, request: InferenceRequest, endpoints: EndpointView) -> Sequence[Endpoint]:
        """Return the endpoints within all limits."""
        within: list[bool] | None = None
        for metric, limit in self._limits.items():
            column = _column(metric, endpoints)
            if max(column, default=0.0) > limit:
                holds = [value <= limit for value in column]
                within = holds if within is None else list(map(and_, within, holds))
        if within is None:
            return endpoints
        kept = list(compress(endpoints, within))
        return endpoints if self._fallback and not kept else kept


def _column(metric: str, endpoints: EndpointView) -> Sequence[float]:
    if metric == "active-requests":
        return [one.load.in_flight for one in endpoints.rows]
    if metric == "running-requests":
        return endpoints.running
    if metric == "waiting-queue":
        return endpoints.queue
    return endpoints.kv_usage


def _strictest(conditions: Sequence[Condition]) -> dict[str, float]:
    """Return the least limit of each metric."""
    limits: dict[str, float] = {}
    for one in conditions:
        limits[one.metric] = min(one.max_value, limits.get(one.metric, math.inf))
    return limits


def _check(condition: Condition, place: str) -> None:
    """Raise ValueError where the limit makes no sense."""
    if not 0.0 <= condition.max_value < math.inf:
        message = f"{place} must be a number of 0 or more, got {condition.max_value}"
        raise ValueError(message)
    if condition.metric == "kv-cache-utilization" and condition.max_value > 1.0:
        message = f"{place} must be at most 1 for a fraction, got {condition.max_value}"
        raise ValueError(message)
