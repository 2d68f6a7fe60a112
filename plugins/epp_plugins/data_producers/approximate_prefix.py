"""
Remember who was sent which prompt, and expect it in that KV cache.

An approximation that asks no model server anything: a prompt is cut into blocks, each block is
hashed together with all before it, and an index says which endpoints were sent a block lately.
Blocks that an engine has evicted meanwhile are still expected there, blocks that reached it past
this picker are not.

The hashes are xxh64, equal in every process. They begin with the model's name and the cache salt,
so that nothing cached for one adapter or one tenant counts for another. Only whole blocks count,
and a match runs from the first block without a gap, since an engine can use nothing behind a gap.

The index is a dict from block to a bit mask of endpoints, so that looking up all endpoints at once
is one `&` a block. Each endpoint keeps its blocks in order of use; of one prompt the last block is
the oldest and is evicted first, because without the first block the rest is worth nothing.
"""

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from xxhash import xxh64_intdigest

from epp.framework import (
    PREFIX_MATCH,
    AttributeKey,
    DataProducer,
    Endpoint,
    EndpointLoad,
    EndpointView,
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

BYTES_PER_TOKEN = 4
"""What a token of text is taken for; token ids are four bytes each."""

MIN_BLOCK_TOKENS = 64
"""Smaller blocks cost time and memory, and the finer match changes no choice."""

RENOTE_SECONDS = 1.0
"""How long it may take to note that an endpoint is still a candidate."""

FORGET_SECONDS = 300.0
"""An endpoint that was no candidate for so long is forgotten."""

MAX_ENDPOINTS = 4096
"""Endpoints remembered at once, so that churn cannot fill the memory."""


class _Learned(NamedTuple):
    """What one request added to the index."""

    holder: "_Holder"
    blocks: Sequence[int]


class _Lookup(PrefixMatch, frozen=True):
    """
    The match, with what the request's later steps need, so that no table of open requests is kept.
    """

    blocks: Sequence[int] = ()
    learned: list[_Learned] = msgspec.field(default_factory=list)


class ApproximatePrefixProducer(
    DataProducer[PrefixMatch], PreRequest, ResponseCompletionObserver, StateDumper
):
    """
    Writes `prefix-match`: how many leading blocks of the prompt each candidate was sent before.

    A block is `blockSizeTokens`, at least 64, at four bytes a token. `maxPrefixBlocksToMatch`
    bounds the blocks of one prompt; 0 leaves the bound to the capacity. `lruCapacityPerServer` is
    how many blocks of `blockSizeTokens` an endpoint's cache is taken to hold.

    The endpoint that a request is sent to learns its blocks at once, so that requests right behind
    it follow; they are taken back where the model server fails the request. What an endpoint knows
    ends with its life: one that leaves and returns, or moves to another address, starts cold.
    """

    def __init__(
        self,
        *,
        context: PluginContext,
        block_size_tokens: int = 16,
        max_prefix_blocks_to_match: int = 2048,
        lru_capacity_per_server: int = 31250,
    ) -> None:
        _check("blockSizeTokens", block_size_tokens, 1)
        _check("maxPrefixBlocksToMatch", max_prefix_blocks_to_match, 0)
        _check("lruCapacityPerServer", lru_capacity_per_server, 1)
        block_tokens = max(block_size_tokens, MIN_BLOCK_TOKENS)
        capacity = max(1, lru_capacity_per_server * block_size_tokens // block_tokens)
        self._block_bytes = block_tokens * BYTES_PER_TOKEN
        self._max_blocks = min(max_prefix_blocks_to_match or capacity, capacity)
        self._index = _Index(capacity)
        self._clock = context.clock

    @property
    def produces(self) -> AttributeKey[PrefixMatch]:
        """The key under which the match is kept."""
        return PREFIX_MATCH

    def produce(self, request: InferenceRequest, endpoints: EndpointView) -> PrefixMatch:
        """Return how many leading blocks of the prompt each candidate is expected to hold."""
        blocks = self._blocks(request)
        matched = self._index.match(blocks, endpoints, self._clock())
        return _Lookup(matched, len(blocks), self._block_bytes, endpoints, blocks)

    def pre_request(self, request: InferenceRequest, result: SchedulingResult) -> Mapping[str, str]:
        """Let the chosen endpoint learn the prompt; add no headers."""
        lookup = request.attributes.get(PREFIX_MATCH)
        if isinstance(lookup, _Lookup) and lookup.blocks:
            learned = self._index.learn(lookup.blocks, result.endpoint, self._clock())
            lookup.learned.append(learned)
        return {}

    def on_response_complete(
        self,
        request: InferenceRequest,
        result: SchedulingResult,
        cause: TerminationCause,
        usage: Usage | None,
    ) -> None:
        """Take back what a failed request added: it may never have been computed."""
        lookup = request.attributes.get(PREFIX_MATCH)
        if isinstance(lookup, _Lookup) and cause is TerminationCause.MODEL_SERVER_ERROR:
            while lookup.learned:
                self._index.take_back(lookup.learned.pop())

    def dump_state(self) -> Mapping[str, Any]:
        """Return how much is remembered."""
        return self._index.sizes() | {"blockBytes": self._block_bytes}

    def _blocks(self, request: InferenceRequest) -> list[int]:
        """Return the hash of each whole block of the prompt, chained to all before it."""
        model = request.model.encode("utf-8", "surrogatepass")
        salt = request.cache_salt.encode("utf-8", "surrogatepass")
        # The length keeps a model and its salt apart from another pair with the same letters.
        block = xxh64_intdigest(b"%d:%b%b" % (len(model), model, salt))
        prompt, size = request.prompt, self._block_bytes
        blocks = []
        for end in range(size, min(len(prompt), self._max_blocks * size) + 1, size):
            block = xxh64_intdigest(prompt[end - size : end], block)
            blocks.append(block)
        return blocks


class _Holder:
    """
    One life of an endpoint: its place in the index's masks, and its blocks, least recent first.
    """

    __slots__ = ("blocks", "seen", "slot")

    def __init__(self, slot: int) -> None:
        self.slot = slot
        self.blocks: OrderedDict[int, None] = OrderedDict()
        self.seen = 0.0


class _Index:
    """
    Which endpoint holds which block.

    A bit is set in a block's mask exactly where the block is among the holder's; a block without
    holders has no entry. A slot serves a new holder only after the old one's blocks are cleared.
    """

    def __init__(self, capacity: int, max_endpoints: int = MAX_ENDPOINTS) -> None:
        self._capacity = capacity
        self._max_endpoints = max_endpoints
        self._masks: dict[int, int] = {}
        # By the object that all snapshots of one life share, and by address.
        self._holders: dict[tuple[EndpointLoad, str], _Holder] = {}
        self._retired: list[_Holder] = []
        self._free_slots: list[int] = []
        self._swept_at = 0.0
        self._placed: tuple[Endpoint, ...] | None = None
        self._placed_at = 0.0
        self._places: dict[int, int] = {}

    def match(self, blocks: Sequence[int], endpoints: EndpointView, now: float) -> Sequence[int]:
        """Return for each endpoint how many of the blocks it holds, up to the first gap."""
        self._tidy(now)
        ends = self._walk(blocks)
        if not any(slots for slots, _ in ends):
            return [0] * len(endpoints)
        places = self._places_in(endpoints.rows, now)
        matched = [0] * len(endpoints)
        for slots, depth in ends:
            for slot in _set_bits(slots):
                if slot in places:
                    matched[places[slot]] = depth
        return matched

    def _places_in(self, rows: tuple[Endpoint, ...], now: float) -> dict[int, int]:
        """
        Return where the holders stand among the rows, by their slots.

        Remembered for as long as the rows are the same and no holder came or went, but not longer
        than it takes to note that they are still there.
        """
        if rows is not self._placed or now - self._placed_at > RENOTE_SECONDS:
            self._places = {}
            for place, endpoint in enumerate(rows):
                holder = self._holders.get((endpoint.load, endpoint.destination))
                if holder is not None:
                    holder.seen = now
                    self._places[holder.slot] = place
            self._placed, self._placed_at = rows, now
        return self._places

    def _walk(self, blocks: Sequence[int]) -> list[tuple[int, int]]:
        """Return the masks of those that hold so many blocks and no more, with the number."""
        masks = self._masks
        ends = []
        holding = masks.get(blocks[0], 0) if blocks else 0
        for depth, block in enumerate(blocks):
            still = holding & masks.get(block, 0)
            if still != holding:
                ends.append((holding ^ still, depth))
                holding = still
            if not holding:
                return ends
        ends.append((holding, len(blocks)))
        return ends

    def learn(self, blocks: Sequence[int], endpoint: Endpoint, now: float) -> _Learned:
        """Note that the endpoint is sent the blocks, and return those that are new there."""
        holder = self._holder(endpoint, now)
        held, masks, bit = holder.blocks, self._masks, 1 << holder.slot
        new = []
        for block in reversed(blocks):
            if block in held:
                held.move_to_end(block)
            else:
                held[block] = None
                masks[block] = masks.get(block, 0) | bit
                new.append(block)
        while len(held) > self._capacity:
            self._unmask(held.popitem(last=False)[0], holder)
        return _Learned(holder, new)

    def take_back(self, learned: _Learned) -> None:
        """Undo a learning, as far as it is still there."""
        holder = learned.holder
        for block in learned.blocks:
            if block in holder.blocks:
                del holder.blocks[block]
                self._unmask(block, holder)

    def sizes(self) -> dict[str, int]:
        """Return how many endpoints and blocks there are, and how many blocks they hold in sum."""
        holders = [*self._holders.values(), *self._retired]
        return {
            "endpoints": len(self._holders),
            "blocks": len(self._masks),
            "heldBlocks": sum(len(holder.blocks) for holder in holders),
            "capacityPerEndpoint": self._capacity,
        }

    def _holder(self, endpoint: Endpoint, now: float) -> _Holder:
        """Return the endpoint's holder, a new one where it has none."""
        key = (endpoint.load, endpoint.destination)
        holder = self._holders.get(key)
        if holder is None:
            if len(self._holders) >= self._max_endpoints:
                self._retire(min(self._holders, key=lambda one: self._holders[one].seen))
            if not self._free_slots:
                self._free_slots.append(len(self._holders) + len(self._retired))
            holder = self._holders[key] = _Holder(self._free_slots.pop())
            self._placed = None
        holder.seen = now
        return holder

    def _tidy(self, now: float) -> None:
        """
        Retire those not seen between two sweeps, and clear one retired holder a call.

        One, because clearing some thousand blocks takes a millisecond of the request at hand. A
        holder counts as unseen only if requests came by without it, so that a quiet night makes
        nobody forget.
        """
        if now - self._swept_at > FORGET_SECONDS:
            for key in [key for key, one in self._holders.items() if one.seen < self._swept_at]:
                self._retire(key)
            self._swept_at = now
        if self._retired:
            holder = self._retired.pop()
            for block in holder.blocks:
                self._unmask(block, holder)
            holder.blocks.clear()
            self._free_slots.append(holder.slot)

    def _retire(self, key: tuple[EndpointLoad, str]) -> None:
        self._retired.append(self._holders.pop(key))
        self._placed = None

    def _unmask(self, block: int, holder: _Holder) -> None:
        rest = self._masks[block] & ~(1 << holder.slot)
        if rest:
            self._masks[block] = rest
        else:
            del self._masks[block]


def _set_bits(mask: int) -> Iterator[int]:
    """Yield the places of the bits that are set; text is searched faster than a number is cut."""
    digits = bin(mask)[:1:-1]
    place = digits.find("1")
    while place >= 0:
        yield place
        place = digits.find("1", place + 1)


def _check(name: str, value: int, least: int) -> None:
    if value < least:
        message = f"parameters.{name} must be at least {least}, got {value}"
        raise ValueError(message)
