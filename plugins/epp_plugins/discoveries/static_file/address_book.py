"""
Address book: the addresses of the DNS names in an endpoints file.

A destination is an address, so a name is looked up here and now; and it stays steady, since every
change of an address makes a new endpoint of which nothing is known.
"""

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping

LOOKUP_TIMEOUT_SECONDS = 5.0


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
