"""
Read the endpoints from a YAML or JSON file, and follow its changes.

This is how the picker runs without Kubernetes. The file says everything there is: an endpoint that
leaves it is gone. An edit that cannot be read changes nothing, it is only logged: the pool of a
minute ago serves better than none.

    endpoints:
    - name: a
      address: 10.0.0.1          # IPv4, IPv6 or a DNS name
      port: 8000
      namespace: default         # the default
      labels: {llm-d.ai/engine-type: vllm}

Replace the file in one step (rename, or a ConfigMap's own way) rather than write into it: half a
file can be valid, too.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import msgspec

from epp.framework import (
    ConfigError,
    EndpointDiscovery,
    EndpointEvent,
    EndpointId,
    EndpointRemoved,
    EndpointUpserted,
    PluginContext,
    Synced,
)
from epp_plugins.discoveries.static_file.address_book import AddressBook
from epp_plugins.discoveries.static_file.endpoints_file import EndpointsFile, FileEntry

SECONDS_BETWEEN_LOOKUPS = 30.0

MAX_INTERVAL_SECONDS = 1e9


class FileDiscovery(EndpointDiscovery):
    """
    Reports the endpoints of a file, and every `poll_interval` seconds what changed in it.

    DNS names are looked up again every 30 seconds. One that has no address is left out and logged;
    one that had an address keeps it. With `watch_file` off the file is read only once.
    """

    def __init__(
        self,
        *,
        path: str,
        watch_file: bool = True,
        poll_interval: Annotated[float, msgspec.Meta(gt=0, le=MAX_INTERVAL_SECONDS)] = 1.0,
        context: PluginContext,
    ) -> None:
        if not path:
            message = "path must not be empty"
            raise ValueError(message)
        self._path = Path(path)
        self._watch_file = watch_file
        self._poll_interval = poll_interval
        self._log = context.logger

    def discover(self) -> AsyncIterator[EndpointEvent]:
        """Yield the file's endpoints, then Synced, then changes for ever."""
        return self._follow(EndpointsFile(self._path), AddressBook())

    async def _follow(self, file: EndpointsFile, book: AddressBook) -> AsyncIterator[EndpointEvent]:
        loop = asyncio.get_running_loop()
        entries = await asyncio.to_thread(file.read) or []
        reported: Mapping[EndpointId, EndpointUpserted] = {}
        synced = False
        while True:
            await self._look_up(book, entries)
            looked_up = loop.time()
            current = _located(entries, book)
            for event in _differences(reported, current):
                yield event
            reported = current
            if not synced:
                synced = True
                yield Synced()
            changed = await self._next(file, looked_up + SECONDS_BETWEEN_LOOKUPS)
            entries = entries if changed is None else changed

    async def _next(self, file: EndpointsFile, deadline: float) -> list[FileEntry] | None:
        """Wait for other entries in the file, but no longer than until the deadline."""
        loop = asyncio.get_running_loop()
        while (left := deadline - loop.time()) > 0:
            await asyncio.sleep(min(left, self._poll_interval) if self._watch_file else left)
            if self._watch_file and (entries := await self._read_again(file)) is not None:
                return entries
        return None

    async def _read_again(self, file: EndpointsFile) -> list[FileEntry] | None:
        try:
            entries = await asyncio.to_thread(file.read)
        except ConfigError as error:
            self._log.warning("the endpoints stay as they were: %s", error)
            return None
        if entries is not None:
            self._log.info("%s has changed: %d endpoints", self._path, len(entries))
        return entries

    async def _look_up(self, book: AddressBook, entries: Iterable[FileEntry]) -> None:
        for host, reason in (await book.refresh(entry.address for entry in entries)).items():
            kept = book.address(host)
            consequence = f"it stays {kept}" if kept else "its endpoints are left out"
            self._log.warning("cannot look up %s (%s): %s", host, reason, consequence)


def _located(
    entries: Iterable[FileEntry], book: AddressBook
) -> Mapping[EndpointId, EndpointUpserted]:
    """The endpoints that have an address."""
    return {
        entry.id: EndpointUpserted(entry.id, address, int(entry.port), entry.labels)
        for entry in entries
        if (address := book.address(entry.address)) is not None
    }


def _differences(
    before: Mapping[EndpointId, EndpointUpserted], now: Mapping[EndpointId, EndpointUpserted]
) -> Sequence[EndpointEvent]:
    """What leads from one to the other; those that leave come last, so that none is missed."""
    upserted = [event for id_, event in now.items() if before.get(id_) != event]
    return [*upserted, *(EndpointRemoved(id_) for id_ in before if id_ not in now)]
