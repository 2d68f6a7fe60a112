"""
The index: which endpoint was sent which blocks, for as long as they should fit its cache.

A lookup goes from fork to fork, not from block to block: a prompt that follows one of earlier is
found by a comparison or two, however long it is. A mask says at once who holds a stretch; walking
on, it only ever loses bits, since what stands behind a gap is of no use to an engine.

A holder has as many blocks as its endpoint's cache is taken to hold. It evicts the least recent
prompts, and of one prompt the end before the beginning. Where it must, it evicts a little ahead, so
that not every request has to.

What an endpoint was sent counts from the moment it is sent, so that requests right behind follow,
but is proven only by an answer. Where a request fails, what it added is taken back as far as it is
unproven.
"""

from array import array
from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import NamedTuple

from epp.framework import Endpoint, EndpointLoad
from epp_plugins.data_producers.approximate_prefix.stretch import Holder, Stretch, set_items

RENOTE_SECONDS = 1.0
"""How long it may take to note that an endpoint is still a candidate."""

FORGET_SECONDS = 300.0
"""An endpoint that was no candidate for so long is forgotten."""

MAX_ENDPOINTS = 4096
"""Endpoints remembered at once, so that churn cannot fill the memory."""

CLEARED_AT_ONCE = 256
"""Stretches of a forgotten endpoint that one request clears: a fifth of a millisecond."""

AHEAD = 64
"""Who must evict evicts this part of the capacity more."""

MAX_KEPT = 64
"""Masks whose places among the candidates are remembered, and as many columns made of them."""

NOWHERE = -1
"""The place of a holder that is no candidate."""

BLOCK_BYTES, STRETCH_BYTES, HOLDING_BYTES = 8, 330, 190
"""What a block, a stretch of them, and each holder of a stretch take; measured, with dicts."""

_load_of = attrgetter("load")
_depth_of = attrgetter("depth")


class Learned(NamedTuple):
    """Who learned a prompt, and from which block on it was new there."""

    holder: Holder
    start: int


class Index:
    """
    Which endpoint holds which block.

    A stretch is known by its first block for as long as anybody holds it, and a holder's bit is in
    its mask exactly where it is among the holder's. Who holds a stretch holds the one before
    it. A slot serves a new holder only after the old one's stretches are cleared.
    """

    def __init__(self, max_endpoints: int = MAX_ENDPOINTS) -> None:
        self._max_endpoints = max_endpoints
        self._stretches: dict[int, Stretch] = {}
        self._blocks = 0
        self._lessons = 0
        # By the object that all snapshots of one life share.
        self._holders: dict[EndpointLoad, Holder] = {}
        self._by_slot: list[Holder] = []
        self._free_slots: list[int] = []
        self._retired: list[Holder] = []
        self._swept_at = self._noted_at = 0.0
        self._rows: Sequence[Endpoint] = ()
        self._loads: list[EndpointLoad] | None = None
        self._places: list[int] = []
        self._kept_places: dict[int, tuple[int, ...]] = {}
        self._kept_columns: dict[tuple[int, int], list[int]] = {}

    def match(self, blocks: "array[int]", rows: Sequence[Endpoint], now: float) -> list[int]:
        """Return for each endpoint how many of the blocks it holds, up to the first gap."""
        self._tidy(rows, now)
        levels = self._levels(blocks)
        if not levels:
            return [0] * len(rows)
        self._arrange(rows)
        matched = self._column(levels[0])
        for holders, depth in levels[1:]:
            for place in self._places_of(holders):
                matched[place] = depth
        return matched

    def learn(self, blocks: "array[int]", endpoint: Endpoint, capacity: int, now: float) -> Learned:
        """Note that the endpoint is sent the blocks; it holds `capacity` of them at most."""
        holder = self._holder(endpoint, now)
        holder.capacity = capacity
        start = len(blocks)
        for stretch in self._follow(blocks, holder):
            if not stretch.holders & holder.bit:
                start = min(start, stretch.depth)
                holder.take(stretch, self._lessons)
            else:
                holder.uses[stretch] = self._lessons
        self._evict(holder)
        return Learned(holder, start)

    def prove(self, learned: Learned, blocks: "array[int]") -> None:
        """Note that the holder, if it is still there, answered and so had all the blocks."""
        holder = learned.holder
        if not holder.live:
            return
        for stretch in self._follow(blocks, holder):
            if not stretch.holders & holder.bit:
                holder.take(stretch, self._lessons)
            holder.uses[stretch] = self._lessons
            stretch.proven |= holder.bit
        self._evict(holder)

    def take_back(self, learned: Learned, blocks: "array[int]") -> None:
        """
        Forget what a failed request added, but for what others have proven meanwhile.

        What others have added behind it goes too, until they are answered themselves: it would
        stand behind a gap.
        """
        holder, start = learned
        dropped = False
        depth = 0
        while depth < len(blocks) and holder.uses:
            stretch = self._stretches.get(blocks[depth])
            if stretch is None:
                depth += 1
                continue
            shared = stretch.shared(blocks)
            if depth < start < depth + shared:
                shared = start - depth
            stretch = self._cut(stretch, shared)
            # Not by its bit: a slot may be another's by now.
            if depth >= start and stretch in holder.uses and not stretch.proven & holder.bit:
                self._drop(holder, stretch)
                dropped = True
            depth += shared
        if dropped:
            self._close_gaps(holder)

    def _close_gaps(self, holder: Holder) -> None:
        ends = {stretch.blocks[-1] for stretch in holder.uses}
        for stretch in sorted(holder.uses, key=_depth_of):
            if stretch.depth and stretch.before not in ends:
                ends.discard(stretch.blocks[-1])
                self._drop(holder, stretch)

    def sizes(self) -> dict[str, int]:
        """Return how much is remembered, of how many, and in about how many bytes."""
        holders = [*self._holders.values(), *self._retired]
        holdings = sum(len(holder.uses) for holder in holders)
        return {
            "endpoints": len(self._holders),
            "blocks": self._blocks,
            "heldBlocks": sum(holder.count for holder in holders),
            "stretches": len(self._stretches),
            "capacityInBlocks": sum(holder.capacity for holder in self._holders.values()),
            "approximateBytes": self._blocks * BLOCK_BYTES
            + len(self._stretches) * STRETCH_BYTES
            + holdings * HOLDING_BYTES,
        }

    def _levels(self, blocks: "array[int]") -> list[tuple[int, int]]:
        """Return masks of holders, ever fewer, and how many blocks all of each hold, ever more."""
        stretches, total = self._stretches, len(blocks)
        levels: list[tuple[int, int]] = []
        depth, holding = 0, -1
        while depth < total:
            stretch = stretches.get(blocks[depth])
            if stretch is None or not (still := holding & stretch.holders):
                break
            shared = stretch.shared(blocks)
            depth += shared
            if still == holding:
                levels[-1] = (holding, depth)
            else:
                levels.append((still, depth))
                holding = still
            if shared < len(stretch.blocks):
                break
        return levels

    def _follow(self, blocks: "array[int]", holder: Holder) -> Iterator[Stretch]:
        """Yield the stretches that make up the blocks, made where there are none, for a lesson."""
        self._lessons += 1
        depth, total = 0, min(len(blocks), holder.capacity)
        if total < len(blocks):
            blocks = blocks[:total]
        while depth < total:
            stretch = self._stretches.get(blocks[depth])
            if stretch is None:
                stretch = Stretch(blocks[depth:], depth, blocks[depth - 1] if depth else 0)
                self._stretches[blocks[depth]] = stretch
                self._blocks += total - depth
            else:
                stretch = self._cut(stretch, stretch.shared(blocks))
            yield stretch
            depth += len(stretch.blocks)

    def _cut(self, stretch: Stretch, size: int) -> Stretch:
        """Return the first so many blocks of a stretch as one of their own, before the rest."""
        if size == len(stretch.blocks):
            return stretch
        head = stretch.cut(size)
        self._stretches[head.blocks[0]] = head
        self._stretches[stretch.blocks[0]] = stretch
        for holder in set_items(stretch.holders, self._by_slot):
            holder.follow(head, holder.uses[stretch])
        return head

    def _evict(self, holder: Holder) -> None:
        surplus = holder.count - holder.capacity
        if surplus > 0:
            surplus += holder.capacity // AHEAD
        while surplus > 0:
            stretch = holder.oldest()
            size = len(stretch.blocks)
            if size > surplus:  # then the rest of it is the oldest
                self._cut(stretch, size - surplus)
                continue
            self._drop(holder, stretch)
            surplus -= size

    def _drop(self, holder: Holder, stretch: Stretch) -> None:
        holder.drop(stretch)
        if not stretch.holders:
            self._blocks -= len(stretch.blocks)
            del self._stretches[stretch.blocks[0]]

    # Endpoints

    def _holder(self, endpoint: Endpoint, now: float) -> Holder:
        """Return the endpoint's holder, a new one where it has none."""
        holder = self._holders.get(endpoint.load)
        if holder is None:
            if len(self._holders) >= self._max_endpoints:
                self._retire(min(self._holders, key=lambda one: self._holders[one].seen))
            slot = self._free_slots.pop() if self._free_slots else len(self._by_slot)
            holder = self._holders[endpoint.load] = Holder(slot)
            self._by_slot[slot : slot + 1] = [holder]
            self._loads = None
        holder.seen = now
        return holder

    def _tidy(self, rows: Sequence[Endpoint], now: float) -> None:
        """
        Note who is there, retire those not seen between two sweeps, and clear some retired.

        Only some, because clearing thousands takes a millisecond of the request at hand. A holder
        counts as unseen only if requests came by without it, so that a quiet night makes nobody
        forget.
        """
        if now - self._noted_at > RENOTE_SECONDS:
            self._noted_at = now
            for load in map(_load_of, rows):
                if (holder := self._holders.get(load)) is not None:
                    holder.seen = now
        if now - self._swept_at > FORGET_SECONDS:
            for load in [load for load, one in self._holders.items() if one.seen < self._swept_at]:
                self._retire(load)
            self._swept_at = now
        if self._retired:
            self._clear(self._retired[-1])

    def _retire(self, load: EndpointLoad) -> None:
        holder = self._holders.pop(load)
        holder.live = False
        self._retired.append(holder)
        self._loads = None

    def _clear(self, holder: Holder) -> None:
        for _ in range(min(len(holder.uses), CLEARED_AT_ONCE)):
            self._drop(holder, holder.oldest())
        if not holder.uses:
            self._retired.remove(holder)
            self._free_slots.append(holder.slot)

    def _arrange(self, rows: Sequence[Endpoint]) -> None:
        """
        Know where the holders stand among the rows.

        Rows are new with every scrape of an endpoint, and mostly the same lives in the same order.
        """
        if rows is self._rows and self._loads is not None:
            return
        self._rows = rows
        loads = list(map(_load_of, rows))
        if loads == self._loads:
            return
        self._loads = loads
        self._places = [NOWHERE] * len(self._by_slot)
        for place, holder in enumerate(map(self._holders.get, loads)):
            if holder is not None:
                self._places[holder.slot] = place
        self._kept_places.clear()
        self._kept_columns.clear()

    def _column(self, level: tuple[int, int]) -> list[int]:
        """
        Return the numbers of blocks, as far as the first level goes.

        It is what all hold of a system prompt, say: the same for many a request, and much to fill
        in where endpoints are many.
        """
        kept = self._kept_columns.get(level)
        if kept is None:
            holders, depth = level
            kept = [0] * len(self._rows)
            for place in self._places_of(holders):
                kept[place] = depth
            if len(self._kept_columns) >= MAX_KEPT:
                self._kept_columns.clear()
            self._kept_columns[level] = kept
        return kept.copy()

    def _places_of(self, holders: int) -> tuple[int, ...]:
        """Return where these stand."""
        kept = self._kept_places.get(holders)
        if kept is None:
            found = set_items(holders, self._places)
            kept = tuple([place for place in found if place != NOWHERE])
            if len(self._kept_places) >= MAX_KEPT:
                self._kept_places.clear()
            self._kept_places[holders] = kept
        return kept
