"""
Prefer endpoints that serve the request's adapter, then those with room for it.

Loading an adapter costs time, and an engine whose adapter slots are taken makes the request wait
until one is free.
"""

from collections.abc import Sequence

from epp.framework import Endpoint, EndpointView, InferenceRequest, Scorer


class LoRAAffinityScorer(Scorer):
    """
    Four levels, by the adapters an endpoint runs and has waiting.

    `activeScore`: it runs the adapter that the model name selects. `roomScore`: it has a slot free,
    an adapter that both runs and waits taking one slot. `waitingScore`: its slots are taken, but
    requests for the adapter wait there already. `fullScore`: none of these.

    The base model is nobody's adapter, so its requests only see room or none; where no endpoint
    reports adapters at all, everyone scores alike. What a stale endpoint once reported says nothing
    now: it scores as one with room, yet never above the best of those that are known.
    """

    def __init__(
        self,
        *,
        active_score: float = 1.0,
        room_score: float = 0.8,
        waiting_score: float = 0.6,
        full_score: float = 0.0,
    ) -> None:
        self._active = _level("activeScore", active_score)
        self._room = _level("roomScore", room_score)
        self._waiting = _level("waitingScore", waiting_score)
        self._full = _level("fullScore", full_score)

        self._table = _Table((), 0.0, 0.0)

    def score(self, request: InferenceRequest, endpoints: EndpointView) -> Sequence[float]:
        """Return the level of each endpoint for the request's model."""
        if not endpoints.reports_adapters:
            return [self._full] * len(endpoints)
        if self._table.rows is not endpoints.rows:
            self._table = _Table(endpoints.rows, self._room, self._full)
        table = self._table
        scores = table.levels.copy()
        for at in table.waiting.get(request.model, ()):
            if not table.has_room[at]:
                scores[at] = self._waiting
        for at in table.running.get(request.model, ()):
            scores[at] = self._active
        if stale := set(endpoints.stale):
            known = (score for at, score in enumerate(scores) if at not in stale)
            neutral = min(self._room, max(known, default=self._room))
            for at in stale:
                scores[at] = neutral
        return scores


class _Table:
    """Who runs and awaits which adapter, and who has room: made once for a pool as scraped."""

    def __init__(self, rows: tuple[Endpoint, ...], room: float, full: float) -> None:
        self.rows = rows
        self.running: dict[str, list[int]] = {}
        self.waiting: dict[str, list[int]] = {}
        self.has_room: list[bool] = []
        for at, metrics in enumerate([endpoint.metrics for endpoint in rows]):
            adapters = metrics.running_adapters | metrics.waiting_adapters
            self.has_room.append(len(adapters) < metrics.max_adapters)
            for adapter in metrics.running_adapters:
                self.running.setdefault(adapter, []).append(at)
            for adapter in metrics.waiting_adapters:
                self.waiting.setdefault(adapter, []).append(at)
        self.levels = [room if has_room else full for has_room in self.has_room]


def _level(name: str, value: float) -> float:
    if not 0.0 <= value <= 1.0:
        message = f"parameters.{name} must be from 0 to 1, got {value}"
        raise ValueError(message)
    return value
