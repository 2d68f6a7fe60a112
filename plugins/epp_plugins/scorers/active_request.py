"""
Prefer the endpoints with the fewest requests of this picker in flight.

The number is our own and therefore never old: it needs no scrape, and works for endpoints that have
no metrics at all.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from epp.framework import (
    INFLIGHT_LOAD,
    AttributeKey,
    EndpointLoad,
    EndpointView,
    InferenceRequest,
    Scorer,
)

COUNTED_BY = "inflight-load-producer"
"""What the field's picker counts with. Here the framework counts, so no producer is needed."""

LARGEST = 2**31


class ActiveRequestScorer(Scorer):
    """
    An idle endpoint scores 1; the busiest scores 0, the others in proportion below `maxBusyScore`.

    Idle is who has no more than `idleThreshold` requests in flight. A request counts from the
    choice until its response has ended, whatever ends it. A `maxBusyScore` that is not from 0 to 1
    counts as 1, and `requestTimeout` has no effect, both as in the field.
    """

    def __init__(
        self,
        *,
        idle_threshold: int = 0,
        max_busy_score: float = 1.0,
        in_flight_load_producer_name: str = COUNTED_BY,
        request_timeout: str = "",
    ) -> None:
        if not 0 <= idle_threshold <= LARGEST:
            message = f"parameters.idleThreshold must be from 0 to {LARGEST}, got {idle_threshold}"
            raise ValueError(message)
        name = in_flight_load_producer_name
        self.producers: Mapping[AttributeKey[Any], str] = (
            {} if name == COUNTED_BY else {INFLIGHT_LOAD: name}
        )
        self._idle = idle_threshold
        self._scale = max_busy_score if 0.0 <= max_busy_score <= 1.0 else 1.0
        self._rows: Sequence[object] | None = None
        self._loads: list[EndpointLoad] = []

    def score(self, request: InferenceRequest, endpoints: EndpointView) -> Sequence[float]:
        """Return the place of each count between the highest (0) and none (`maxBusyScore`)."""
        if endpoints.rows is not self._rows:
            self._rows, self._loads = endpoints.rows, [one.load for one in endpoints]
        counts = [load.in_flight for load in self._loads]
        most, idle = max(counts, default=0), self._idle
        if most <= idle:
            return [1.0] * len(counts)
        step = self._scale / most
        # Counts are few and alike: score each once.
        scores = {one: 1.0 if one <= idle else (most - one) * step for one in set(counts)}
        return [scores[count] for count in counts]
