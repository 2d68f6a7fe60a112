"""
Datastore: the endpoints of the pool as they are now, in frozen snapshots.

It is the one writer of pool state. Discovery reports into it which endpoints exist, the collector
what it scraped of them; readers take `endpoints()` and keep the tuple for as long as they decide.
Nothing here waits but `wait_for_change`, so every change is atomic between two awaits, without a
lock.

An endpoint lives as long as its address and port stay. A change of either is a new life: metrics
unknown, no requests in flight, since what was known is of another process. Its `EndpointLoad` is
the life's identity.
"""

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from epp.framework import (
    Endpoint,
    EndpointEvent,
    EndpointId,
    EndpointLoad,
    EndpointRemoved,
    EndpointUpdate,
    EndpointUpserted,
    LoadChanges,
)

# What an update and the metrics have in common.
_SIGNALS = (
    "waiting",
    "running",
    "kv_usage",
    "running_adapters",
    "waiting_adapters",
    "max_adapters",
    "base_models",
    "block_size",
    "num_blocks",
)


class Datastore:
    """Keeps the endpoints, and wakes those who wait for endpoints to come or go."""

    def __init__(self, *, clock: Callable[[], float], stale_after: float = 2.0) -> None:
        """Take the clock of the scrapes, and the age in seconds from which metrics are stale."""
        self._clock = clock
        self._least_stale_after = stale_after
        self._stale_after = stale_after
        self._load_changes = LoadChanges()
        self._endpoints: dict[EndpointId, Endpoint] = {}
        self._snapshot: tuple[Endpoint, ...] | None = None
        self._synced = False
        self._version = 0
        self._changed = asyncio.Event()

    @property
    def synced(self) -> bool:
        """Whether every endpoint that existed at the start has been reported."""
        return self._synced

    @property
    def version(self) -> int:
        """A number that grows whenever endpoints come, go or change, or the pool is synced."""
        return self._version

    def endpoints(self) -> tuple[Endpoint, ...]:
        """Return every endpoint, sorted by id; the same tuple until something changes."""
        if self._snapshot is None:
            self._snapshot = tuple(self._endpoints.values())
        return self._snapshot

    def endpoint(self, endpoint_id: EndpointId) -> Endpoint | None:
        """Return the endpoint as it is now, None where it is gone."""
        return self._endpoints.get(endpoint_id)

    async def wait_for_change(self, seen: int) -> int:
        """Return the version as soon as it is not the one seen."""
        while self._version == seen:
            await self._changed.wait()
        return self._version

    def apply(self, event: EndpointEvent) -> None:
        """Take in what a discovery reports."""
        match event:
            case EndpointUpserted():
                changed = self._upsert(event)
            case EndpointRemoved(endpoint_id):
                changed = self._endpoints.pop(endpoint_id, None) is not None
            case _:
                changed = not self._synced
                self._synced = True
        if changed:
            self._snapshot = None
            self._version += 1
            self._changed.set()
            self._changed = asyncio.Event()

    def expect_scrapes_every(self, seconds: float) -> None:
        """Let metrics be stale only where three scrapes in a row brought nothing."""
        self._stale_after = max(self._least_stale_after, 3 * seconds)

    @property
    def stale_after(self) -> float:
        """The age in seconds from which metrics are stale."""
        return self._stale_after

    def record(self, endpoint_id: EndpointId, update: EndpointUpdate, *, in_flight: int) -> None:
        """
        Take in a sample; what it does not say stays as it was.

        `in_flight` is our own count of requests when the scrape began: the model server may have
        answered before it saw those that were sent meanwhile.
        """
        endpoint = self._endpoints.get(endpoint_id)
        if endpoint is None:
            return
        said: dict[str, Any] = {
            signal: value for signal in _SIGNALS if (value := getattr(update, signal)) is not None
        }
        metrics = replace(
            endpoint.metrics,
            **said,
            updated_at=self._clock(),
            in_flight_at_update=in_flight,
            missing=update.missing,
        )
        self._put(replace(endpoint, metrics=metrics, stale=False))

    def record_failure(self, endpoint_id: EndpointId) -> None:
        """Take in that a scrape failed: the earlier values stay until they are too old."""
        endpoint = self._endpoints.get(endpoint_id)
        if endpoint is None or endpoint.stale:
            return
        updated_at = endpoint.metrics.updated_at
        if updated_at is None or self._clock() - updated_at > self._stale_after:
            self._put(replace(endpoint, stale=True))

    def dump_state(self) -> dict[str, Any]:
        """Return what is known of every endpoint, JSON-able."""
        now = self._clock()
        return {
            "synced": self._synced,
            "endpoints": [_dump(endpoint, now) for endpoint in self.endpoints()],
        }

    def _put(self, endpoint: Endpoint) -> None:
        self._endpoints[endpoint.id] = endpoint
        self._snapshot = None

    def _upsert(self, event: EndpointUpserted) -> bool:
        known = self._endpoints.get(event.id)
        if known is not None and (known.address, known.port) == (event.address, event.port):
            if known.labels == event.labels:
                return False
            self._endpoints[event.id] = replace(known, labels=event.labels)
            return True
        load = EndpointLoad(self._load_changes)
        self._endpoints[event.id] = Endpoint(
            event.id, event.address, event.port, event.labels, load=load
        )
        if known is None:
            # Sorted here, where endpoints come, so that a snapshot is a mere copy.
            self._endpoints = dict(sorted(self._endpoints.items()))
        return True


def _dump(endpoint: Endpoint, now: float) -> dict[str, Any]:
    metrics = endpoint.metrics
    return {
        "id": str(endpoint.id),
        "destination": endpoint.destination,
        "labels": endpoint.labels,
        "stale": endpoint.stale,
        "age_seconds": None if metrics.updated_at is None else now - metrics.updated_at,
        "queue": endpoint.queue,
        "in_flight": endpoint.load.in_flight,
        "waiting": metrics.waiting,
        "running": metrics.running,
        "kv_usage": metrics.kv_usage,
        "running_adapters": sorted(metrics.running_adapters),
        "waiting_adapters": sorted(metrics.waiting_adapters),
        "max_adapters": metrics.max_adapters,
    }
