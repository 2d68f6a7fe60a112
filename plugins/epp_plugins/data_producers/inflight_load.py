"""
Count what is in flight to each endpoint: requests, and prompt tokens still to compute.

These numbers are our own and never old: they hold between two scrapes and where nothing is scraped.
Tokens say more than requests do, for a prompt of a hundred thousand tokens keeps an engine busier
than a hundred short ones, and one that is cached costs nothing.

Only this picker's own requests are counted, and only those that this configuration routed: a
configuration that takes over begins with no tokens in flight.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from epp.framework import (
    INFLIGHT_LOAD,
    PREFIX_MATCH,
    PROMPT_TOKENS,
    AttributeKey,
    DataProducer,
    Endpoint,
    EndpointLoad,
    EndpointView,
    FirstByteObserver,
    InferenceRequest,
    InFlightLoad,
    PreRequest,
    ResponseCompletionObserver,
    SchedulingResult,
    StateDumper,
    TerminationCause,
    Usage,
)

MATCHED_BY = "approx-prefix-cache-producer"
BYTES_PER_TOKEN = 4
"""What a token is taken for where no producer says how many there are."""

LARGEST_RATIO = 1e6
LARGEST = 2**31


class _Held(msgspec.Struct, frozen=True):
    """Tokens that a request has in flight to one life of an endpoint."""

    load: EndpointLoad
    tokens: int
    to_the_end: bool


class _Entry(InFlightLoad, frozen=True):
    """
    The attribute, with what the request's later steps need, so that no table of open requests is
    kept.
    """

    places: Mapping[EndpointLoad, int] = msgspec.field(default_factory=dict)
    ledger: "_Ledger | None" = None
    held: list[_Held] = msgspec.field(default_factory=list)


class InFlightLoadProducer(
    DataProducer[InFlightLoad],
    PreRequest,
    FirstByteObserver,
    ResponseCompletionObserver,
    StateDumper,
):
    """
    Writes `inflight-load`: requests and uncached tokens in flight to each candidate, and our own.

    Requests are the framework's count, which survives a change of configuration and follows a
    request that the gateway took elsewhere. A request's tokens are those of its prompt that the
    endpoint does not hold, by `prefix-match`, and at least one, since no engine computes none. They
    count from the choice to the first byte of the response, when the prompt has been computed, or
    to the end of a request that gets none. Of a response that is not streamed the first byte is
    also the last.

    With `addEstimatedOutputTokens` the tokens that will be generated count as well, and all of them
    to the end: `outputRatio` times the prompt, but no more than the client allows, nor more than
    `maxEstimatedOutputTokens` where that is above 0. What a request has in flight to endpoints
    other than the one it is routed to, in other profiles, ends with the first byte in any case.

    `syncCrossReplicaState` is accepted; there is nothing to exchange with, so it has no effect.
    """

    consumes = (PROMPT_TOKENS, PREFIX_MATCH)

    def __init__(
        self,
        *,
        add_estimated_output_tokens: bool = False,
        output_ratio: float = 1.5,
        max_estimated_output_tokens: int = 0,
        prefix_match_info_producer_name: str = MATCHED_BY,
        sync_cross_replica_state: bool = True,
    ) -> None:
        if not 0.0 <= output_ratio <= LARGEST_RATIO:
            message = (
                f"parameters.outputRatio must be from 0 to {LARGEST_RATIO:g}, got {output_ratio}"
            )
            raise ValueError(message)
        if not 0 <= max_estimated_output_tokens <= LARGEST:
            message = (
                f"parameters.maxEstimatedOutputTokens must be from 0 to {LARGEST}, got"
                f" {max_estimated_output_tokens}"
            )
            raise ValueError(message)
        name = prefix_match_info_producer_name
        self.producers: Mapping[AttributeKey[Any], str] = (
            {} if name == MATCHED_BY else {PREFIX_MATCH: name}
        )
        self._ratio = output_ratio if add_estimated_output_tokens else None
        self._most_output = max_estimated_output_tokens
        self._ledger = _Ledger()

    @property
    def produces(self) -> AttributeKey[InFlightLoad]:
        """The key under which the load is kept."""
        return INFLIGHT_LOAD

    def produce(self, request: InferenceRequest, endpoints: EndpointView) -> InFlightLoad:
        """Return what each candidate has in flight now, and what the request would add."""
        ledger = self._ledger
        columns = ledger.columns_of(endpoints.rows)
        prompt_tokens = _prompt_tokens(request)
        return _Entry(
            [load.in_flight for load in columns.loads],
            # The live column, of which every open request may hold on to one for nothing.
            columns.tokens,
            _uncached_tokens(request, prompt_tokens, endpoints),
            prompt_tokens,
            endpoints,
            columns.places,
            ledger,
        )

    def pre_request(self, request: InferenceRequest, result: SchedulingResult) -> Mapping[str, str]:
        """Count the request's tokens where it goes; add no headers."""
        entry = self._entry(request)
        if entry is None:
            return {}
        chosen = result.endpoint.load
        more = self._output_tokens(request, entry)
        self._hold(entry, chosen, to_the_end=self._ratio is not None, more=more)
        for profile in result.profiles.values():
            load = profile.picked[0].endpoint.load
            if load is not chosen:
                self._hold(entry, load, to_the_end=False)
        return {}

    def on_first_byte(self, request: InferenceRequest, result: SchedulingResult) -> None:
        """Let go of the tokens that are computed now."""
        entry = self._entry(request)
        if entry is not None and entry.held:
            self._release([one for one in entry.held if not one.to_the_end])
            entry.held[:] = [one for one in entry.held if one.to_the_end]

    def on_response_complete(
        self,
        request: InferenceRequest,
        result: SchedulingResult,
        cause: TerminationCause,
        usage: Usage | None,
    ) -> None:
        """Let go of all that the request still holds."""
        entry = self._entry(request)
        if entry is not None and entry.held:
            self._release(entry.held)
            entry.held.clear()

    def dump_state(self) -> Mapping[str, int]:
        """Return how many tokens are in flight, and to how many endpoints."""
        tokens = self._ledger.tokens
        return {"endpoints": len(tokens), "tokens": sum(tokens.values())}

    def _entry(self, request: InferenceRequest) -> _Entry | None:
        """Return what this plugin, and no other of its type, wrote for the request."""
        entry = request.attributes.get(INFLIGHT_LOAD)
        return entry if isinstance(entry, _Entry) and entry.ledger is self._ledger else None

    def _output_tokens(self, request: InferenceRequest, entry: _Entry) -> int:
        if self._ratio is None:
            return 0
        tokens = int(self._ratio * entry.prompt_tokens + 0.5)
        if request.max_output_tokens is not None:
            tokens = min(tokens, request.max_output_tokens)
        return min(tokens, self._most_output) if self._most_output else tokens

    def _hold(self, entry: _Entry, load: EndpointLoad, *, to_the_end: bool, more: int = 0) -> None:
        at = entry.places.get(load)
        tokens = more + (entry.prompt_tokens if at is None else entry.uncached_tokens[at])
        self._ledger.add(load, tokens)
        entry.held.append(_Held(load, tokens, to_the_end))

    def _release(self, held: Sequence[_Held]) -> None:
        for one in held:
            self._ledger.add(one.load, -one.tokens)


class _Columns:
    """The tokens in flight to each endpoint of a pool, kept up to date."""

    __slots__ = ("loads", "places", "tokens")

    def __init__(self, loads: list[EndpointLoad], tokens: Mapping[EndpointLoad, int]) -> None:
        self.loads = loads
        self.places = {load: at for at, load in enumerate(loads)}
        self.tokens = [tokens.get(load, 0) for load in loads]


class _Ledger:
    """
    The tokens in flight to each life of an endpoint.

    One that has none has no entry, so that nothing is kept of endpoints that are gone once their
    last request has ended.
    """

    def __init__(self) -> None:
        # By the object that all snapshots of one life share.
        self.tokens: dict[EndpointLoad, int] = {}
        self._rows: tuple[Endpoint, ...] = ()
        self._columns = _Columns([], {})

    def columns_of(self, rows: tuple[Endpoint, ...]) -> _Columns:
        """Return the columns of these endpoints, made anew only where their lives are others."""
        if rows is not self._rows:
            # A scrape makes a new snapshot, of endpoints that mostly are the same lives.
            loads = [one.load for one in rows]
            self._rows = rows
            if loads != self._columns.loads:
                self._columns = _Columns(loads, self.tokens)
        return self._columns

    def add(self, load: EndpointLoad, tokens: int) -> None:
        """Count so many tokens more, or less."""
        left = self.tokens.pop(load, 0) + tokens
        if left:
            self.tokens[load] = left
        at = self._columns.places.get(load)
        if at is not None:
            self._columns.tokens[at] = left


def _prompt_tokens(request: InferenceRequest) -> int:
    tokens = request.attributes.get(PROMPT_TOKENS)
    return -(-len(request.prompt) // BYTES_PER_TOKEN) if tokens is None else tokens


def _uncached_tokens(
    request: InferenceRequest, prompt_tokens: int, endpoints: EndpointView
) -> list[int]:
    """Return the tokens of the prompt that each endpoint would have to compute."""
    match = request.attributes.get(PREFIX_MATCH)
    most = max(1, prompt_tokens)
    if match is None or not any(match.matched_blocks):
        return [most] * len(endpoints)
    blocks = match.blocks_of(endpoints)
    # Blocks are cut by bytes: with a tokenizer's count, a block is its share of the prompt.
    size = len(request.prompt)
    a_block = prompt_tokens * match.block_bytes / size if size else match.block_bytes / 4
    uncached = {one: max(1, most - int(one * a_block)) for one in set(blocks)}
    return [uncached[one] for one in blocks]
