"""
Endpoints: where a model is served, what was last scraped there, and views of many at once.

Endpoints are frozen snapshots, replaced and never edited; the one live number is the count of our
own requests in flight (`EndpointLoad`), which all snapshots of an endpoint share.

Scraped values are always a little old. `Endpoint.queue` and `Endpoint.running` correct the scraped
numbers by what this picker itself sent and saw finish since that scrape, so that a burst between
two scrapes does not fall on one endpoint. An endpoint that was never scraped, or not lately, has
no values at all, and one whose page lacks a signal has not that one; `EndpointView` gives it the
mean of those that have, so that it is neither the favourite nor left out.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import overload

KEPT_CHANGES = 1024
"""Changes of load that are remembered: more than there are requests between two scrapes."""


@dataclass(frozen=True, slots=True, order=True)
class EndpointId:
    """The name of an endpoint, stable over changes of its address."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True, slots=True)
class EndpointMetrics:
    """
    What the last successful scrape of an endpoint said.

    `missing` names the signals that the scrape lacked: what stands here of them is older, or 0.
    `kv_usage` is a fraction in [0, 1]; `max_adapters` 0 means unknown; `block_size` is in tokens,
    and 0, as `num_blocks` 0, means unknown. `base_models` are the names of the model that is served
    without an adapter, as far as the page tells them. `updated_at` is the loop time of the scrape
    in seconds, None before the first; `in_flight_at_update` is our own count of requests at that
    moment.
    """

    waiting: int = 0
    running: int = 0
    kv_usage: float = 0.0
    running_adapters: frozenset[str] = frozenset()
    waiting_adapters: frozenset[str] = frozenset()
    max_adapters: int = 0
    base_models: frozenset[str] = frozenset()
    block_size: int = 0
    num_blocks: int = 0
    updated_at: float | None = None
    in_flight_at_update: int = 0
    missing: frozenset[str] = frozenset()


class LoadChanges:
    """
    Which counts of requests in flight changed, in order: a reader takes in what it has not seen.

    A request changes one count, and a column of a thousand is then brought up to date and not made
    anew. Only the last changes are kept; a reader that comes later has to start afresh.
    """

    __slots__ = ("_first", "_loads")

    def __init__(self) -> None:
        self._first = 0
        self._loads: list[EndpointLoad] = []

    @property
    def position(self) -> int:
        """How many changes there have been."""
        return self._first + len(self._loads)

    def add(self, load: "EndpointLoad") -> None:
        """Note a change."""
        self._loads.append(load)
        if len(self._loads) >= 2 * KEPT_CHANGES:
            del self._loads[:KEPT_CHANGES]
            self._first += KEPT_CHANGES

    def since(self, position: int) -> "Sequence[EndpointLoad] | None":
        """Return those that changed since a position; None where that is too long ago."""
        return self._loads[position - self._first :] if position >= self._first else None


class EndpointLoad:
    """
    Our own requests on one endpoint: how many are open now.

    Kept by the framework alone. It belongs to one life of an endpoint: one that leaves and returns
    starts with a new count, so that requests of its earlier life can never make it negative. The
    loads of one pool share the list of their changes.
    """

    __slots__ = ("_in_flight", "changes")

    def __init__(self, changes: LoadChanges | None = None) -> None:
        self._in_flight = 0
        self.changes = LoadChanges() if changes is None else changes

    @property
    def in_flight(self) -> int:
        """How many of our requests are open there."""
        return self._in_flight

    @in_flight.setter
    def in_flight(self, count: int) -> None:
        self._in_flight = count
        self.changes.add(self)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """
    One address and port that serves the model.

    `destination` is `address:port` as a gateway wants it, with IPv6 in brackets. `stale` says that
    `metrics` is missing or too old to be trusted.
    """

    id: EndpointId
    address: str
    port: int
    labels: Mapping[str, str] = field(default_factory=dict)
    metrics: EndpointMetrics = EndpointMetrics()
    stale: bool = True
    load: EndpointLoad = field(default_factory=EndpointLoad, compare=False)
    destination: str = field(init=False)

    def __post_init__(self) -> None:
        host = f"[{self.address}]" if ":" in self.address else self.address
        object.__setattr__(self, "destination", f"{host}:{self.port}")

    @property
    def queue(self) -> int:
        """Waiting requests as scraped, plus what we sent and less what we saw end since then."""
        metrics = self.metrics
        return max(0, metrics.waiting + self.load.in_flight - metrics.in_flight_at_update)

    @property
    def running(self) -> int:
        """Running requests as scraped, corrected like the queue."""
        metrics = self.metrics
        return max(0, metrics.running + self.load.in_flight - metrics.in_flight_at_update)


class _Signals:
    """The columns that are the same for as long as the endpoints' snapshots are."""

    def __init__(self, rows: tuple[Endpoint, ...]) -> None:
        self._rows = rows

    @property
    def rows(self) -> tuple[Endpoint, ...]:
        return self._rows

    @cached_property
    def stale(self) -> list[int]:
        return [at for at, endpoint in enumerate(self._rows) if endpoint.stale]

    @cached_property
    def kv_usage(self) -> list[float]:
        return self.filled("kv_usage", [one.metrics.kv_usage for one in self._rows])

    @cached_property
    def reports_adapters(self) -> bool:
        return any(
            metrics.max_adapters or metrics.running_adapters or metrics.waiting_adapters
            for metrics in [endpoint.metrics for endpoint in self._rows]
        )

    @cached_property
    def base_models(self) -> frozenset[str]:
        # Most pools serve one model, so the union is one of few sets that are equal.
        distinct = {endpoint.metrics.base_models for endpoint in self._rows}
        return frozenset().union(*distinct)

    @cached_property
    def waiting(self) -> "_LiveColumn":
        return _LiveColumn(self, "waiting", [one.metrics.waiting for one in self._rows])

    @cached_property
    def running(self) -> "_LiveColumn":
        return _LiveColumn(self, "running", [one.metrics.running for one in self._rows])

    @cached_property
    def places(self) -> dict[EndpointLoad, int]:
        return {one.load: at for at, one in enumerate(self._rows)}

    @cached_property
    def changes(self) -> LoadChanges | None:
        """The list of changes that all rows share; None where they do not."""
        lists = {id(one.load.changes): one.load.changes for one in self._rows}
        return next(iter(lists.values())) if len(lists) == 1 else None

    @cached_property
    def _missing(self) -> list[tuple[int, frozenset[str]]]:
        return [
            (at, one.metrics.missing) for at, one in enumerate(self._rows) if one.metrics.missing
        ]

    def unknown(self, signal: str) -> list[int]:
        """Return where a signal is not known: the endpoint is stale, or its page lacks it."""
        if not self._missing:
            return self.stale
        lacking = [at for at, missing in self._missing if signal in missing]
        return sorted({*self.stale, *lacking})

    def filled(self, signal: str, column: list[float]) -> list[float]:
        """Put the mean of the known values where the signal is not known."""
        unknown = self.unknown(signal)
        if unknown:
            known = len(column) - len(unknown)
            mean = (sum(column) - sum(column[at] for at in unknown)) / known if known else 0.0
            for at in unknown:
                column[at] = mean
        return column


class _LiveColumn:
    """A scraped number, corrected by what we sent and saw end since: it changes between scrapes."""

    def __init__(self, signals: _Signals, signal: str, scraped: Sequence[int]) -> None:
        self._signals = signals
        self._signal = signal
        self._rows = rows = signals.rows
        self._base = [
            number - one.metrics.in_flight_at_update
            for number, one in zip(scraped, rows, strict=True)
        ]
        self._column: list[float] = []
        self._seen = -1
        """Up to which change of load the column is; -1 before there is one."""

    def now(self) -> list[float]:
        """Return the column as it is now; a list that was returned is not changed any more."""
        changes = self._signals.changes
        changed = changes.since(self._seen) if changes is not None else None
        if changed is None or self._signals.unknown(self._signal):
            self._column = self._whole()
        elif changed:
            column = self._column = self._column.copy()
            base, places = self._base, self._signals.places
            for load in changed:
                at = places.get(load)
                if at is not None:
                    number = base[at] + load.in_flight
                    column[at] = number if number > 0 else 0
        if changes is not None:
            self._seen = changes.position
        return self._column

    def _whole(self) -> list[float]:
        column: list[float] = [
            number if (number := base + one.load.in_flight) > 0 else 0
            for base, one in zip(self._base, self._rows, strict=True)
        ]
        column = self._signals.filled(self._signal, column)
        for at in self._signals.unknown(self._signal):
            # Our own come on top of the mean, or a stale endpoint would take a whole burst.
            column[at] += self._rows[at].load.in_flight
        return column


class EndpointView(Sequence[Endpoint]):
    """
    Candidates as rows (it is a sequence of Endpoint) and as columns (one list per signal).

    Columns are in the order of the rows, computed when first asked for, and must not be changed.
    In a column the mean of the known values stands for an endpoint that is stale, or whose metrics
    lack the signal.
    """

    __slots__ = ("_queue", "_rows", "_running", "_signals")

    def __init__(self, rows: Sequence[Endpoint], signals: _Signals | None = None) -> None:
        self._rows = tuple(rows)
        self._signals = signals or _Signals(self._rows)
        self._queue: list[float] | None = None
        self._running: list[float] | None = None

    def over(self, rows: Sequence[Endpoint]) -> "EndpointView":
        """Return a new view of the rows; if they are this one's, it has its scraped columns."""
        return EndpointView(rows, self._signals if rows is self._rows else None)

    @overload
    def __getitem__(self, index: int) -> Endpoint: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Endpoint]: ...
    def __getitem__(self, index: int | slice) -> Endpoint | Sequence[Endpoint]:
        return self._rows[index]

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Endpoint]:
        return iter(self._rows)

    @property
    def rows(self) -> tuple[Endpoint, ...]:
        """The endpoints; the same tuple for every view of a pool that did not change."""
        return self._rows

    @property
    def stale(self) -> Sequence[int]:
        """The positions of the rows without trustworthy metrics."""
        return self._signals.stale

    @property
    def queue(self) -> Sequence[float]:
        """Requests waiting at each endpoint, corrected by our own since the last scrape."""
        if self._queue is None:
            self._queue = self._signals.waiting.now()
        return self._queue

    @property
    def running(self) -> Sequence[float]:
        """Requests running at each endpoint, corrected likewise: ours might run at once."""
        if self._running is None:
            self._running = self._signals.running.now()
        return self._running

    @property
    def kv_usage(self) -> Sequence[float]:
        """Fraction of the KV cache in use at each endpoint, in [0, 1]."""
        return self._signals.kv_usage

    @property
    def reports_adapters(self) -> bool:
        """Whether any endpoint says anything of LoRA adapters."""
        return self._signals.reports_adapters

    @property
    def base_models(self) -> frozenset[str]:
        """The names under which endpoints serve the model itself, as far as they tell."""
        return self._signals.base_models
