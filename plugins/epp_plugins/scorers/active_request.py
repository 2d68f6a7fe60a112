"""
Prefer the endpoints with the fewest requests of this picker in flight.

The number is our own and therefore never old: it needs no scrape, and works for endpoints that have
no metrics at all.
"""

from collections.abc import Sequence

from epp.framework import EndpointLoad, EndpointView, InferenceRequest, Scorer

COUNTED_BY = "inflight-load-producer"
"""What the field's picker counts with. Here the framework counts, so no producer is needed."""


class ActiveRequestScorer(Scorer):
    """
    An idle endpoint scores 1; the busiest scores 0, the others in proportion below `maxBusyScore`.

    Idle is who has no more than `idleThreshold` requests in flight. A request counts from the
    choice until its response has ended, whatever ends it. `requestTimeout` is accepted and has no
    effect, as in the field.
    """

    def __init__(
        self,
        *,
        idle_threshold: int = 0,
        max_busy_score: float = 1.0,
        in_flight_load_producer_name: str = COUNTED_BY,
        request_timeout: str = "",
    ) -> None:
        if idle_threshold < 0:
            message = f"parameters.idleThreshold must be 0 or more, got {idle_threshold}"
            raise ValueError(message)
        if not 0.0 <= max_busy_score <= 1.0:
            message = f"parameters.maxBusyScore must be from 0 to 1, got {max_busy_score}"
            raise ValueError(message)
        if in_flight_load_producer_name != COUNTED_BY:
            message = (
                f"parameters.inFlightLoadProducerName must be {COUNTED_BY!r}, the only count there"
                f" is, got {in_flight_load_producer_name!r}"
            )
            raise ValueError(message)
        self._idle = idle_threshold
        self._scale = max_busy_score
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
