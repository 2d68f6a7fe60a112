"""
Recent decisions: which endpoint the latest requests went to, and the scores that said so.

They answer "why there?" on a debug page, without a log line a request. Keeping one is an append to
a ring; what it means is worked out when somebody looks. A decision holds ids, names and numbers,
and nothing of the request but its id and its model's name, which the caller cuts to a length it
vouches for. It keeps the snapshots of its candidates alive, so the ring is short.
"""

import heapq
from collections import deque
from collections.abc import Callable, Mapping

from epp.framework import Endpoint, ProfileResult, SchedulingResult

MAX_SHOWN_CANDIDATES = 16
"""Of each decision so many candidates are shown, the best ones: a pool may have a thousand."""


class RecentDecisions:
    """The last `capacity` decisions; the oldest makes room for the newest."""

    def __init__(
        self,
        *,
        weights: Mapping[str, Mapping[str, float]],
        clock: Callable[[], float],
        capacity: int = 100,
    ) -> None:
        """
        `weights` gives the weight of each scorer, by profile and name: results carry plain scores.
        """
        self._weights = weights
        self._clock = clock
        self._ring: deque[tuple[str, str, SchedulingResult, float]] = deque(maxlen=capacity)
        self._recorded = 0

    def record(self, request_id: str, model: str, result: SchedulingResult, at: float) -> None:
        """Keep a decision, made at this time of the clock."""
        self._recorded += 1
        self._ring.append((request_id, model, result, at))

    def dump(self) -> Mapping[str, object]:
        """
        Return the decisions as plain values, oldest first, and how many there ever were.

        From `recorded` a reader who comes again knows how many are new, and whether it missed some.
        """
        now = self._clock()
        return {
            "recorded": self._recorded,
            "weights": self._weights,
            "decisions": [
                {
                    "request_id": request_id,
                    "model": model,
                    "age_seconds": now - at,
                    "endpoint": str(result.endpoint.id),
                    "destination": result.endpoint.destination,
                    "primary": result.primary,
                    "profiles": {
                        name: _profile(one, self._weights.get(name, {}))
                        for name, one in result.profiles.items()
                    },
                }
                for request_id, model, result, at in self._ring
            ],
        }


def _profile(result: ProfileResult, weights: Mapping[str, float]) -> dict[str, object]:
    """What one profile run chose, and the best of what it chose from, best first."""
    totals = [0.0] * len(result.candidates)
    for name, column in result.scores.items():
        weight = weights.get(name, 1.0)
        totals = [total + weight * score for total, score in zip(totals, column, strict=True)]
    picked = {one.endpoint.id for one in result.picked}
    # What was picked is among those shown, also where a picker draws lots.
    best = heapq.nlargest(
        MAX_SHOWN_CANDIDATES,
        range(len(totals)),
        key=lambda at: (result.candidates[at].id in picked, totals[at]),
    )
    best.sort(key=lambda at: -totals[at])
    return {
        "picked": [str(one.endpoint.id) for one in result.picked],
        "candidate_count": len(result.candidates),
        "candidates": [
            _candidate(
                result.candidates[at],
                totals[at],
                {name: float(column[at]) for name, column in result.scores.items()},
            )
            for at in best
        ],
    }


def _candidate(endpoint: Endpoint, total: float, scores: Mapping[str, float]) -> dict[str, object]:
    return {
        "endpoint": str(endpoint.id),
        "destination": endpoint.destination,
        "total": total,
        "scores": scores,
    }
