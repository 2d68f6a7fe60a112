"""
One ext_proc stream: what lies between the wire, the exchange and the director.

It knows no transport and waits for nothing but a decision: a door gives it messages and sends what
they leave in `replies`. What the stream took is given back in `finish`, which the door calls once,
whatever ended the stream.
"""

from epp.extproc import exchange as events
from epp.extproc.exchange import Exchange, RequestReceived
from epp.extproc.messages import MAX_PIECE_BYTES, ProcessingRequest, around_piece
from epp.framework import EPPError, RawRequest, TerminationCause
from epp.requestcontrol.director import Director, RoutedRequest


class Stream:
    """
    The conversation of one stream.

    After each call the door sends what `take_replies` returns; where a call returns a request, it
    awaits `decide` with it before it gives the next message.
    """

    __slots__ = ("_answer", "_answered", "_director", "_exchange", "_routed", "_started", "passes")

    def __init__(self, director: Director, exchange: Exchange) -> None:
        self._director = director
        self._exchange = exchange
        self._answer: list[bytes] = []
        """The replies that carry out a decision, or refuse; due after those of the exchange."""
        self._routed: RoutedRequest | None = None
        self._started: events.ResponseStarted | None = None
        self._answered = False
        self.passes = False
        """Whether a response's body passes piece by piece, unchanged: `pass_on` may be tried."""

    @property
    def request_id(self) -> str:
        """The id of the request on this stream, "" before it is routed."""
        return self._routed.request.request_id if self._routed else ""

    @property
    def finished(self) -> bool:
        """Whether nothing more is due: the stream may be ended."""
        return self._exchange.finished

    @property
    def patience(self) -> float | None:
        """Seconds to wait for the next message before `nothing_came` must be told, or None."""
        return self._exchange.patience

    def take_replies(self) -> list[bytes]:
        """Return the replies that are due now, in order, and forget them."""
        replies = self._exchange.take_replies()
        if self._answer:
            replies += self._answer
            self._answer = []
        return replies

    def receive(self, message: ProcessingRequest) -> RequestReceived | None:
        """Take the next message; return the request that is to be decided with it, if any."""
        return self._act(self._exchange.receive(message))

    def pass_on(self, message: ProcessingRequest) -> bytes | None:
        """
        Return the reply to one more piece of a body that passes; None where `receive` is to tell.

        It says what `receive` would: streams are made of such pieces, and this is quicker.
        """
        if message.WhichOneof("request") != "response_body":
            return None
        piece = message.response_body
        body: bytes = piece.body
        if piece.end_of_stream or len(body) > MAX_PIECE_BYTES:
            return None
        assert self._routed is not None  # else it would not pass
        self._director.on_response_body(self._routed, body)
        head, tail = around_piece("response_body", len(body), end_of_stream=False)
        return head + body + tail

    def nothing_came(self) -> RequestReceived | None:
        """Note that `patience` ran out."""
        return self._act(self._exchange.nothing_came())

    def half_closed(self) -> RequestReceived | None:
        """Note that the peer will send no more."""
        return self._act(self._exchange.half_closed())

    def _act(self, event: events.Event | None) -> RequestReceived | None:
        if event is None:
            return None
        if isinstance(event, events.ResponseChunk):
            if self._routed is not None:
                self._director.on_response_body(self._routed, event.data)
        elif isinstance(event, RequestReceived):
            return event
        elif isinstance(event, events.RequestInvalid):
            self._director.refuse(event.raw, event.error)
            self._refuse(event.error)
        elif self._routed is not None:
            self._observe(self._routed, event)
        return None

    async def decide(self, request: RequestReceived) -> None:
        """
        Have a request decided.

        It may be begun outside a task: it does not need one before it suspends.
        """
        try:
            routed = await self._director.handle_request(request.raw)
        except EPPError as error:
            self._refuse(error)
            return
        self._routed = routed
        self._answered = True
        self._answer.extend(self._exchange.route(routed.decision))

    def _refuse(self, error: EPPError) -> None:
        self._answered = True
        self._answer.extend(self._exchange.refuse(error))

    def _observe(
        self, routed: RoutedRequest, event: events.ResponseStarted | events.ResponseEnded
    ) -> None:
        director = self._director
        if isinstance(event, events.ResponseStarted):
            self._started = event
            self.passes = self._exchange.passes_on
            director.on_response_headers(
                routed,
                status=event.status,
                media=event.media,
                served=event.served,
                body_follows=event.body_follows,
            )
        else:
            director.on_response_body(routed, event.chunk)
            director.on_response_end(routed)

    def refuse(self, error: EPPError) -> None:
        """Tell the client of an error that ends the stream, unless its request is answered."""
        if not self._answered:
            self._director.refuse(RawRequest({}, None), error)
            self._refuse(error)

    def finish(self, *, failed: bool, stopping: bool) -> None:
        """Give back what the request took, with the cause that what was seen suggests."""
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
