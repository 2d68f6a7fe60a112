"""
The queues of requests that wait for a seat in the engine.

Entries are found by their id, so that an aborted request leaves at once however long the queue is.
Whoever is passed over stays where it is: the scheduler looks along the queue and takes out only
those that it admits.
"""

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Protocol

from epp.simulator.engine.policies import Rank
from epp.simulator.engine.request import ActiveRequest


class RequestQueue(Protocol):
    """Who waits, in the order in which they will be looked at."""

    def __len__(self) -> int:
        """Return how many wait."""
        ...

    def __iter__(self) -> Iterator[ActiveRequest]:
        """Yield them in their order; the queue must not change meanwhile."""
        ...

    def add(self, request: ActiveRequest, now: float) -> None:
        """Let a new request wait."""
        ...

    def put_back(self, request: ActiveRequest, now: float) -> None:
        """Let a request wait that had a seat."""
        ...

    def remove(self, request_id: str) -> ActiveRequest | None:
        """Take a request out, wherever it stands; None where it does not wait here."""
        ...

    def refresh(self, now: float) -> None:
        """Bring the order up to date where it changes with time."""
        ...


class ArrivalQueue:
    """First come, first served; who had a seat comes before all others."""

    def __init__(self) -> None:
        self._entries: OrderedDict[str, ActiveRequest] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[ActiveRequest]:
        return iter(self._entries.values())

    def add(self, request: ActiveRequest, now: float) -> None:
        """Put a new request behind all others."""
        self._entries[request.id] = request

    def put_back(self, request: ActiveRequest, now: float) -> None:
        """Put a request before all others."""
        self._entries[request.id] = request
        self._entries.move_to_end(request.id, last=False)

    def remove(self, request_id: str) -> ActiveRequest | None:
        """Take a request out, wherever it stands; None where it does not wait here."""
        return self._entries.pop(request_id, None)

    def refresh(self, now: float) -> None:
        """Do nothing: the order of arrival does not change."""


class RankedQueue:
    """The most urgent first: by rank, then by id."""

    def __init__(self, rank: Callable[[ActiveRequest, float], Rank], *, dynamic: bool) -> None:
        self._rank = rank
        self._dynamic = dynamic
        self._keys: dict[str, tuple[Rank, str]] = {}
        self._order: list[tuple[Rank, str]] = []
        self._entries: dict[str, ActiveRequest] = {}

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[ActiveRequest]:
        entries = self._entries
        return (entries[request_id] for _, request_id in self._order)

    def add(self, request: ActiveRequest, now: float) -> None:
        """Put a request where its rank puts it."""
        key = (self._rank(request, now), request.id)
        self._entries[request.id] = request
        self._keys[request.id] = key
        insort(self._order, key)

    put_back = add

    def remove(self, request_id: str) -> ActiveRequest | None:
        """Take a request out, wherever it stands; None where it does not wait here."""
        request = self._entries.pop(request_id, None)
        if request is not None:
            del self._order[bisect_left(self._order, self._keys.pop(request_id))]
        return request

    def refresh(self, now: float) -> None:
        """Rank all anew, if ranks change with time."""
        if self._dynamic and self._order:
            entries = self._entries
            self._keys = {one: (self._rank(entries[one], now), one) for one in entries}
            self._order = sorted(self._keys.values())
