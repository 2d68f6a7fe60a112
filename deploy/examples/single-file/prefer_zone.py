"""Prefer the endpoints of one zone."""

from collections.abc import Sequence

from epp.framework import EndpointView, InferenceRequest


class ZoneScorer:
    """Scores 1 where the label `zone` is the one given, else 0."""

    def __init__(self, *, zone: str) -> None:
        self._zone = zone

    def score(self, request: InferenceRequest, endpoints: EndpointView) -> Sequence[float]:
        """Return one score an endpoint, in their order."""
        return [float(one.labels.get("zone") == self._zone) for one in endpoints]
