"""
The exchange: one HTTP request and its response as ext_proc shows them, without any I/O.

Messages go in, and events come out for the director; decisions go in, and replies come out for the
door. It answers every phase that awaits an answer exactly once, with the type that phase awaits:

| request body mode    | reply to headers      | reply to the body                          |
|----------------------|-----------------------|--------------------------------------------|
| FULL_DUPLEX_STREAMED | the pick, at the end  | the whole body after it, in pieces         |
| BUFFERED(_PARTIAL)   | nothing, at once      | the pick                                   |
| STREAMED             | the pick, at once     | nothing, to each piece                     |
| NONE                 | the pick, at once     |                                            |

Envoy names its modes in `protocol_config` on the first message. Where that is missing (Envoy
before 1.34, NGINX Gateway Fabric), the messages tell: a body that comes before its headers were
answered is full duplex; one that comes whole from a client without pseudo headers is NGINX's,
which wants the headers reply and then the end of the stream. `patience` bounds the waiting where
they do not tell.
"""

from collections.abc import Iterable, Iterator, Mapping
from enum import Enum, auto

import msgspec

from epp.extproc import messages
from epp.extproc.messages import ProcessingRequest
from epp.extproc.response_body import ResponseBody
from epp.framework import BodyTooLarge, EPPError, RawRequest
from epp.requestcontrol import protocol
from epp.requestcontrol.director import RoutingDecision
from epp.requestcontrol.usage import Media

PATIENCE_SECONDS = 0.1
"""Half of Envoy's default message_timeout (200 ms), beyond which it gives up on the picker."""

_BUFFERED = (messages.BUFFERED, messages.BUFFERED_PARTIAL)
_UNSEEN = (messages.NONE, messages.STREAMED)


class RequestReceived(msgspec.Struct, frozen=True):
    """The request is whole, as far as it will be seen: a decision is due (`route` or `refuse`)."""

    raw: RawRequest


class RequestInvalid(msgspec.Struct, frozen=True):
    """The request cannot be taken: `refuse` is due."""

    raw: RawRequest
    error: EPPError


class ResponseStarted(msgspec.Struct, frozen=True):
    """
    Response headers passed by; `status` is 0 where they name none.

    `served` is the endpoint that served, where the gateway says so.
    """

    status: int
    media: Media
    served: str | None
    body_follows: bool


class ResponseChunk(msgspec.Struct, frozen=True):
    """A piece of the response body passed by, or all of one that was held together."""

    data: bytes


class ResponseEnded(msgspec.Struct, frozen=True):
    """The end of the response was seen; `chunk` is what came with it."""

    chunk: bytes = b""


Event = RequestReceived | RequestInvalid | ResponseStarted | ResponseChunk | ResponseEnded


class _Phase(Enum):
    """How far the request side has come."""

    START = auto()
    COLLECTING = auto()
    DECIDING = auto()
    DONE = auto()


class Exchange:
    """
    The state machine of one ext_proc stream.

    `receive` each message, write out `take_replies`, then act on the event: give RequestReceived's
    decision to `route` or its error to `refuse`, and write what they yield.
    """

    def __init__(self, *, max_body_bytes: int) -> None:
        self._max_body_bytes = max_body_bytes
        self._phase = _Phase.START
        self._configured = False
        self._mode: int | None = None
        self._response_mode: int | None = None
        self._late_duplex = False
        self._awaiting = "request_headers"
        self._headers: dict[str, str] = {}
        self._hint: tuple[str, ...] | None = None
        self._chunks: list[bytes] = []
        self._size = 0
        self._in_trailers = False
        self._withheld: Iterable[bytes] | None = None
        self._replies: list[bytes] = []
        self._response: ResponseBody | None = None
        self._restore: tuple[str, str] | None = None
        self._silent = False
        self._set_on_response: Mapping[str, str] = {}
        self.finished = False
        """True once the response ended, or the request was refused: the stream may be ended."""

    @property
    def patience(self) -> float | None:
        """Seconds to wait for the next message before `nothing_came` must be told, or None."""
        if self._withheld is not None:
            return PATIENCE_SECONDS
        if self._phase is _Phase.COLLECTING and self._mode is None and not self._chunks:
            return PATIENCE_SECONDS
        return None

    @property
    def passes_on(self) -> bool:
        """Whether each piece of the response's body is answered with itself, and nothing else."""
        return self._response is not None and self._response.passes_on and not self._silent

    def take_replies(self) -> list[bytes]:
        """Return the replies that are due now, in order, and forget them."""
        replies, self._replies = self._replies, []
        return [] if self._silent else replies

    def receive(self, message: ProcessingRequest) -> Event | None:
        """Take the next message; return what it means to the director, if anything."""
        kind = message.WhichOneof("request")
        if kind is None:
            return None
        if self._phase is _Phase.START:
            self._begin(message)
        if self._withheld is not None:
            self.nothing_came()
        if kind == "response_body":
            return self._response_body(message)
        if kind.startswith("response"):
            headers = kind == "response_headers"
            return self._response_headers(message) if headers else self._response_trailers()
        return self._request(kind, message)

    def _request(self, kind: str, message: ProcessingRequest) -> Event | None:
        if self._phase is not _Phase.DONE:
            hint = messages.subset_hint(message)
            self._hint = self._hint if hint is None else hint
        if kind == "request_headers":
            return self._request_headers(message)
        return self._request_body(message) if kind == "request_body" else self._request_trailers()

    def nothing_came(self) -> Event | None:
        """
        Note that `patience` ran out.

        A gateway that waits for its headers reply gets a pick without a body; a client that was
        taken for NGINX's, but did not close its side, gets the body replies withheld from it.
        """
        if self._withheld is not None:
            self._replies.extend(self._withheld)
            self._withheld = None
            return None
        if self.patience is None:
            return None
        return self._whole(body=None)

    def half_closed(self) -> Event | None:
        """
        Note that the peer will send no more.

        Envoy does this when its client has gone, or when all is over; a client without pseudo
        headers does it when its request is whole, and waits for the end of the stream.
        """
        self._withheld = None
        if self._phase is _Phase.COLLECTING and self._is_headless:
            return self._whole(body=b"".join(self._chunks) if self._chunks else None)
        return None

    def route(self, decision: RoutingDecision) -> Iterator[bytes]:
        """Yield the replies that carry a decision out, in the protocol's order."""
        self._phase = _Phase.DONE
        self._restore = decision.restore_model
        self._set_on_response = decision.response_headers
        if self._silent:
            return
        if self._awaiting == "request_headers":
            yield from self._route_in_headers(decision)
        elif self._awaiting == "request_body":
            yield self._pick_in_body(decision)
        else:
            yield messages.pick_in_trailers(decision.destination)
        self._chunks = []

    def refuse(self, error: EPPError) -> Iterator[bytes]:
        """Yield the reply that ends the request with an error."""
        self._phase = _Phase.DONE
        self._chunks = []
        self.finished = True
        if not self._silent:
            yield messages.immediate(error)

    # The request side

    def _begin(self, message: ProcessingRequest) -> None:
        """Take note of what holds for all messages, and may come with the first alone."""
        self._silent = message.observability_mode
        if not message.HasField("protocol_config"):
            return
        config = message.protocol_config
        self._configured = True
        self._mode = config.request_body_mode
        self._response_mode = config.response_body_mode

    @property
    def _is_headless(self) -> bool:
        """No configuration and no pseudo headers: a client that is no Envoy."""
        return not self._configured and ":method" not in self._headers

    def _request_headers(self, message: ProcessingRequest) -> Event | None:
        if self._phase is not _Phase.START:
            return None
        self._phase = _Phase.COLLECTING
        self._headers = messages.headers_of(message.request_headers)
        if message.request_headers.end_of_stream or self._mode in _UNSEEN:
            return self._whole(body=None)
        declared = self._headers.get("content-length", "")
        if declared.isdecimal() and len(declared) < 20 and int(declared) > self._max_body_bytes:
            return self._too_large()
        if self._mode in _BUFFERED:
            self._awaiting = "request_body"
            self._replies.append(messages.plain("request_headers"))
        return None

    def _request_body(self, message: ProcessingRequest) -> Event | None:
        piece = message.request_body
        if self._phase is not _Phase.COLLECTING:
            if self._phase is _Phase.DONE and not self.finished:
                self._answer_late_piece(piece.body, end_of_stream=piece.end_of_stream)
            return None
        if self._mode is None:
            self._mode = messages.FULL_DUPLEX_STREAMED
        self._chunks.append(piece.body)
        self._size += len(piece.body)
        if self._size > self._max_body_bytes:
            return self._too_large()
        if piece.end_of_stream or self._mode == messages.BUFFERED_PARTIAL:
            partial = not piece.end_of_stream
            return self._whole(body=None if partial else b"".join(self._chunks))
        return None

    def _answer_late_piece(self, piece: bytes, *, end_of_stream: bool) -> None:
        """Answer a body piece that comes after the decision, where its mode awaits an answer."""
        if self._mode is None:
            # Picked without the body: one that comes whole is buffered, one in pieces full duplex.
            self._mode = messages.BUFFERED if end_of_stream else messages.FULL_DUPLEX_STREAMED
            self._late_duplex = not end_of_stream
            if end_of_stream:
                self._replies.append(messages.plain("request_body"))
        elif self._mode == messages.STREAMED:
            self._replies.append(messages.plain("request_body"))
        if self._late_duplex:
            self._late_duplex = not end_of_stream
            self._replies.extend(
                messages.streamed_body("request_body", piece, end_of_stream=end_of_stream)
            )

    def _request_trailers(self) -> Event | None:
        if self._phase is _Phase.COLLECTING:
            if self._mode is None:
                self._mode = messages.FULL_DUPLEX_STREAMED
            self._in_trailers = True
            if self._mode in _BUFFERED:
                self._awaiting = "request_trailers"
            return self._whole(body=b"".join(self._chunks) if self._chunks else None)
        in_duplex = self._mode == messages.FULL_DUPLEX_STREAMED and not self._late_duplex
        if self._phase is _Phase.DONE and not self.finished and not in_duplex:
            self._late_duplex = False
            self._replies.append(messages.plain("request_trailers"))
        return None

    def _whole(self, body: bytes | None) -> RequestReceived:
        self._phase = _Phase.DECIDING
        return RequestReceived(RawRequest(self._headers, body, self._hint))

    def _too_large(self) -> RequestInvalid:
        self._phase = _Phase.DECIDING
        self._chunks = []
        error = BodyTooLarge(f"request body is larger than {self._max_body_bytes} bytes")
        return RequestInvalid(RawRequest(self._headers, None, self._hint), error)

    def _route_in_headers(self, decision: RoutingDecision) -> Iterator[bytes]:
        duplex = self._mode == messages.FULL_DUPLEX_STREAMED
        body = decision.body if decision.body is not None else b"".join(self._chunks)
        set_headers = decision.set_headers
        if duplex and self._chunks and not self._in_trailers:
            set_headers = {**set_headers, "content-length": str(len(body))}
        yield messages.pick(
            "request_headers", decision.destination, set_headers, decision.remove_headers
        )
        if duplex and self._is_headless and len(self._chunks) == 1:
            self._withheld = list(self._body_replies(body))
        elif duplex:
            yield from self._body_replies(body)

    def _pick_in_body(self, decision: RoutingDecision) -> bytes:
        set_headers = decision.set_headers
        if decision.body is not None:
            # Envoy takes a buffered body of another length for a mistake unless it is announced.
            set_headers = {**set_headers, "content-length": str(len(decision.body))}
        return messages.pick(
            "request_body",
            decision.destination,
            set_headers,
            decision.remove_headers,
            decision.body,
        )

    def _body_replies(self, body: bytes) -> Iterator[bytes]:
        if self._chunks:
            yield from messages.streamed_body(
                "request_body", body, end_of_stream=not self._in_trailers
            )
        if self._in_trailers:
            yield messages.plain("request_trailers")

    # The response side

    @property
    def _response_body_mode(self) -> int:
        if self._response_mode is not None:
            return self._response_mode
        # Without a configuration, the response goes as the request went; full duplex if unknown
        # (llm-d's Envoy 1.33).
        duplex = self._mode in (None, messages.FULL_DUPLEX_STREAMED)
        return messages.FULL_DUPLEX_STREAMED if duplex else messages.STREAMED

    def _response_headers(self, message: ProcessingRequest) -> Event:
        self._phase = _Phase.DONE
        headers = messages.headers_of(message.response_headers)
        status = headers.get(":status") or headers.get("status") or ""
        media = _media(headers)
        remove = [name for name in headers if name in protocol.CONTROL_HEADERS]
        self._response = ResponseBody(
            self._response_body_mode,
            holds=media == "json",
            restore=None if "content-encoding" in headers else self._restore,
        )
        if self._response.changes_length:
            remove.append("content-length")
        self._replies.append(messages.response_headers(remove, self._set_on_response))
        self.finished = message.response_headers.end_of_stream
        shown = self._response_body_mode != messages.NONE and not self.finished
        return ResponseStarted(
            int(status) if status.isdecimal() and len(status) == 3 else 0,
            media,
            messages.served_endpoint(message),
            body_follows=shown,
        )

    def _response_body(self, message: ProcessingRequest) -> Event | None:
        self._phase = _Phase.DONE
        piece = message.response_body
        if self._response is None:
            self._response = ResponseBody(self._response_body_mode, holds=False, restore=None)
        if self.finished:
            return None
        seen = self._response.take(piece.body, self._replies, end_of_stream=piece.end_of_stream)
        if piece.end_of_stream:
            self.finished = True
            return ResponseEnded(seen)
        return ResponseChunk(seen) if seen else None

    def _response_trailers(self) -> Event | None:
        self._phase = _Phase.DONE
        seen = b""
        if self._response is not None and not self.finished:
            seen = self._response.flush(self._replies)
        self._replies.append(messages.plain("response_trailers"))
        if self.finished:
            return None
        self.finished = True
        return ResponseEnded(seen)


def _media(headers: Mapping[str, str]) -> Media:
    """What can be read of a body with these headers."""
    content_type = headers.get("content-type", "")
    if "content-encoding" in headers:
        return "opaque"
    if "text/event-stream" in content_type:
        return "events"
    return "json" if "application/json" in content_type else "opaque"
