"""
Recent decisions: which endpoint the latest requests went to, and the scores that said so.

They answer "why there?" on a debug page, without a log line a request. Keeping one is an append to
a ring; what it means is worked out when somebody looks. A decision holds ids, names and numbers,
and nothing of the request but its id and its model's name, which the caller cuts to a length it
vouches for. It keeps the snapshots of its candidates alive, so the ring is short.
"""

import heapq
import json
from collections import deque
from collections.abc import Callable, Mapping

from epp.framework import Endpoint, ProfileResult, SchedulingResult

MAX_SHOWN_CANDIDATES = 16
"""Of each decision so many candidates are shown, the best ones: a pool may have a thousand."""

MAX_HEADER_CANDIDATES = 4
"""Of a decision in a header, so that it stays below what gateways take for a header."""


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
        self._ring: deque[
            tuple[str, str, SchedulingResult, float, Mapping[str, Mapping[str, float]]]
        ] = deque(maxlen=capacity)
        self._recorded = 0

    def weigh(self, weights: Mapping[str, Mapping[str, float]]) -> None:
        """Take other weights for decisions from now on; those kept so far keep theirs."""
        self._weights = weights

    def record(self, request_id: str, model: str, result: SchedulingResult, at: float) -> None:
        """Keep a decision, made at this time of the clock."""
        self._recorded += 1
        self._ring.append((request_id, model, result, at, self._weights))

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
                        name: explained(one, weights.get(name, {}), at)
                        for name, one in result.profiles.items()
                    },
                }
                for request_id, model, result, at, weights in self._ring
            ],
        }

    def header(self, result: SchedulingResult, at: float) -> str:
        """Return one decision as a header's value: JSON in ASCII, a few candidates long."""
        shown = {
            "primary": result.primary,
            "profiles": {
                name: explained(one, self._weights.get(name, {}), at, limit=MAX_HEADER_CANDIDATES)
                for name, one in result.profiles.items()
            },
        }
        return json.dumps(shown, separators=(",", ":"))


def explained(
    result: ProfileResult,
    weights: Mapping[str, float],
    at: float,
    *,
    limit: int = MAX_SHOWN_CANDIDATES,
) -> dict[str, object]:
    """
    Return what one profile run chose, and the best of what it chose from, best first.

    Each candidate comes with its scores, plain and weighted, and with how old the values were at
    that time that they were made from; None where there were none.
    """
    totals = [0.0] * len(result.candidates)
    for name, column in result.scores.items():
        weight = weights.get(name, 1.0)
        totals = [total + weight * score for total, score in zip(totals, column, strict=True)]
    picked = {one.endpoint.id for one in result.picked}
    # What was picked is among those shown, also where a picker draws lots.
    best = heapq.nlargest(
        limit,
        range(len(totals)),
        key=lambda place: (result.candidates[place].id in picked, totals[place]),
    )
    best.sort(key=lambda place: -totals[place])
    return {
        "picked": [str(one.endpoint.id) for one in result.picked],
        "removed": {
            name: [str(one.id) for one in gone[:limit]] for name, gone in result.removed.items()
        },
        "candidate_count": len(result.candidates),
        "candidates": [
            _candidate(
                result.candidates[place],
                totals[place],
                {name: float(column[place]) for name, column in result.scores.items()},
                weights,
                at,
            )
            for place in best
        ],
    }


def _candidate(
    endpoint: Endpoint,
    total: float,
    scores: Mapping[str, float],
    weights: Mapping[str, float],
    at: float,
) -> dict[str, object]:
    updated = endpoint.metrics.updated_at
    return {
        "endpoint": str(endpoint.id),
        "destination": endpoint.destination,
        "total": total,
        "scores": scores,
        "weighted": {name: weights.get(name, 1.0) * score for name, score in scores.items()},
        "metrics_age_seconds": None if updated is None else at - updated,
        "stale": endpoint.stale,
    }
