"""
Keep a session on the endpoint that served it before, as a preference or as a constraint.

The turns of a conversation share a growing prompt, so the endpoint that served one has most of the
next in its cache. Two strategies tell which that was. With `encoded_endpoint_header` the client
carries the answer: each response names its endpoint in a header, which the client sends back; the
picker remembers nothing, and any replica understands it. With `session_id` the client only names
its session, and the picker remembers where it is.
"""

import base64
import binascii
import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

import msgspec

from epp.framework import (
    Endpoint,
    EndpointLoad,
    EndpointView,
    Filter,
    InferenceRequest,
    PluginContext,
    PreRequest,
    ResponseCompletionObserver,
    ResponseHeaderProvider,
    SchedulingResult,
    Scorer,
    StateDumper,
    TerminationCause,
    Usage,
)

DEFAULT_TOKEN_HEADER = "x-session-token"
DEFAULT_ID_HEADER = "x-session-id"

MAX_TOKEN_CHARS = 1024
"""Kubernetes allows names of 63 and 253 characters, and base64 makes a third more of them."""

LARGEST_SECONDS = 1e9

MAX_SESSIONS = 65_536
"""Sessions remembered at once, the latest; each takes a few hundred bytes."""

FAILED = (TerminationCause.MODEL_SERVER_ERROR, TerminationCause.MOVED)

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
"""What RFC 9110 allows as a header's name, which leaves out HTTP/2's `:path` and its like."""

Strategy = Literal["encoded_endpoint_header", "session_id"]


class EncodedEndpointHeaderConfig(
    msgspec.Struct, forbid_unknown_fields=True, frozen=True, rename="camel"
):
    """The header that carries the endpoint's name, both ways."""

    header: str = DEFAULT_TOKEN_HEADER


class Source(msgspec.Struct, forbid_unknown_fields=True, frozen=True, rename="camel"):
    """A place where a session's id may stand: a request header."""

    header: str = ""
    attribute: str = ""
    producer: str = ""


class SessionIdConfig(msgspec.Struct, forbid_unknown_fields=True, frozen=True, rename="camel"):
    """Where the session's id stands, the first that is not empty, and how long it is remembered."""

    sources: list[Source] = msgspec.field(default_factory=lambda: [Source(DEFAULT_ID_HEADER)])
    eviction_ttl_seconds: float = 300.0
    eviction_sweep_seconds: float = 10.0


class _Affinity(ResponseHeaderProvider, PreRequest, ResponseCompletionObserver, StateDumper):
    """What the scorer and the filter share: who a session is bound to, and all that keeps it so."""

    def __init__(
        self,
        *,
        context: PluginContext,
        strategy: Strategy = "encoded_endpoint_header",
        encoded_endpoint_header_config: EncodedEndpointHeaderConfig | None = None,
        session_id_config: SessionIdConfig | None = None,
        profile_name: str = "",
    ) -> None:
        self._profile = profile_name
        self._memory: _Memory
        if strategy == "session_id":
            if encoded_endpoint_header_config is not None:
                raise ValueError(_BELONGS.format("encodedEndpointHeaderConfig", strategy))
            self._memory = _Bindings(session_id_config or SessionIdConfig(), context)
        else:
            if session_id_config is not None:
                raise ValueError(_BELONGS.format("sessionIdConfig", strategy))
            self._memory = _Tokens(encoded_endpoint_header_config or EncodedEndpointHeaderConfig())

    def _bound(self, request: InferenceRequest, endpoints: EndpointView) -> int | None:
        """Return the position of the endpoint that the session is bound to, if it is there."""
        return self._memory.bound(request, endpoints)

    def pre_request(self, request: InferenceRequest, result: SchedulingResult) -> Mapping[str, str]:
        """Remember where the session goes; add no headers."""
        profile = result.profiles.get(self._profile or result.primary)
        if profile is not None:
            self._memory.bind(request, profile.picked[0].endpoint, profile.candidates)
        return {}

    def response_headers(
        self, request: InferenceRequest, result: SchedulingResult
    ) -> Mapping[str, str]:
        """Return the header by which the client can come back, if that is how it does."""
        profile = result.profiles.get(self._profile or result.primary)
        return {} if profile is None else self._memory.headers(profile.picked[0].endpoint)

    def on_response_complete(
        self,
        request: InferenceRequest,
        result: SchedulingResult,
        cause: TerminationCause,
        usage: Usage | None,
    ) -> None:
        """
        Let a session go that its endpoint failed: nailed to it, it could only fail again.

        The same goes for one that the gateway took elsewhere, which is bound there next, and for
        one whose first request was refused: nothing of it is there.
        """
        profile = result.profiles.get(self._profile or result.primary)
        if profile is None:
            return
        chosen = profile.picked[0].endpoint
        if cause in FAILED:
            self._memory.unbind(request, chosen)
        elif cause is TerminationCause.REFUSED:
            self._memory.unbind(request, chosen, only_new=True)
        else:
            self._memory.confirm(request, chosen)

    def dump_state(self) -> Mapping[str, int]:
        """Return how many sessions are remembered."""
        return {"sessions": self._memory.sessions}


class SessionAffinityScorer(_Affinity, Scorer):
    """
    The endpoint that the session is bound to scores 1, all others 0; without one everyone scores 0.

    A session is bound to the endpoint that its first request was sent to, in the profile
    `profileName` or else the one routed to. It moves where that endpoint is no candidate any more,
    is a new process under its name, or answers with a server error, where the gateway takes its
    request elsewhere, and where it refuses the first one; another choice made for other reasons
    does not move it. Sessions are forgotten `evictionTtlSeconds` after their last request,
    and the longest unused of more than 65,536; only a digest of an id is kept.

    A token names the endpoint as `namespace/name` in base64 (with several ports a pool's endpoints
    have a name for each), and outlives restarts of picker and endpoint alike. It holds no secret
    and gives no right: the filters of the profile apply to the endpoint it names.
    """

    def score(self, request: InferenceRequest, endpoints: EndpointView) -> Sequence[float]:
        """Return 1 for the endpoint of the session and 0 for all others."""
        scores = [0.0] * len(endpoints)
        at = self._bound(request, endpoints)
        if at is not None:
            scores[at] = 1.0
        return scores


class SessionAffinityFilter(_Affinity, Filter):
    """
    The endpoint that the session is bound to is kept alone; without one everybody is.

    Binding is that of `session-affinity-scorer`. Put it after the filters of what an endpoint can
    do, so that a session whose endpoint they remove may go elsewhere.
    """

    def filter(self, request: InferenceRequest, endpoints: EndpointView) -> Sequence[Endpoint]:
        """Return the endpoint of the session, or all."""
        at = self._bound(request, endpoints)
        return endpoints if at is None else [endpoints[at]]


class _Memory(Protocol):
    """How a strategy knows whom a session is bound to."""

    @property
    def sessions(self) -> int: ...
    def bound(self, request: InferenceRequest, endpoints: EndpointView) -> int | None: ...
    def bind(
        self, request: InferenceRequest, chosen: Endpoint, candidates: Sequence[Endpoint]
    ) -> None: ...
    def confirm(self, request: InferenceRequest, chosen: Endpoint) -> None: ...
    def unbind(
        self, request: InferenceRequest, chosen: Endpoint, *, only_new: bool = False
    ) -> None: ...
    def headers(self, chosen: Endpoint) -> Mapping[str, str]: ...


class _Tokens:
    """The client remembers: the name of the endpoint is in a header."""

    sessions = 0

    def __init__(self, config: EncodedEndpointHeaderConfig) -> None:
        self._header = _named(config.header, "parameters.encodedEndpointHeaderConfig.header")
        self._rows: tuple[Endpoint, ...] | None = None
        self._names: list[str] = []

    def bound(self, request: InferenceRequest, endpoints: EndpointView) -> int | None:
        namespace, _, name = _decoded(request.headers.get(self._header, "")).partition("/")
        if not name:
            return None
        if endpoints.rows is not self._rows:
            self._rows, self._names = endpoints.rows, [one.id.name for one in endpoints]
        # By name first, for that is a search in a column; few namespaces share a name.
        at = -1
        for _ in range(self._names.count(name)):
            at = self._names.index(name, at + 1)
            if endpoints[at].id.namespace == namespace:
                return at
        return None

    def bind(
        self, request: InferenceRequest, chosen: Endpoint, candidates: Sequence[Endpoint]
    ) -> None:
        """Nothing to remember."""

    def confirm(self, request: InferenceRequest, chosen: Endpoint) -> None:
        """Nothing to confirm."""

    def unbind(
        self, request: InferenceRequest, chosen: Endpoint, *, only_new: bool = False
    ) -> None:
        """Nothing to forget: the token is the client's."""

    def headers(self, chosen: Endpoint) -> Mapping[str, str]:
        return {self._header: base64.b64encode(str(chosen.id).encode()).decode()}


class _Binding(msgspec.Struct):
    """A session's life of an endpoint, when it was last seen, and whether it was served there."""

    load: EndpointLoad
    seen_at: float
    served: bool = False


class _Bindings:
    """The picker remembers: a session's id, as a digest, leads to a life of an endpoint."""

    def __init__(self, config: SessionIdConfig, context: PluginContext) -> None:
        place = "parameters.sessionIdConfig"
        self._headers = [
            _header(one, f"{place}.sources[{at}]") for at, one in enumerate(config.sources)
        ]
        if not self._headers:
            message = f"{place}.sources must not be empty"
            raise ValueError(message)
        self._ttl = _seconds(f"{place}.evictionTtlSeconds", config.eviction_ttl_seconds)
        self._sweep = _seconds(f"{place}.evictionSweepSeconds", config.eviction_sweep_seconds)
        self._clock = context.clock
        self._swept_at = context.clock()
        # The session seen last is the last, so that those to forget are the first.
        self._bindings: dict[bytes, _Binding] = {}

    @property
    def sessions(self) -> int:
        return len(self._bindings)

    def bound(self, request: InferenceRequest, endpoints: EndpointView) -> int | None:
        binding = self._bindings.get(self._session(request))
        if binding is None or self._clock() - binding.seen_at > self._ttl:
            return None
        load = binding.load
        return next((at for at, one in enumerate(endpoints.rows) if one.load is load), None)

    def bind(
        self, request: InferenceRequest, chosen: Endpoint, candidates: Sequence[Endpoint]
    ) -> None:
        now = self._clock()
        self._forget(now)
        session = self._session(request)
        if not session:
            return
        binding = self._bindings.pop(session, None)
        if binding is None or self._moves(binding, chosen, candidates, now):
            served = binding is not None and binding.load is chosen.load and binding.served
            binding = _Binding(chosen.load, now, served)
        binding.seen_at = now
        self._bindings[session] = binding
        if len(self._bindings) > MAX_SESSIONS:
            del self._bindings[next(iter(self._bindings))]

    def _moves(
        self, binding: _Binding, chosen: Endpoint, candidates: Sequence[Endpoint], now: float
    ) -> bool:
        """Say whether a session leaves its endpoint, and not just this one of its requests."""
        if binding.load is chosen.load or now - binding.seen_at > self._ttl:
            return True
        return all(one.load is not binding.load for one in candidates)

    def confirm(self, request: InferenceRequest, chosen: Endpoint) -> None:
        binding = self._bindings.get(self._session(request))
        if binding is not None and binding.load is chosen.load:
            binding.served = True

    def unbind(
        self, request: InferenceRequest, chosen: Endpoint, *, only_new: bool = False
    ) -> None:
        session = self._session(request)
        binding = self._bindings.get(session)
        if binding is None or binding.load is not chosen.load:
            return
        if not (only_new and binding.served):
            del self._bindings[session]

    def headers(self, chosen: Endpoint) -> Mapping[str, str]:
        return {}

    def _session(self, request: InferenceRequest) -> bytes:
        """Return a digest of the session's id, which clients choose; empty where there is none."""
        for header in self._headers:
            if name := request.headers.get(header):
                return hashlib.blake2b(
                    name.encode("utf-8", "surrogatepass"), digest_size=16
                ).digest()
        return b""

    def _forget(self, now: float) -> None:
        """Remove the sessions whose time is over, each `evictionSweepSeconds`."""
        if now - self._swept_at < self._sweep:
            return
        self._swept_at = now
        over = []
        for session, binding in self._bindings.items():
            if now - binding.seen_at <= self._ttl:
                break
            over.append(session)
        for session in over:
            del self._bindings[session]


_BELONGS = "parameters.{} must not be given where the strategy is {}"


def _decoded(token: str) -> str:
    """Return what a token says, "" where it says nothing that could be a name."""
    if not token or len(token) > MAX_TOKEN_CHARS:
        return ""
    try:
        return base64.b64decode(token, validate=True).decode()
    except (binascii.Error, ValueError):
        return ""


def _header(source: Source, place: str) -> str:
    if source.attribute or source.producer:
        message = (
            f"{place}.attribute: this version knows sessions by a request header only, got"
            f" {source.attribute or source.producer!r}"
        )
        raise ValueError(message)
    return _named(source.header, f"{place}.header")


def _named(header: str, place: str) -> str:
    if not _TOKEN.fullmatch(header):
        message = f"{place} must name a header, got {header!r}"
        raise ValueError(message)
    return header.lower()


def _seconds(place: str, value: float) -> float:
    if not 0.0 < value <= LARGEST_SECONDS:
        message = f"{place} must be above 0 and at most {LARGEST_SECONDS:g}, got {value}"
        raise ValueError(message)
    return value
