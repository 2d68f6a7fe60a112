"""
The queue of requests that wait for a seat in the engine: first come, first served.

Entries are found by their id, so that an aborted request leaves at once however long the queue is.
"""

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Generic, Protocol, TypeVar


class Queued(Protocol):
    """What can wait in the queue: anything with an id of its own."""

    @property
    def id(self) -> str:
        """The id, unique in the engine."""
        ...


T = TypeVar("T", bound=Queued)


class RequestQueue(Generic[T]):
    """Who waits, in the order in which they will be looked at."""

    def __init__(self) -> None:
        self._entries: OrderedDict[str, T] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[T]:
        return iter(self._entries.values())

    def add(self, entry: T) -> None:
        """Put a new entry behind all others."""
        self._entries[entry.id] = entry

    def put_back(self, entries: Sequence[T]) -> None:
        """Put entries before all others, in their given order: they had their turn before."""
        for entry in reversed(entries):
            self._entries[entry.id] = entry
            self._entries.move_to_end(entry.id, last=False)

    def pop(self) -> T:
        """Take the first entry out."""
        return self._entries.popitem(last=False)[1]

    def remove(self, request_id: str) -> T | None:
        """Take an entry out, wherever it stands; None where it does not wait here."""
        return self._entries.pop(request_id, None)
