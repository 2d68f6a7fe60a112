"""
The inbox: what an engine says to one reader, who may have several requests in it at once.

The engine puts tokens in as its steps end; the reader takes them one by one, or all of them once
the last has come. Nothing is lost on a slow reader, and nothing waits for him.
"""

import asyncio
from collections import deque
from typing import Literal

EndReason = Literal["stop", "length", "abort"]
"""Why a reply ended; `abort` where somebody took the request out while its reader stayed."""

Delivery = tuple[int, int | None, EndReason | None]
"""The index of a request, its next token, and why it ended with it; no token where it was taken
out."""


class EngineDead(Exception):
    """The engine stopped, and with it every request that was in it; the text says of what."""


class Inbox:
    """
    Deliveries for one reader.

    A reader waits for the next token, or for the last.
    """

    def __init__(self) -> None:
        self._deliveries: deque[Delivery] = deque()
        self._open = 0
        self._dead = False
        self._waiter: asyncio.Future[None] | None = None
        self._waits_for_last = False

    def expect(self) -> None:
        """Count one more request whose tokens will come."""
        self._open += 1

    def put(self, index: int, token: int | None, end_reason: EndReason | None) -> None:
        """Take a token of the request that the reader knows by this index."""
        self._deliveries.append((index, token, end_reason))
        if end_reason is not None:
            self._open -= 1
        elif self._waits_for_last:
            return
        if not (self._waits_for_last and self._open):
            self._wake()

    def fail(self) -> None:
        """Say that nothing more will come."""
        self._dead = True
        self._wake()

    @property
    def backlog(self) -> int:
        """How many tokens lie here unread."""
        return len(self._deliveries)

    async def next(self) -> Delivery:
        """Return the next token, its request's index before it; EngineDead if none will come."""
        while not self._deliveries:
            await self._wait()
        return self._deliveries.popleft()

    async def all(self) -> list[Delivery]:
        """Return the unread tokens of all requests once the last has come, as `next` would."""
        self._waits_for_last = True
        while self._open:
            await self._wait()
        return list(self._deliveries)

    async def _wait(self) -> None:
        if self._dead:
            raise EngineDead
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
