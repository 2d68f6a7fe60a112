"""
The plugin: what is expected of the caches before a choice, learned from it, and taken back after.
"""

from array import array
from collections.abc import Mapping
from typing import Any

import msgspec

from epp.framework import (
    PREFIX_MATCH,
    AttributeKey,
    DataProducer,
    Endpoint,
    EndpointView,
    FirstByteObserver,
    InferenceRequest,
    PluginContext,
    PrefixMatch,
    PreRequest,
    ResponseCompletionObserver,
    SchedulingResult,
    StateDumper,
    TerminationCause,
    Usage,
)
from epp_plugins.data_producers.approximate_prefix.blocks import (
    BYTES_PER_TOKEN,
    BlockSize,
    hashes,
)
from epp_plugins.data_producers.approximate_prefix.index import Index, Learned

DEFAULT_LRU_CAPACITY = 31_250

LARGEST = 2**31

LOST = (
    TerminationCause.MODEL_SERVER_ERROR,
    TerminationCause.REFUSED,
    TerminationCause.MOVED,
)
"""Ends of a request whose prompt was not computed, or not here."""

LOST_UNLESS_BEGUN = (
    TerminationCause.CLIENT_DISCONNECTED,
    TerminationCause.DRAINED,
    TerminationCause.FAILED,
)
"""Ends before which, without a first byte, the prompt was most likely not computed."""


class _Sent(msgspec.Struct):
    """What a request taught when it was sent, and whether its response has begun."""

    learned: Learned
    begun: bool = False


class _Lookup(PrefixMatch, frozen=True):
    """
    The match, with what the request's later steps need, so that no table of open requests is kept.
    """

    blocks: "array[int]" = msgspec.field(default_factory=lambda: array("Q"))
    sent: list[_Sent] = msgspec.field(default_factory=list)


class ApproximatePrefixProducer(
    DataProducer[PrefixMatch],
    PreRequest,
    FirstByteObserver,
    ResponseCompletionObserver,
    StateDumper,
):
    """
    Writes `prefix-match`: how many leading blocks of the prompt each candidate was sent before.

    A block is four bytes a token, as token ids are. Its tokens are, with `autoTune`, the largest
    block that the pool reports, else `blockSizeTokens` (or its old name `blockSize`), but at least
    `minBlockSizeTokens`: finer blocks cost time and change no choice. Of a prompt the first
    `maxPrefixTokensToMatch` count, or `maxPrefixBlocksToMatch` blocks where that is 0; with both 0
    all do.

    An endpoint holds, with `autoTune`, the tokens that its own cache holds, as last scraped, else
    `lruCapacityPerServer` blocks of `blockSizeTokens`; where that is set to another number than the
    default, it also bounds what an endpoint reports. The field's picker takes engine blocks for its
    own larger ones, keeps the number of the first sight, and evicts beginnings first; not so here.

    The endpoint that a request is sent to learns its blocks at once, so that requests right behind
    it follow. They are taken back where the model server refuses the request or fails it, which is
    also what a gateway makes of a refused connection, where the gateway takes it elsewhere (there
    they are learned instead), and where it ends without a first byte, unless the gateway shows no
    responses. What an endpoint knows ends with its life: one that leaves and
    returns, or moves to another address, starts cold.
    """

    def __init__(
        self,
        *,
        context: PluginContext,
        auto_tune: bool = True,
        block_size_tokens: int = 16,
        block_size: int = 0,
        min_block_size_tokens: int = 64,
        max_prefix_tokens_to_match: int = 131_072,
        max_prefix_blocks_to_match: int = 2048,
        lru_capacity_per_server: int = DEFAULT_LRU_CAPACITY,
    ) -> None:
        _check("blockSizeTokens", block_size_tokens, 1)
        _check("blockSize", block_size, 0)
        _check("minBlockSizeTokens", min_block_size_tokens, 1)
        _check("maxPrefixTokensToMatch", max_prefix_tokens_to_match, 0)
        _check("maxPrefixBlocksToMatch", max_prefix_blocks_to_match, 0)
        _check("lruCapacityPerServer", lru_capacity_per_server, 1)
        configured = block_size or block_size_tokens
        self._block_size = BlockSize(configured, min_block_size_tokens, auto_tune=auto_tune)
        self._auto_tune = auto_tune
        self._max_tokens = max_prefix_tokens_to_match
        self._max_blocks = max_prefix_blocks_to_match
        self._capacity_tokens = lru_capacity_per_server * configured
        self._bounds_reports = lru_capacity_per_server != DEFAULT_LRU_CAPACITY
        self._index = Index()
        self._clock = context.clock

    @property
    def produces(self) -> AttributeKey[PrefixMatch]:
        """The key under which the match is kept."""
        return PREFIX_MATCH

    def produce(self, request: InferenceRequest, endpoints: EndpointView) -> PrefixMatch:
        """Return how many leading blocks of the prompt each candidate is expected to hold."""
        now, rows = self._clock(), endpoints.rows
        tokens = self._block_size.look(rows, now)
        most = self._max_tokens // tokens if self._max_tokens else self._max_blocks or None
        blocks = hashes(request, tokens * BYTES_PER_TOKEN, most)
        matched = self._index.match(blocks, rows, now)
        return _Lookup(matched, len(blocks), tokens * BYTES_PER_TOKEN, rows, blocks)

    def pre_request(self, request: InferenceRequest, result: SchedulingResult) -> Mapping[str, str]:
        """Let the chosen endpoint learn the prompt; add no headers."""
        lookup = request.attributes.get(PREFIX_MATCH)
        if isinstance(lookup, _Lookup) and lookup.blocks:
            endpoint = result.endpoint
            capacity = self._capacity(endpoint, lookup.block_bytes // BYTES_PER_TOKEN)
            learned = self._index.learn(lookup.blocks, endpoint, capacity, self._clock())
            lookup.sent.append(_Sent(learned))
        return {}

    def on_first_byte(self, request: InferenceRequest, result: SchedulingResult) -> None:
        """Take note that the prompt is computed, as far as one can tell."""
        lookup = request.attributes.get(PREFIX_MATCH)
        if isinstance(lookup, _Lookup):
            for sent in lookup.sent:
                sent.begun = True

    def on_response_complete(
        self,
        request: InferenceRequest,
        result: SchedulingResult,
        cause: TerminationCause,
        usage: Usage | None,
    ) -> None:
        """Take back what a failed request added, and believe what any other did."""
        lookup = request.attributes.get(PREFIX_MATCH)
        if not isinstance(lookup, _Lookup):
            return
        while lookup.sent:
            sent = lookup.sent.pop()
            if cause in LOST or (cause in LOST_UNLESS_BEGUN and not sent.begun):
                self._index.take_back(sent.learned, lookup.blocks)
            elif cause is not TerminationCause.RESPONSE_UNSEEN:
                self._index.prove(sent.learned, lookup.blocks)

    def dump_state(self) -> Mapping[str, Any]:
        """Return how much is remembered."""
        return self._index.sizes() | {"blockSizeTokens": self._block_size.tokens}

    def _capacity(self, endpoint: Endpoint, block_tokens: int) -> int:
        """Return how many of our blocks the endpoint's cache is taken to hold."""
        metrics = endpoint.metrics
        tokens = metrics.num_blocks * metrics.block_size if self._auto_tune else 0
        if not tokens or (self._bounds_reports and self._capacity_tokens < tokens):
            tokens = self._capacity_tokens
        return max(1, tokens // block_tokens)


def _check(name: str, value: int, least: int) -> None:
    if not least <= value <= LARGEST:
        message = f"parameters.{name} must be from {least} to {LARGEST}, got {value}"
        raise ValueError(message)
