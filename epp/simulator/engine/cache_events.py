"""
Cache events: what happened to blocks that carry a hash, in the order in which it happened.

Hashes are whole digests; how they travel is the publisher's business.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from epp.simulator.engine.request import Adapter


@dataclass(frozen=True, slots=True)
class BlockStored:
    """Consecutive blocks of one request became full and can be found by their hashes."""

    block_hashes: Sequence[bytes]
    parent: bytes | None
    """The hash of the block before the first; None where that is the beginning."""
    token_ids: Sequence[int]
    """All tokens of these blocks, flat."""
    block_size: int
    adapter: Adapter | None
    extra_keys: Sequence[tuple[str, ...] | None]
    """Of each block, what else its hash stands for: adapter name, cache salt; untagged."""
    session_id: str | None = None


@dataclass(frozen=True, slots=True)
class BlockRemoved:
    """One block lost its content; another may still carry the same hash."""

    block_hash: bytes


@dataclass(frozen=True, slots=True)
class AllBlocksCleared:
    """Nothing is cached any more."""


CacheEvent = BlockStored | BlockRemoved | AllBlocksCleared
