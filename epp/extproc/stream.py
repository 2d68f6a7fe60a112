"""
One ext_proc stream: the loop between the wire, the exchange and the director.

It knows no transport: a door gives it a way to read a message and a way to write a reply. What the
stream took is given back in `finish`, which the door calls once, whatever ended the stream.
"""

import asyncio
from collections.abc import Awaitable, Callable

from epp.extproc import exchange as events
from epp.extproc.exchange import Exchange
from epp.extproc.messages import ProcessingRequest
from epp.framework import EPPError, RawRequest, TerminationCause
from epp.requestcontrol.director import Director, RoutedRequest


class Stream:
    """The loop of one stream: read, `receive`, write what is due, tell the director."""

    def __init__(
        self,
        director: Director,
        exchange: Exchange,
        read: Callable[[], Awaitable[ProcessingRequest | None]],
        write: Callable[[bytes], Awaitable[object]],
    ) -> None:
        """`read` returns None at the peer's half-close."""
        self._director = director
        self._exchange = exchange
        self.read = read
        self._write = write
        self._pending: asyncio.Future[ProcessingRequest | None] | None = None
        self._routed: RoutedRequest | None = None
        self._started: events.ResponseStarted | None = None
        self._answered = False

    @property
    def request_id(self) -> str:
        """The id of the request on this stream, "" before it is routed."""
        return self._routed.request.request_id if self._routed else ""

    async def run(self, message: ProcessingRequest) -> None:
        """Converse until nothing more is due; `message` is the first."""
        exchange = self._exchange
        following: ProcessingRequest | None = message
        while following is not None:
            await self._act(exchange.receive(following))
            if exchange.finished:
                return
            following = await self._next()
        await self._act(exchange.half_closed())

    async def _next(self) -> ProcessingRequest | None:
        """Read the next message; where the exchange is out of patience first, tell it so."""
        while (patience := self._exchange.patience) is not None:
            # A read that is cancelled would lose its message: leave it running instead.
            self._pending = self._pending or asyncio.ensure_future(self.read())
            done, _ = await asyncio.wait((self._pending,), timeout=patience)
            if done:
                break
            await self._act(self._exchange.nothing_came())
        if self._pending is not None:
            pending, self._pending = self._pending, None
            return await pending
        return await self.read()

    async def _act(self, event: events.Event | None) -> None:
        write = self._write
        for reply in self._exchange.take_replies():
            await write(reply)
        if event is None:
            return
        routed = self._routed
        if type(event) is events.RequestReceived:
            await self._decide(event)
        elif type(event) is events.RequestInvalid:
            self._director.refuse(event.raw, event.error)
            await self._refuse(event.error)
        elif routed is not None:
            self._observe(routed, event)

    async def _decide(self, event: events.RequestReceived) -> None:
        try:
            routed = await self._director.handle_request(event.raw)
        except EPPError as error:
            await self._refuse(error)
            return
        self._routed = routed
        for reply in self._exchange.route(routed.decision):
            self._answered = True
            await self._write(reply)

    async def _refuse(self, error: EPPError) -> None:
        self._answered = True
        for reply in self._exchange.refuse(error):
            await self._write(reply)

    def _observe(self, routed: RoutedRequest, event: events.Event) -> None:
        director = self._director
        match event:
            case events.ResponseChunk(data):
                director.on_response_body(routed, data)
            case events.ResponseStarted():
                self._started = event
                director.on_response_headers(
                    routed,
                    status=event.status,
                    media=event.media,
                    served=event.served,
                    body_follows=event.body_follows,
                )
            case events.ResponseEnded(chunk):
                director.on_response_body(routed, chunk)
                director.on_response_end(routed)

    async def refuse(self, error: EPPError) -> None:
        """Tell the client of an error that ends the stream, unless its request is answered."""
        if not self._answered:
            self._director.refuse(RawRequest({}, None), error)
            await self._refuse(error)

    def finish(self, *, failed: bool, stopping: bool) -> None:
        """Give back what the request took, with the cause that what was seen suggests."""
        if self._pending is not None:
            self._pending.cancel()
        if self._routed is None:
            return
        started = self._started
        # Envoy ends streams by half-close or reset alike: judge by what was seen, not by the error.
        if failed:
            cause = TerminationCause.FAILED
        elif self._exchange.finished or (started and not started.body_follows):
            cause = TerminationCause.COMPLETED
        elif stopping:
            cause = TerminationCause.DRAINED
        elif started is None:
            cause = TerminationCause.RESPONSE_UNSEEN
        else:
            cause = TerminationCause.CLIENT_DISCONNECTED
        self._director.finish(self._routed, cause)
