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
import ipaddress
import os
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

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

LARGEST_FILE_BYTES = 1 << 20
SECONDS_BETWEEN_LOOKUPS = 30.0
LOOKUP_TIMEOUT_SECONDS = 5.0

_NAME = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,251}[A-Za-z0-9])?")

# The last label of a host name is never all digits, or 10.0.0.256 would be one.
_HOST_LABEL = r"[A-Za-z0-9_]([-A-Za-z0-9_]{0,61}[A-Za-z0-9_])?"
_HOST = re.compile(rf"(?=.{{1,254}}\Z)({_HOST_LABEL}\.)*(?!\d+\.?\Z){_HOST_LABEL}\.?")


class FileEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One endpoint as the file has it; `address` may be a DNS name."""

    name: str
    address: str
    port: int | str
    namespace: str = "default"
    labels: dict[str, str] = {}

    @property
    def id(self) -> EndpointId:
        """The endpoint's name in the picker."""
        return EndpointId(self.namespace, self.name)


class _Document(msgspec.Struct, forbid_unknown_fields=True):
    endpoints: list[Any]


def parse(content: bytes) -> list[FileEntry]:
    """
    Return the entries of a file, addresses and ports in their plain form.

    Raises ConfigError that names the entry and says what was expected of it.
    """
    if len(content) > LARGEST_FILE_BYTES:
        message = f"expected at most {LARGEST_FILE_BYTES} bytes"
        raise ConfigError(message)
    try:
        document = msgspec.yaml.decode(content, type=_Document)
    except msgspec.DecodeError as error:
        message = f"expected a document with a list `endpoints`: {_plain(error)}"
        raise ConfigError(message) from error
    entries: dict[EndpointId, FileEntry] = {}
    for at, raw in enumerate(document.endpoints):
        name = raw.get("name") if isinstance(raw, dict) else None
        place = f"endpoints[{at}]" + (f" ({name})" if isinstance(name, str) else "")
        try:
            entry = _entry(raw)
        except ValueError as error:
            message = f"{place}: {_plain(error)}"
            raise ConfigError(message) from error
        if entry.id in entries:
            message = f"{place}: expected a name of its own, {entry.id} is there twice"
            raise ConfigError(message)
        entries[entry.id] = entry
    return list(entries.values())


def _entry(raw: Any) -> FileEntry:
    entry = msgspec.convert(raw, FileEntry)
    for field, text in (("name", entry.name), ("namespace", entry.namespace)):
        if not _NAME.fullmatch(text):
            message = f"{field}: expected letters, digits and inside also '-_.', got {text!r}"
            raise ValueError(message)
    return msgspec.structs.replace(entry, address=_address(entry.address), port=_port(entry.port))


def _plain(error: Exception) -> str:
    """The message on one line, as a clause; `$` stands for what is at fault."""
    text = " ".join(str(error).split())
    return text[:1].lower() + text[1:].replace("`$.", "`")


def _address(text: str) -> str:
    bare = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    try:
        literal = ipaddress.ip_address(bare)
    except ValueError:
        if _HOST.fullmatch(text):
            return text.rstrip(".").lower()
        literal = None
    if literal is None or literal.is_unspecified or literal.is_multicast or "%" in bare:
        message = f"address: expected an IPv4 or IPv6 address or a DNS name, got {text!r}"
        raise ValueError(message)
    return str(literal)


def _port(value: int | str) -> int:
    text = str(value)
    if text.isascii() and text.isdigit() and len(text) <= 5 and 1 <= int(text) <= 65535:
        return int(text)
    message = f"port: expected a number from 1 to 65535, got {value!r}"
    raise ValueError(message)


class EndpointsFile:
    """The file, read when it changed; whatever is wrong with it is raised once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: tuple[int, int, int] | None = None
        self._content: bytes | None = None
        self._fault = ""

    def read(self) -> list[FileEntry] | None:
        """
        Return the entries, None where the file is as it was; blocks.

        Raises ConfigError where it cannot be read, or not be understood.
        """
        try:
            with self._path.open("rb") as file:
                # The stamp first: a change after it is seen the next time.
                status = os.fstat(file.fileno())
                stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
                if stamp == self._stamp:
                    return None
                content = file.read(LARGEST_FILE_BYTES + 1)
        except OSError as error:
            self._unreadable(error)
            return None
        self._stamp, self._fault = stamp, ""
        # A touched file, or a ConfigMap written anew, says what it said before.
        if content == self._content:
            return None
        self._content = content
        try:
            return parse(content)
        except ConfigError as error:
            message = f"{self._path}: {error}"
            raise ConfigError(message) from error

    def _unreadable(self, error: OSError) -> None:
        fault = error.strerror or type(error).__name__
        known, self._stamp, self._fault = self._fault, None, fault
        if fault != known:
            message = f"{self._path}: expected a file of endpoints: {fault}"
            raise ConfigError(message) from error


async def look_up(host: str) -> Iterable[str]:
    """Return the addresses of a DNS name, as the system's resolver knows them."""
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(LOOKUP_TIMEOUT_SECONDS):
        found = await loop.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    # An address with a zone means something on this machine only.
    return [str(address[0]) for *_, address in found if "%" not in str(address[0])]


class AddressBook:
    """
    The address of every DNS name, one each, as steady as the name allows.

    An address is kept for as long as the name still has it, and also while the name cannot be
    looked up at all; else it is the first in the order of addresses, IPv4 before IPv6.
    """

    def __init__(self, lookup: Callable[[str], Awaitable[Iterable[str]]] = look_up) -> None:
        self._lookup = lookup
        self._addresses: dict[str, str] = {}
        self._failing: dict[str, str] = {}

    def address(self, host: str) -> str | None:
        """Return the address of a host, None where it has none; an address is its own."""
        return host if _is_literal(host) else self._addresses.get(host)

    async def refresh(self, hosts: Iterable[str]) -> Mapping[str, str]:
        """
        Look every name up, and forget those that are not asked for.

        Returns the names that cannot be looked up now but could the last time, each with a reason.
        """
        names = {host for host in hosts if not _is_literal(host)}
        failed_before = self._failing
        self._failing = {}
        self._addresses = {n: a for n, a in self._addresses.items() if n in names}
        async with asyncio.TaskGroup() as group:
            for name in sorted(names):
                group.create_task(self._refresh(name), name=f"look up {name}")
        return {n: reason for n, reason in self._failing.items() if n not in failed_before}

    async def _refresh(self, name: str) -> None:
        try:
            found = set(await self._lookup(name))
        except (OSError, UnicodeError) as error:
            self._failing[name] = getattr(error, "strerror", None) or type(error).__name__
            return
        if not found:
            self._failing[name] = "it has no addresses"
        elif self._addresses.get(name) not in found:
            self._addresses[name] = min(found, key=_order)


def _is_literal(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _order(address: str) -> tuple[int, int]:
    parsed = ipaddress.ip_address(address)
    return parsed.version, int(parsed)


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
        poll_interval: Annotated[float, msgspec.Meta(gt=0)] = 1.0,
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
