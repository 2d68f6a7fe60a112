"""
The loop of one stream for a door that reads and writes by awaiting.
"""

import asyncio
from collections.abc import Awaitable, Callable

from epp.extproc.exchange import RequestReceived
from epp.extproc.messages import ProcessingRequest
from epp.extproc.stream import Stream


class Conversation:
    """Reads a message, gives it to the stream, and writes what is due."""

    def __init__(
        self,
        stream: Stream,
        read: Callable[[], Awaitable[ProcessingRequest | None]],
        write: Callable[[bytes], Awaitable[object]],
    ) -> None:
        """`read` returns None at the peer's half-close."""
        self._stream = stream
        self.read = read
        self._write = write
        self._pending: asyncio.Future[ProcessingRequest | None] | None = None

    async def run(self, message: ProcessingRequest) -> None:
        """Converse until nothing more is due; `message` is the first."""
        stream = self._stream
        following: ProcessingRequest | None = message
        while following is not None:
            await self._go_on(stream.receive(following))
            if stream.finished:
                return
            following = await self._next()
        await self._go_on(stream.half_closed())

    async def _go_on(self, request: RequestReceived | None) -> None:
        await self.flush()
        if request is not None:
            await self._stream.decide(request)
            await self.flush()

    async def flush(self) -> None:
        """Write the replies that are due."""
        for reply in self._stream.take_replies():
            await self._write(reply)

    async def _next(self) -> ProcessingRequest | None:
        """Read the next message; where the stream is out of patience first, tell it so."""
        while (patience := self._stream.patience) is not None:
            # A read that is cancelled would lose its message: leave it running instead.
            self._pending = self._pending or asyncio.ensure_future(self.read())
            done, _ = await asyncio.wait((self._pending,), timeout=patience)
            if done:
                break
            await self._go_on(self._stream.nothing_came())
        if self._pending is not None:
            pending, self._pending = self._pending, None
            return await pending
        return await self.read()

    def close(self) -> None:
        """Give up a read that is under way."""
        if self._pending is not None:
            self._pending.cancel()
