"""
Endpoints: where a model is served, what was last scraped there, and views of many at once.

Endpoints are frozen snapshots, replaced and never edited; the one live number is the count of our
own requests in flight (`EndpointLoad`), which all snapshots of an endpoint share.

Scraped values are always a little old. `Endpoint.queue` corrects the scraped number of waiting
requests by what this picker itself sent and saw finish since that scrape, so that a burst between
two scrapes does not fall on one endpoint. An endpoint that was never scraped, or not lately, has
no values at all; `EndpointView` gives it the mean of those that have, so that it is neither the
favourite nor left out.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import overload


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

    `kv_usage` is a fraction in [0, 1]; `max_adapters` 0 means unknown; `block_size` is in tokens,
    and 0, as `num_blocks` 0, means unknown. `updated_at` is the loop time of the scrape in
    seconds, None before the first; `in_flight_at_update` is our own count of requests at that
    moment.
    """

    waiting: int = 0
    running: int = 0
    kv_usage: float = 0.0
    running_adapters: frozenset[str] = frozenset()
    waiting_adapters: frozenset[str] = frozenset()
    max_adapters: int = 0
    block_size: int = 0
    num_blocks: int = 0
    updated_at: float | None = None
    in_flight_at_update: int = 0


class EndpointLoad:
    """
    Our own requests on one endpoint: how many are open now.

    Kept by the framework alone. It belongs to one life of an endpoint: one that leaves and returns
    starts with a new count, so that requests of its earlier life can never make it negative.
    """

    __slots__ = ("in_flight",)

    def __init__(self) -> None:
        self.in_flight = 0


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
        """Running requests as scraped."""
        return self.metrics.running


class EndpointView(Sequence[Endpoint]):
    """
    Candidates as rows (it is a sequence of Endpoint) and as columns (one list per signal).

    Columns are in the order of the rows, computed when first asked for, and must not be changed.
    In a column the mean of the known values stands for an endpoint whose metrics are missing or
    stale.
    """

    __slots__ = ("_kv_usage", "_queue", "_rows", "_running", "_stale")

    def __init__(self, rows: Sequence[Endpoint]) -> None:
        self._rows = tuple(rows)
        self._stale: list[int] | None = None
        self._queue: list[float] | None = None
        self._running: list[float] | None = None
        self._kv_usage: list[float] | None = None

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
    def stale(self) -> Sequence[int]:
        """The positions of the rows without trustworthy metrics."""
        if self._stale is None:
            self._stale = [at for at, endpoint in enumerate(self._rows) if endpoint.stale]
        return self._stale

    @property
    def queue(self) -> Sequence[float]:
        """Requests waiting at each endpoint, corrected by our own since the last scrape."""
        if self._queue is None:
            # Endpoint.queue, without a call for each row.
            self._queue = [
                queue if (queue := m.waiting + e.load.in_flight - m.in_flight_at_update) > 0 else 0
                for e, m in zip(self._rows, [e.metrics for e in self._rows], strict=True)
            ]
            # Our own come on top of the mean, or a stale endpoint would take a whole burst.
            self._fill(self._queue, lambda e: float(e.load.in_flight))
        return self._queue

    @property
    def running(self) -> Sequence[float]:
        """Requests running at each endpoint."""
        if self._running is None:
            self._running = [e.metrics.running for e in self._rows]
            self._fill(self._running)
        return self._running

    @property
    def kv_usage(self) -> Sequence[float]:
        """Fraction of the KV cache in use at each endpoint, in [0, 1]."""
        if self._kv_usage is None:
            self._kv_usage = [e.metrics.kv_usage for e in self._rows]
            self._fill(self._kv_usage)
        return self._kv_usage

    def _fill(self, column: list[float], extra: Callable[[Endpoint], float] | None = None) -> None:
        stale = self.stale
        if not stale:
            return
        known = len(column) - len(stale)
        mean = (sum(column) - sum(column[at] for at in stale)) / known if known else 0.0
        for at in stale:
            column[at] = mean + extra(self._rows[at]) if extra else mean
