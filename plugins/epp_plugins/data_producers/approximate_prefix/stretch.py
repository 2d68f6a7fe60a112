"""
Stretches: runs of blocks that the same endpoints hold, and who holds them.

A prompt's blocks are kept not one by one but in stretches: whatever comes after its last fork is
one of them. As each block's hash covers all before it, a stretch is found by its first block, and
is the same to its end if only its last block is the same.
"""

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush
from itertools import compress
from typing import TypeVar

import msgspec

T = TypeVar("T")

SPARSE = 16
"""A mask with fewer bits than one in so many is searched for them."""

_AS_NUMBERS = bytes.maketrans(b"01", b"\0\1")


class Stretch(msgspec.Struct, eq=False, gc=False):
    """
    Blocks in a row, how many are before them and the last of those, and masks of holders' slots.

    `proven` are those of `holders` that have answered a request with these blocks. Stretches refer
    to each other by blocks alone, so that there is nothing in the thousands there may be that the
    garbage collector should look at.
    """

    blocks: "array[int]"
    depth: int
    before: int
    holders: int = 0
    proven: int = 0

    @property
    def end(self) -> int:
        """How many blocks a prompt has that ends with it."""
        return self.depth + len(self.blocks)

    def shared(self, blocks: "array[int]") -> int:
        """Return how many of its blocks these, which have its first at its depth, go along with."""
        own, depth = self.blocks, self.depth
        size = min(len(own), len(blocks) - depth)
        if own[size - 1] == blocks[depth + size - 1]:
            return size
        return bisect_left(range(size), 1, 1, key=lambda at: own[at] != blocks[depth + at])

    def cut(self, size: int) -> "Stretch":
        """Give the first so many blocks to a new stretch."""
        head = Stretch(self.blocks[:size], self.depth, self.before, self.holders, self.proven)
        self.blocks = self.blocks[size:]
        self.depth += size
        self.before = head.blocks[-1]
        return head


class Holder:
    """
    One life of an endpoint: its slot in the masks, and when it was last sent each stretch.

    Its stretches stand in a heap, the least recent first and of one prompt the last, because
    without its beginning the rest is worth nothing. An entry is not moved when its stretch is used
    again, but when it comes to the top and is found to be out of date.
    """

    __slots__ = ("_order", "bit", "capacity", "count", "live", "seen", "slot", "uses")

    def __init__(self, slot: int) -> None:
        self.slot = slot
        self.bit = 1 << slot
        self.count = 0
        self.capacity = 0
        self.seen = 0.0
        self.live = True
        self.uses: dict[Stretch, int] = {}
        self._order: list[tuple[int, int, Stretch]] = []

    def take(self, stretch: Stretch, used: int) -> None:
        """Hold one stretch more."""
        stretch.holders |= self.bit
        self.count += len(stretch.blocks)
        self.follow(stretch, used)

    def follow(self, stretch: Stretch, used: int) -> None:
        """Take note of a stretch that holds what another one held before."""
        self.uses[stretch] = used
        heappush(self._order, (used, -stretch.end, stretch))

    def drop(self, stretch: Stretch) -> None:
        """Hold a stretch no longer; what is left of it in the heap is no matter."""
        stretch.holders &= ~self.bit
        stretch.proven &= ~self.bit
        self.count -= len(stretch.blocks)
        del self.uses[stretch]
        if len(self._order) > 2 * len(self.uses) + 64:
            self._order = [(used, -one.end, one) for one, used in self.uses.items()]
            heapify(self._order)

    def oldest(self) -> Stretch:
        """Return the stretch that is to go first; there must be one."""
        order, uses = self._order, self.uses
        while True:
            listed, _, stretch = order[0]
            used = uses.get(stretch)
            if used == listed:
                return stretch
            heappop(order)
            if used is not None:
                heappush(order, (used, -stretch.end, stretch))


def set_items(mask: int, items: Sequence[T]) -> Iterator[T]:
    """Return the items that stand where the mask's bits are set, the lowest bit being the first."""
    digits = bin(mask)[:1:-1]
    if mask.bit_count() * SPARSE > len(digits):
        return compress(items, digits.encode().translate(_AS_NUMBERS))
    return _found(digits, items)


def _found(digits: str, items: Sequence[T]) -> Iterator[T]:
    """Yield the same of a mask with few bits; text is searched faster than a number is cut."""
    place = digits.find("1")
    while place >= 0:
        yield items[place]
        place = digits.find("1", place + 1)
