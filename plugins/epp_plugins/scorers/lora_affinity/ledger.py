"""
The ledger: which endpoint runs which adapter, by our own count and by what the endpoints report.

Own counts are the truth for what this picker sent and saw no end of yet. Reports come on top: once
a second the latest scrape of each endpoint is read, and adapters that it runs and nobody of ours
asked for are the traffic of others. Reports never take away what is open, and an adapter that only
ours ran is gone with its last request, whatever an older report says.

What the lists of vLLM mean depends on its version. Up to 0.10.2 one holds the adapters that run and
the other those that wait. Since then both name the same ones, and an adapter whose requests all
wait is in neither, so nothing is known of waiting. An endpoint whose two lists ever differed is one
of the old kind.

Everything belongs to one life of an endpoint and is forgotten with it; of ended requests only the
adapters that are likely to be in memory still are remembered, as many as an endpoint has slots.
Those that run push out the longest unused, but for good only once a request was served: a name that
the model server refuses was never loaded.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice

from epp.framework import Endpoint, EndpointLoad, EndpointMetrics

RECONCILE_SECONDS = 1.0
"""How often reports are read; between, own counts say what changes."""

RECONCILED_AT_ONCE = 32
"""Endpoints whose report one request may have to read, so that no request pays for a whole pool."""

PATIENCE_SCRAPES = 2
"""Reports that may lack what is open: a request waits, or a report was made before it came."""

FORGET_SECONDS = 300.0
"""An endpoint that was no candidate for so long, and has nothing of ours open, is forgotten."""

MAX_ENDPOINTS = 16_384
"""Endpoints remembered at once, so that churn cannot fill the memory."""

MAX_NAMES = 1024
"""Adapters remembered of an endpoint's ended requests, however many slots it claims to have."""

UNREAD = EndpointMetrics()


class Holding:
    """The adapters of one life of an endpoint."""

    __slots__ = (
        "_misses", "destination", "ended", "gone", "metrics", "open", "others", "place",
        "pushed", "read", "requests", "resident", "seen", "slots", "tells_waiting", "used",
        "waiting",
    )  # fmt: skip

    def __init__(self, endpoint: Endpoint) -> None:
        self.destination = endpoint.destination.encode()
        self.place = -1
        """Where it stands among the candidates at hand; -1 where it is none of them."""
        self.metrics = endpoint.metrics
        self.read = UNREAD
        """The metrics that were read last."""
        self.slots = 0
        """How many adapters it can run at a time; 0 where it does not tell."""
        self.open: dict[str, int] = {}
        """Our own requests that have not ended, by adapter."""
        self.requests = 0
        """How many these are."""
        self.others: frozenset[str] = frozenset()
        """Adapters that run for others."""
        self.waiting: frozenset[str] = frozenset()
        """Adapters that requests wait for, of ours and others, where the endpoint tells."""
        self.used = 0
        """How many adapters run or wait, each counted once."""
        self.resident: OrderedDict[str, float] = OrderedDict()
        """Adapters that ran lately, the longest unused first, with the time of their last use."""
        self.pushed: frozenset[str] = frozenset()
        """Those of them that what is open leaves no slot for."""
        self.ended: dict[str, None] = {}
        """Adapters whose last request of ours ended since a report was read, the latest ones."""
        self.tells_waiting = False
        self.seen = 0.0
        self.gone = False
        """Whether it is forgotten: what still ends here is of no interest."""
        self._misses: dict[str, int] = {}

    @property
    def reports(self) -> bool:
        """Whether the endpoint says anything of adapters."""
        read = self.read
        return bool(self.slots or read.running_adapters or read.waiting_adapters)

    def runs(self, adapter: str) -> bool:
        """Whether requests for the adapter are there, as far as is known."""
        return adapter in self.others or (adapter in self.open and self.reports)

    def keeps(self, adapter: str) -> bool:
        """Whether the adapter is likely to be in memory."""
        if adapter in self.open:
            return len(self.open) <= self.slots
        return adapter in self.resident and adapter not in self.pushed

    def knows(self, adapter: str) -> bool:
        """Whether the adapter runs, waits, or is likely to be in memory."""
        return (
            adapter in self.open
            or adapter in self.others
            or adapter in self.waiting
            or self.keeps(adapter)
        )

    def count_used(self) -> None:
        """Bring `used` up to date."""
        if self.others or self.waiting:
            self.used = len(self.open.keys() | self.others | self.waiting)
        else:
            self.used = len(self.open)

    def unreported(self, reported: frozenset[str]) -> int:
        """Return how many open adapters have now been lacking in one report too many."""
        misses = {one: self._misses.get(one, 0) + 1 for one in self.open if one not in reported}
        self._misses = misses
        return sum(count == PATIENCE_SCRAPES + 1 for count in misses.values())


class Ledger:
    """The holdings of all endpoints, and which of them know an adapter."""

    def __init__(
        self,
        *,
        residency_seconds: float,
        changed: Callable[[Holding], None],
        count: Callable[[str], None] = lambda _: None,
        max_endpoints: int = MAX_ENDPOINTS,
    ) -> None:
        """Take how long an adapter counts as loaded, and whom to tell of changes and events."""
        self._count = count
        self._max_endpoints = max_endpoints
        self._residency_seconds = residency_seconds
        self._changed = changed
        self._holdings: dict[EndpointLoad, Holding] = {}
        self._holders: dict[str, dict[Holding, None]] = {}
        self._rows: Sequence[Endpoint] = ()
        self.attending: list[Holding] = []
        """The holdings of the candidates at hand, in their order."""
        self._unread: Iterator[Holding] = iter(())
        self._next_round = 0.0
        self._swept_at = 0.0
        self.discrepancies: dict[str, int] = {"absent": 0, "foreign": 0}

    def holders(self, adapter: str) -> Sequence[Holding]:
        """Return the candidates at hand that know the adapter."""
        holders = self._holders.get(adapter)
        return [one for one in holders if one.place >= 0] if holders else ()

    def begin(self, endpoint: Endpoint, adapter: str, now: float) -> Holding:
        """Count a request for an adapter; return where `end` is to take it off."""
        holding = self._holding(endpoint, now)
        count = holding.open.get(adapter, 0)
        holding.open[adapter] = count + 1
        holding.requests += 1
        if not count:
            holding.ended.pop(adapter, None)
            self._note(holding, adapter)
        return holding

    def end(self, holding: Holding, adapter: str, now: float, *, served: bool = True) -> None:
        """Take off a request that began here; never below zero. What served it has the adapter."""
        count = holding.open.get(adapter, 0)
        if holding.gone or not count:
            return
        holding.requests -= 1
        if served:
            self._touch(holding, adapter, now)
        if count > 1:
            holding.open[adapter] = count - 1
            self._settle(holding)
            return
        del holding.open[adapter]
        holding.ended[adapter] = None
        if len(holding.ended) > MAX_NAMES:
            del holding.ended[next(iter(holding.ended))]
        self._note(holding, adapter)

    def attend(self, rows: Sequence[Endpoint], now: float) -> bool:
        """
        Let these be the candidates, and read reports that are due; say whether others came.

        Quick where most of them are as they were, which is the rule: a scrape changes one row.
        """
        others_came = rows is not self._rows and not self._follow(rows)
        if others_came:
            self._begin_with(rows, now)
        self._rows = rows
        if now >= self._next_round:
            self._next_round = now + RECONCILE_SECONDS
            self._unread = iter(self.attending)
            self._sweep(now)
        for holding in islice(self._unread, RECONCILED_AT_ONCE):
            self._reconcile(holding, now)
        return others_came

    def sizes(self) -> Mapping[str, int]:
        """Return how much is remembered."""
        holdings = self._holdings.values()
        return {
            "endpoints": len(holdings),
            "adapters": len(self._holders),
            "openRequests": sum(one.requests for one in holdings),
            "openAdapters": sum(len(one.open) for one in holdings),
            "othersAdapters": sum(len(one.others) for one in holdings),
            "residentAdapters": sum(len(one.resident) - len(one.pushed) for one in holdings),
        }

    def _follow(self, rows: Sequence[Endpoint]) -> bool:
        """Take in what is new of the same endpoints; False where they are not the same."""
        known = self._rows
        if len(rows) != len(known):
            return False
        pairs = zip(rows, known, strict=True)
        changed = [at for at, (row, before) in enumerate(pairs) if row is not before]
        if any(rows[at].load is not known[at].load for at in changed):
            return False
        for at in changed:
            self.attending[at].metrics = rows[at].metrics
        return True

    def _begin_with(self, rows: Sequence[Endpoint], now: float) -> None:
        for holding in self.attending:
            holding.place = -1
        self.attending = [self._holding(row, now) for row in rows]
        for place, (row, holding) in enumerate(zip(rows, self.attending, strict=True)):
            holding.place = place
            holding.metrics = row.metrics
            if holding.read is UNREAD:
                self._reconcile(holding, now)

    def _holding(self, endpoint: Endpoint, now: float) -> Holding:
        holding = self._holdings.get(endpoint.load)
        if holding is None:
            if len(self._holdings) >= self._max_endpoints:
                self._forget(min(self._holdings, key=lambda one: self._holdings[one].seen))
            holding = self._holdings[endpoint.load] = Holding(endpoint)
            holding.seen = now
        return holding

    def _reconcile(self, holding: Holding, now: float) -> None:
        """Read the latest report, if it has not been read."""
        holding.seen = now
        self._expire(holding, now)
        metrics = holding.metrics
        if metrics is holding.read:
            return
        holding.read = metrics
        running, waiting = metrics.running_adapters, metrics.waiting_adapters
        if running != waiting:
            holding.tells_waiting = True
        if not (running or waiting or holding.open or holding.used or holding.ended):
            if holding.slots != metrics.max_adapters:
                holding.slots = metrics.max_adapters
                self._settle(holding)
                self._changed(holding)
            return
        self._take_in(holding, running, waiting if holding.tells_waiting else frozenset(), now)

    def _take_in(
        self, holding: Holding, running: frozenset[str], waiting: frozenset[str], now: float
    ) -> None:
        # One of ours that ended meanwhile may have been running when the report was made. What ran
        # for others before ours came is still theirs, for as long as it is reported.
        ours = holding.open.keys() | holding.ended.keys()
        others = (running - ours) | (running & holding.others)
        self._discrepant("foreign", len(others - holding.others))
        self._discrepant("absent", holding.unreported(running | waiting))
        touched = holding.others | others | holding.waiting | waiting
        holding.slots = holding.metrics.max_adapters
        holding.others, holding.waiting = others, waiting
        holding.ended.clear()
        for adapter in sorted(others):
            self._touch(holding, adapter, now)
        self._settle(holding)
        for adapter in touched:
            self._index(holding, adapter)
        holding.count_used()
        self._changed(holding)

    def _discrepant(self, kind: str, times: int) -> None:
        if times:
            self.discrepancies[kind] += times
            for _ in range(times):
                self._count(f"lora-{kind}")

    def _touch(self, holding: Holding, adapter: str, now: float) -> None:
        """Note that an adapter is in use, which lets the longest unused one leave the memory."""
        resident = holding.resident
        resident[adapter] = now
        resident.move_to_end(adapter)
        while len(resident) > min(holding.slots, MAX_NAMES):
            self._index(holding, resident.popitem(last=False)[0])

    def _expire(self, holding: Holding, now: float) -> None:
        over = []
        for adapter, used_at in holding.resident.items():
            if now - used_at <= self._residency_seconds:
                break
            over.append(adapter)
        if over:
            for adapter in over:
                del holding.resident[adapter]
            self._settle(holding)
            for adapter in over:
                self._index(holding, adapter)

    def _settle(self, holding: Holding) -> None:
        """Bring up to date which of those that ran lately what is open leaves no slot for."""
        if len(holding.resident) + len(holding.open) <= holding.slots and not holding.pushed:
            return
        idle = [one for one in holding.resident if one not in holding.open]
        surplus = len(idle) - max(0, holding.slots - len(holding.open))
        pushed = frozenset(idle[: max(0, surplus)])
        changed = pushed ^ holding.pushed
        holding.pushed = pushed
        for adapter in changed:
            self._index(holding, adapter)

    def _note(self, holding: Holding, adapter: str) -> None:
        self._settle(holding)
        self._index(holding, adapter)
        holding.count_used()
        self._changed(holding)

    def _index(self, holding: Holding, adapter: str) -> None:
        """Let the adapter's holders be those that know it."""
        holders = self._holders.get(adapter)
        if holding.knows(adapter) and not holding.gone:
            if holders is None:
                holders = self._holders[adapter] = {}
            holders[holding] = None
        elif holders is not None:
            holders.pop(holding, None)
            if not holders:
                del self._holders[adapter]

    def _sweep(self, now: float) -> None:
        """
        Forget whom nobody asked for between two sweeps.

        Only if requests came by without it, so that a quiet night makes nobody forget.
        """
        if now - self._swept_at > FORGET_SECONDS:
            for load, holding in list(self._holdings.items()):
                if holding.seen < self._swept_at and not holding.open and holding.place < 0:
                    self._forget(load)
            self._swept_at = now

    def _forget(self, load: EndpointLoad) -> None:
        """Drop a holding with all that is known of it."""
        holding = self._holdings.pop(load)
        holding.gone = True
        for adapter in {*holding.open, *holding.resident, *holding.others, *holding.waiting}:
            self._index(holding, adapter)
