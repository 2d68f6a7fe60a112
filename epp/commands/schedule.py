"""
`epp schedule`: where would a request go, over a pool that is written down?

A configuration's own plugins decide, by the same path as in a running picker; only the endpoints,
what was scraped of them and what the picker had sent there come from a state file:

    endpoints:
    - name: a
      metrics: {waiting: 2, running: 5, kvUsage: 0.4, runningAdapters: [sql], maxAdapters: 4}
      labels: {tier: large}
      inFlight: 1                     # requests of the picker that are open there
      open:   [{model: sql, prompt: …}]   # the same, in full: plugins remember them
      served: [{model: sql, prompt: …}]   # requests that ended there: their prompts are cached

An endpoint without `metrics` has never been scraped. `ageSeconds` in them makes them older.
"""

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec
from rich.console import Group, RenderableType
from rich.table import Table

from epp.commands.explain import profile_table
from epp.config import loader
from epp.config.document import strict_tree
from epp.framework import (
    ConfigError,
    Endpoint,
    EndpointId,
    EndpointMetrics,
    EndpointView,
    EPPError,
    RawRequest,
    TerminationCause,
)
from epp.framework.validation import described
from epp.observability.logs import RequestLog
from epp.observability.metrics import Metrics
from epp.requestcontrol.decisions import RecentDecisions, explained
from epp.requestcontrol.director import Director
from epp.requestcontrol.policies import Policies
from epp.requestcontrol.reload import scorer_weights
from epp.requestcontrol.understanding import understand

STALE_SECONDS = 2.0
"""As of `epp serve`: older values are not trusted."""

Count = Annotated[int, msgspec.Meta(ge=0)]


class _Section(msgspec.Struct, forbid_unknown_fields=True, rename="camel", kw_only=True):
    """What all sections share: camelCase keys, and none that is not known."""


class State(_Section):
    """A pool written down."""

    endpoints: list["EndpointState"]


class EndpointState(_Section):
    """One endpoint; its address is made up where none is given."""

    name: str
    namespace: str = "default"
    address: str = ""
    port: Annotated[int, msgspec.Meta(ge=1, le=65535)] = 8000
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    metrics: "MetricsState | None" = None
    in_flight: Count = 0
    open: list["PastRequest"] = msgspec.field(default_factory=list)
    served: list["PastRequest"] = msgspec.field(default_factory=list)


class MetricsState(_Section):
    """What was scraped, and how long ago."""

    waiting: Count = 0
    running: Count = 0
    kv_usage: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.0
    running_adapters: set[str] = msgspec.field(default_factory=set)
    waiting_adapters: set[str] = msgspec.field(default_factory=set)
    max_adapters: Count = 0
    base_models: set[str] = msgspec.field(default_factory=set)
    block_size: Count = 0
    num_blocks: Count = 0
    age_seconds: Annotated[float, msgspec.Meta(ge=0)] = 0.0


class PastRequest(_Section):
    """A request that the picker sent to an endpoint before."""

    model: str = "model"
    prompt: str | list[int] = ""
    headers: dict[str, str] = msgspec.field(default_factory=dict)


def read_state(document: bytes) -> State:
    """Return a state file's pool; ConfigError says what is wrong in it, and where."""
    tree = strict_tree(document, "the state")
    try:
        state = msgspec.convert(tree, State)
    except msgspec.ValidationError as error:
        message = f"the state: {described(error, tree, State)}"
        raise ConfigError(message) from error
    names = Counter((one.namespace, one.name) for one in state.endpoints)
    for (namespace, name), count in names.items():
        if count > 1:
            message = f"the state: endpoints: {namespace}/{name} is there {count} times"
            raise ConfigError(message)
    if not state.endpoints:
        raise ConfigError("the state: endpoints: there is none to choose from")
    return state


def read_request(document: bytes | None, headers: Mapping[str, str]) -> RawRequest:
    """Return a request whose body is the document, on the path that a body like it is sent to."""
    if document is None:
        document = json.dumps({"model": "model", "prompt": ""}).encode()
    try:
        body = msgspec.json.decode(document)
    except msgspec.DecodeError as error:
        message = f"the request is no JSON: {error}"
        raise ConfigError(message) from error
    chat = isinstance(body, dict) and "messages" in body
    path = "/v1/chat/completions" if chat else "/v1/completions"
    return RawRequest({":method": "POST", ":path": path, **headers}, document)


def run(
    configuration: loader.Configuration, state: State, raw: RawRequest, *, draws: int, seed: int
) -> dict[str, Any]:
    """
    Return what is decided: scores, what filters removed, and how often who is picked.

    Raises ConfigError where the request is refused.
    """
    return asyncio.run(_Trial(configuration, state, seed).decide(raw, draws))


class _Trial:
    """A picker without ports, over endpoints that were written down."""

    def __init__(self, configuration: loader.Configuration, state: State, seed: int) -> None:
        self._clock = time.monotonic
        self._weights = scorer_weights(configuration)
        metrics = Metrics()
        self._policies = Policies.from_config(
            configuration, metrics, random.Random(seed), producer_deadline_seconds=1.0
        )
        self._endpoints = [
            _endpoint(at, one, self._clock()) for at, one in enumerate(state.endpoints)
        ]
        self._state = state
        self._candidates: Sequence[Endpoint] = ()
        self._director = Director(
            endpoints=lambda: self._candidates,
            policies=self._policies,
            decisions=RecentDecisions(weights=self._weights, clock=self._clock),
            metrics=metrics,
            log=RequestLog(None),
            clock=self._clock,
        )

    async def decide(self, raw: RawRequest, draws: int) -> dict[str, Any]:
        """Let the past happen, then decide about the request, as often as asked."""
        view = EndpointView(tuple(self._endpoints))
        try:
            await self._remember()
            request = understand(raw, self._policies.parsers).request
            await self._policies.producers.run(request, view)
            results = [self._policies.scheduler.schedule(request, view) for _ in range(draws)]
        except EPPError as error:
            message = f"the request is refused with status {error.status}: {error}"
            raise ConfigError(message) from error
        now, result = self._clock(), results[0]
        picks = Counter(str(one.endpoint.id) for one in results)
        return {
            "model": request.model,
            "primary": result.primary,
            "picks": {name: count / draws for name, count in picks.most_common()},
            "fallbacks": [
                str(one.endpoint.id) for one in result.profiles[result.primary].picked[1:]
            ],
            "profiles": {
                name: explained(one, self._weights.get(name, {}), now, limit=len(self._endpoints))
                for name, one in result.profiles.items()
            },
        }

    async def _remember(self) -> None:
        """Send past requests to where they went, by the path that every request takes."""
        for endpoint, one in zip(self._endpoints, self._state.endpoints, strict=True):
            self._candidates = (endpoint,)
            for past in one.served:
                routed = await self._director.handle_request(_raw(past))
                self._director.on_response_body(routed, b" ")
                self._director.finish(routed, TerminationCause.COMPLETED)
            for past in one.open:
                await self._director.handle_request(_raw(past))
            endpoint.load.in_flight += one.in_flight


def _raw(past: PastRequest) -> RawRequest:
    body = json.dumps({"model": past.model, "prompt": past.prompt or " "}).encode()
    return RawRequest({":method": "POST", ":path": "/v1/completions", **past.headers}, body)


def _endpoint(at: int, state: EndpointState, now: float) -> Endpoint:
    metrics, stale = EndpointMetrics(), True
    if state.metrics is not None:
        one = state.metrics
        stale = one.age_seconds > STALE_SECONDS
        metrics = EndpointMetrics(
            waiting=one.waiting,
            running=one.running,
            kv_usage=one.kv_usage,
            running_adapters=frozenset(one.running_adapters),
            waiting_adapters=frozenset(one.waiting_adapters),
            max_adapters=one.max_adapters,
            base_models=frozenset(one.base_models),
            block_size=one.block_size,
            num_blocks=one.num_blocks,
            updated_at=now - one.age_seconds,
        )
    return Endpoint(
        EndpointId(state.namespace, state.name),
        state.address or f"10.0.{at // 250}.{at % 250 + 1}",
        state.port,
        state.labels,
        metrics,
        stale,
    )


def table(decided: Mapping[str, Any]) -> RenderableType:
    """Return what was decided as tables, one for each profile that ran."""
    parts: list[RenderableType] = []
    for name, profile in decided["profiles"].items():
        parts.append(profile_table(name, profile))
        parts += [
            f"filter {filter_name} removed {', '.join(gone)}"
            for filter_name, gone in profile["removed"].items()
        ]
    picks = Table("picked", "share of the draws")
    for name, share in decided["picks"].items():
        picks.add_row(name, f"{share:.1%}")
    return Group(*parts, picks)


def read_file(path: Path | None) -> bytes | None:
    """Return a file's bytes; ConfigError where it cannot be read."""
    if path is None:
        return None
    try:
        return path.read_bytes()
    except OSError as error:
        message = f"{path}: {error.strerror}"
        raise ConfigError(message) from error
