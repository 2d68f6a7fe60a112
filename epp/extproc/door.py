"""
What the two doors have in common: what they offer, and how they count.
"""

import asyncio
from typing import Protocol

from epp.extproc.certificates import Certificate


class Door(Protocol):
    """A server of ext_proc and of gRPC health, on any number of addresses."""

    async def listen(
        self,
        address: str,
        port: int,
        *,
        certificate: Certificate | None = None,
        only_health: bool = False,
    ) -> int:
        """
        Serve on an address; return the port.

        It speaks TLS where it is given a certificate. Raises ConfigError where the address cannot
        be used.
        """

    async def drain(self, seconds: float) -> None:
        """
        Refuse what is new, and wait for the streams that carry a request.

        Raises TimeoutError where some still run after so many seconds.
        """

    async def close(self) -> None:
        """Cut what still runs, and stop listening."""


class Busy:
    """The number of streams that carry a request, so that a drain can wait for them."""

    def __init__(self) -> None:
        self._count = 0
        self._none = asyncio.Event()
        self._none.set()

    def add(self) -> None:
        """Count one more."""
        self._count += 1
        self._none.clear()

    def remove(self) -> None:
        """Count one less."""
        self._count -= 1
        if not self._count:
            self._none.set()

    async def over(self) -> None:
        """Wait until there is none."""
        await self._none.wait()
