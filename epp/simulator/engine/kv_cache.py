"""
The KV cache: memory in blocks of tokens, with prefixes shared and the longest unused evicted.

A block that is full carries the hash of all tokens up to its end; a later request that begins with
the same tokens takes the block over instead of computing it. A block that nobody holds is free, yet
keeps its content until it is needed: the free queue gives out blocks without content first, then
the longest unused. Of one request the last blocks go first, for a prefix without its beginning is
worth nothing.

Blocks are not made unique: a prompt that is cached to its very end computes its last block again,
so a hash may stand for several blocks, and is found until the last of them is gone.
"""

from collections import OrderedDict
from collections.abc import Sequence

from epp.simulator.engine.cache_events import AllBlocksCleared, BlockRemoved, CacheEvent

_NULL_BLOCK = 0
"""Block 0 pads block tables in vLLM and is never given out; so it is here."""


class KVCache:
    """
    All blocks of one engine: who holds them, what is in them, which are free.

    A held block has as many holders as requests list it; the caller keeps those lists.
    """

    def __init__(
        self, num_blocks: int, block_size: int, *, prefix_caching: bool = True, events: bool = False
    ) -> None:
        self.block_size = block_size
        self.usable_blocks = num_blocks - 1
        self.prefix_caching = prefix_caching
        self._keep_events = events and prefix_caching
        self._events: list[CacheEvent] = []
        self._holders = [0] * num_blocks
        self._content: list[bytes | None] = [None] * num_blocks
        self._cached: dict[bytes, list[int]] = {}
        self._free = OrderedDict.fromkeys(range(_NULL_BLOCK + 1, num_blocks))

    @property
    def free_blocks(self) -> int:
        """How many blocks nobody holds, with content or without."""
        return len(self._free)

    @property
    def usage(self) -> float:
        """The held fraction of all usable blocks."""
        return 1.0 - len(self._free) / self.usable_blocks

    @property
    def keeps_events(self) -> bool:
        """Whether anybody wants to know what happens."""
        return self._keep_events

    def blocks_for(self, num_tokens: int) -> int:
        """How many blocks this many tokens take."""
        return -(-num_tokens // self.block_size)

    def lookup(self, hashes: Sequence[bytes], num_tokens: int) -> list[int]:
        """
        Return the leading blocks that are cached, of a request of so many tokens.

        Its last token is never among them: something must be computed for a token to come out.
        """
        found: list[int] = []
        if not self.prefix_caching:
            return found
        cached = self._cached
        for block_hash in hashes[: (num_tokens - 1) // self.block_size]:
            blocks = cached.get(block_hash)
            if blocks is None:
                break
            found.append(blocks[0])
        return found

    def free_among(self, blocks: Sequence[int]) -> int:
        """How many of these blocks nobody holds: taking them over lessens the free ones."""
        holders = self._holders
        return sum(not holders[block] for block in blocks)

    def held_alone(self, blocks: Sequence[int]) -> int:
        """How many of one request's blocks nobody else holds: they are free when it leaves."""
        holders = self._holders
        return sum(holders[block] == 1 for block in blocks)

    def share(self, blocks: Sequence[int]) -> None:
        """Hold blocks that a lookup found."""
        for block in blocks:
            if not self._holders[block]:
                del self._free[block]
            self._holders[block] += 1

    def allocate(self, count: int) -> list[int]:
        """Hold blocks for new content, evicting what they kept; there must be enough free."""
        taken = []
        for _ in range(count):
            block, _ = self._free.popitem(last=False)
            if self._content[block] is not None:
                self._evict(block)
            self._holders[block] = 1
            taken.append(block)
        return taken

    def fill(self, block: int, block_hash: bytes) -> None:
        """Say that a held block is full, and of what."""
        self._content[block] = block_hash
        same = self._cached.get(block_hash)
        if same is None:
            self._cached[block_hash] = [block]
        else:
            same.append(block)

    def release(self, blocks: Sequence[int]) -> None:
        """Let go of one request's blocks, given in their order."""
        for block in reversed(blocks):
            self._holders[block] -= 1
            if not self._holders[block]:
                self._free[block] = None
                if self._content[block] is None:
                    self._free.move_to_end(block, last=False)

    def clear(self) -> bool:
        """Forget all content; False, with nothing changed, while any block is held."""
        if len(self._free) < self.usable_blocks:
            return False
        self._content = [None] * len(self._content)
        self._cached.clear()
        self.tell(AllBlocksCleared())
        return True

    def tell(self, event: CacheEvent) -> None:
        """Keep an event for the next step's report."""
        if self._keep_events:
            self._events.append(event)

    def take_events(self) -> Sequence[CacheEvent]:
        """Return what happened since the last time."""
        if not self._events:
            return ()
        events, self._events = self._events, []
        return events

    def _evict(self, block: int) -> None:
        block_hash = self._content[block]
        if block_hash is None:
            return
        self._content[block] = None
        same = self._cached[block_hash]
        same.remove(block)
        if not same:
            del self._cached[block_hash]
        self.tell(BlockRemoved(block_hash))
