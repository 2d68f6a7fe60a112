"""
Block tables: which blocks hold a request's tokens, and what those blocks are called.
"""

from epp.simulator.engine.block_hash import BlockHasher, event_keys
from epp.simulator.engine.cache_events import BlockStored
from epp.simulator.engine.kv_cache import KVCache
from epp.simulator.engine.options import EngineOptions
from epp.simulator.engine.request import ActiveRequest


class BlockTables:
    """Extends the block lists of requests, and names their blocks as they become full."""

    def __init__(self, cache: KVCache, options: EngineOptions) -> None:
        self._cache = cache
        self._size = options.block_size
        self._hasher = BlockHasher(
            options.block_size, options.prefix_caching_hash_algorithm, options.hash_seed
        )

    def hash_tokens(self, request: ActiveRequest) -> None:
        """Hash the blocks that the request's tokens fill, so that they can be looked up."""
        if self._cache.prefix_caching:
            self._hasher.extend(request.hashes, request.tokens, request.adapter, request.cache_salt)

    def extend(self, request: ActiveRequest, end: int) -> None:
        """
        Give a request the blocks for its tokens up to `end`, and name those that will be full.

        They are named before they are computed, so two requests of one step can share a prefix.
        """
        lacking = self._cache.blocks_for(end) - len(request.blocks)
        if lacking > 0:
            request.blocks += self._cache.allocate(lacking)
        if self._cache.prefix_caching and end // self._size > request.filled:
            self._name(request, end // self._size)

    def _name(self, request: ActiveRequest, full: int) -> None:
        cache, hashes, size = self._cache, request.hashes, self._size
        if len(hashes) < full:
            self.hash_tokens(request)
        first, request.filled = request.filled, full
        for at in range(first, full):
            cache.fill(request.blocks[at], hashes[at])
        if cache.keeps_events:
            adapter, salt = request.adapter, request.cache_salt
            cache.tell(
                BlockStored(
                    hashes[first:full],
                    hashes[first - 1] if first else None,
                    request.tokens[first * size : full * size].tolist(),
                    size,
                    adapter,
                    [event_keys(at, adapter, salt) for at in range(first, full)],
                    request.session_id,
                )
            )
