"""
Collector: keeps the metrics of all endpoints fresh, one polling task each.

Each task polls its endpoint at a steady pace, one scrape at a time, and reports into the datastore.
Tasks come and go with the endpoints, and an endpoint that moved gets a new one. Endpoints are
polled at different moments of the interval, told by their names, so that the scrapes of a pool
spread evenly instead of all falling on one moment.

A scrape of a real page was measured at 0.4 to 0.65 ms of CPU, all told. Up to 20 endpoints are
polled every interval; beyond, the interval grows with their number, so that the whole pool is never
scraped more than 150 times a second, which is under a tenth of a core, however large it becomes.
What is known of a large pool is older, then, and counts as stale only after three intervals.

No failure ends a task: what a data source announces, a time-out, and a defect in a plugin are all
failed scrapes. The metrics stay as they were, and the datastore says when they are stale.

An endpoint whose scrapes fail is scraped less often, since a failed scrape can be a costly one (a
huge page, a time-out): after each failure in a row it waits twice as long, up to 16 intervals but
no longer than 5 seconds, unless the interval itself is longer. The first success brings it back to
its pace. It keeps its beat meanwhile and only leaves out scrapes, so that the pool stays spread;
the beats without one still tell the datastore that nothing came, so that its metrics are stale no
later than they would be without the pauses.

A pool that no request came to for five seconds is scraped at every third beat, where that keeps
twice clear of staleness: a picker that waits is not to cost more than what it waits for. The first
request brings every endpoint back to its pace at its next beat.
"""

import asyncio
import logging
import math
import zlib
from dataclasses import dataclass
from typing import Any, Protocol

from epp.datalayer.datastore import Datastore
from epp.framework import (
    DataSource,
    Endpoint,
    EndpointId,
    EndpointLoad,
    EndpointUpdate,
    Extractor,
    ScrapeError,
)

logger = logging.getLogger("epp.collector")

SMALL_POOL = 20
SCRAPES_PER_SECOND = 150
SECONDS_BETWEEN_TRACEBACKS = 10.0
MOST_DOUBLINGS = 4
LONGEST_PAUSE_SECONDS = 5.0
QUIET_SECONDS = 5.0
QUIET_BEATS = 2
"""Left out between two scrapes of a pool without requests."""


class ScrapeObserver(Protocol):
    """Counts scrapes; called after the datastore has taken them in."""

    def scraped(self, endpoint: Endpoint, seconds: float, update: EndpointUpdate) -> None:
        """Take note of a scrape that succeeded, and of how long it took."""
        ...

    def failed(self, endpoint: Endpoint, reason: str) -> None:
        """Take note of one that failed; the reason is one of a small closed set."""
        ...


@dataclass(slots=True)
class _History:
    """The failures in a row of an endpoint, and what was logged of it, so that only changes are."""

    failures: int = 0
    missing: frozenset[str] = frozenset()
    traceback_at: float = -math.inf


@dataclass(slots=True)
class _Quiet:
    """Since when no request came to the pool, and none ended in it."""

    changes: int
    since: float

    def seconds(self, changes: int, now: float) -> float:
        """Return for how long it has been quiet, up to this number of changes of load."""
        if changes != self.changes:
            self.changes, self.since = changes, now
        return now - self.since


class Collector:
    """Polls every endpoint of the datastore until it is cancelled."""

    def __init__(
        self,
        datastore: Datastore,
        source: DataSource[Any],
        extractor: Extractor[Any],
        observer: ScrapeObserver,
        *,
        interval: float = 0.2,
        timeout: float = 1.0,
    ) -> None:
        """Take what to poll with; `interval` and `timeout` of a scrape are in seconds."""
        self._datastore = datastore
        self._source = source
        self._extractor = extractor
        self._observer = observer
        self._interval = interval
        self._timeout = timeout
        self._tasks: dict[EndpointId, tuple[EndpointLoad, asyncio.Task[None]]] = {}
        self._unasked: set[EndpointId] = set()
        self.first_round = asyncio.Event()
        """Set once every endpoint of the synced pool has been asked, whatever it answered."""

    def current_interval(self, count: int) -> float:
        """Return the seconds between two scrapes of one endpoint in a pool of so many."""
        return self._interval + max(0, count - SMALL_POOL) / SCRAPES_PER_SECOND

    async def run(self) -> None:
        """Poll for ever; whoever made the data source closes it after that."""
        async with asyncio.TaskGroup() as group:
            while True:
                seen = self._datastore.version
                self._match_tasks(group)
                await self._datastore.wait_for_change(seen)

    def _match_tasks(self, group: asyncio.TaskGroup) -> None:
        """Let there be one task for each life of an endpoint."""
        self._datastore.expect_scrapes_every(
            self.current_interval(len(self._datastore.endpoints()))
        )
        loads = {endpoint.id: endpoint.load for endpoint in self._datastore.endpoints()}
        for endpoint_id, (load, task) in list(self._tasks.items()):
            if loads.get(endpoint_id) is not load:
                task.cancel()
                del self._tasks[endpoint_id]
                self._unasked.discard(endpoint_id)
        for endpoint_id, load in loads.items():
            if endpoint_id not in self._tasks:
                polling = self._poll(endpoint_id, load)
                task = group.create_task(polling, name=f"scrape {endpoint_id}")
                self._tasks[endpoint_id] = (load, task)
                self._unasked.add(endpoint_id)
        self._note_round()

    def _note_round(self) -> None:
        if not self._unasked and self._datastore.synced:
            self.first_round.set()

    async def _poll(self, endpoint_id: EndpointId, load: EndpointLoad) -> None:
        loop = asyncio.get_running_loop()
        history = _History()
        # Of the name alone, so that every picker and every restart spreads a pool alike.
        phase = zlib.crc32(str(endpoint_id).encode()) / 2**32
        due = loop.time() + phase * self.current_interval(len(self._tasks))
        pause = 0
        quiet = _Quiet(load.changes.position, loop.time())
        while True:
            await asyncio.sleep(due - loop.time())
            is_quiet = quiet.seconds(load.changes.position, loop.time()) > QUIET_SECONDS
            endpoint = self._datastore.endpoint(endpoint_id)
            interval = self.current_interval(len(self._tasks))
            if endpoint is not None and endpoint.load is load:
                if pause and (is_quiet or history.failures):
                    pause -= 1
                    self._datastore.record_failure(endpoint_id)
                else:
                    await self._scrape(endpoint, history)
                    self._unasked.discard(endpoint_id)
                    self._note_round()
                    pause = _beats_left_out(history.failures, interval)
                    beats = QUIET_BEATS + 1
                    if is_quiet and 2 * beats * interval <= self._datastore.stale_after:
                        pause = max(pause, QUIET_BEATS)
            # A slow scrape skips beats instead of moving them, which keeps the pool spread.
            due += interval * max(1, math.ceil((loop.time() - due) / interval))

    async def _scrape(self, endpoint: Endpoint, history: _History) -> None:
        """Scrape once. This is the root of a background loop: no exception leaves it."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        in_flight = endpoint.load.in_flight
        try:
            async with asyncio.timeout(self._timeout):
                sample = await self._source.poll(endpoint)
            update = self._extractor.extract(endpoint, sample)
            self._succeeded(endpoint, history, update, in_flight, loop.time() - began)
        except ScrapeError as error:
            self._failed(endpoint, history, error.reason, str(error))
        except TimeoutError:
            self._failed(endpoint, history, "timeout", f"no answer within {self._timeout:g} s")
        except asyncio.CancelledError:
            # One that nobody asked this task for has leaked out of a plugin.
            if (task := asyncio.current_task()) is None or task.cancelling():
                raise
            self._failed(endpoint, history, "plugin-error", "a plugin was cancelled from within")
        except Exception as error:
            if began - history.traceback_at >= SECONDS_BETWEEN_TRACEBACKS:
                history.traceback_at = began
                logger.exception("a plugin failed while scraping endpoint %s", endpoint.id)
            self._failed(endpoint, history, "plugin-error", f"{type(error).__name__} in a plugin")

    def _succeeded(
        self,
        endpoint: Endpoint,
        history: _History,
        update: EndpointUpdate,
        in_flight: int,
        seconds: float,
    ) -> None:
        if not self._lives(endpoint):
            return
        self._datastore.record(endpoint.id, update, in_flight=in_flight)
        self._observer.scraped(endpoint, seconds, update)
        if history.failures:
            history.failures = 0
            logger.info("endpoint %s can be scraped again", endpoint.id)
        missing = update.missing - history.missing
        if missing:
            history.missing |= missing
            logger.warning(
                "endpoint %s does not report %s", endpoint.id, ", ".join(sorted(missing))
            )

    def _failed(self, endpoint: Endpoint, history: _History, reason: str, message: str) -> None:
        if not self._lives(endpoint):
            return
        self._datastore.record_failure(endpoint.id)
        self._observer.failed(endpoint, reason)
        history.failures += 1
        if history.failures == 1:
            logger.warning("endpoint %s cannot be scraped (%s): %s", endpoint.id, reason, message)

    def _lives(self, endpoint: Endpoint) -> bool:
        """Whether it has neither gone nor moved; where it has, the cancellation is on its way."""
        current = self._datastore.endpoint(endpoint.id)
        return current is not None and current.load is endpoint.load


def _beats_left_out(failures: int, interval: float) -> int:
    """How many beats pass without a scrape after so many failures in a row."""
    beats = 1 << min(failures, MOST_DOUBLINGS)
    return max(0, min(beats, int(LONGEST_PAUSE_SECONDS / interval)) - 1)
