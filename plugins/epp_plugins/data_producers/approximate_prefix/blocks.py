"""
Blocks: how large they are, and what each is called.

A block's hash is xxh64 over its bytes, seeded with the hash of the block before it, so that equal
hashes mean equal prompts up to there. The first seed is made of the model's name and the cache
salt: nothing cached for one adapter or one tenant counts for another. Every process computes the
same hashes. Only whole blocks have one, since an engine caches no others.
"""

from array import array
from collections.abc import Sequence
from functools import lru_cache
from math import inf
from struct import Struct

from xxhash import xxh64_intdigest

from epp.framework import Endpoint, InferenceRequest

BYTES_PER_TOKEN = 4
"""What a token of text is taken for; token ids are four bytes each."""

LOOK_SECONDS = 1.0
"""How often the block sizes that the pool reports are looked at."""

SHRINK_SECONDS = 60.0
"""For how long no candidate may report blocks as large as before until they get smaller."""


class BlockSize:
    """
    The tokens of a block, as configured or as the pool reports, but never below the floor.

    Of a pool whose endpoints differ it is the largest: in smaller blocks an endpoint with larger
    ones would be expected to hold what it cannot, while one with smaller ones is only seen more
    coarsely. It follows the reports: to larger blocks at once, to smaller ones only when no
    candidate had the larger for a minute, so that requests with subset hints do not toss it about.
    Each change makes all prompts new.
    """

    def __init__(self, configured: int, floor: int, *, auto_tune: bool) -> None:
        self._configured = configured
        self._floor = floor
        self._auto_tune = auto_tune
        self._reported = 0
        self._reported_at = -inf
        self._looked_at = -inf
        self.tokens = max(configured, floor)

    def look(self, rows: Sequence[Endpoint], now: float) -> int:
        """Return the tokens of a block, after a look at the candidates where one is due."""
        if self._auto_tune and now - self._looked_at >= LOOK_SECONDS:
            self._looked_at = now
            largest = max((one.metrics.block_size for one in rows), default=0)
            if largest >= self._reported or now - self._reported_at > SHRINK_SECONDS:
                self._reported, self._reported_at = largest, now
                self.tokens = max(largest or self._configured, self._floor)
        return self.tokens


def hashes(request: InferenceRequest, block_bytes: int, most: int | None) -> "array[int]":
    """Return the hash of each whole block of the prompt, of the first `most` if it has more."""
    prompt = request.prompt
    count = len(prompt) // block_bytes
    if most is not None and count > most:
        count = most
    block = _seed(request.model, request.cache_salt)
    pieces = _cutter(block_bytes).iter_unpack(memoryview(prompt)[: count * block_bytes])
    return array("Q", [block := xxh64_intdigest(piece, block) for (piece,) in pieces])


def _seed(model: str, salt: str) -> int:
    name = model.encode("utf-8", "surrogatepass")
    # The length keeps a model and its salt apart from another pair with the same letters.
    return xxh64_intdigest(b"%d:%b%b" % (len(name), name, salt.encode("utf-8", "surrogatepass")))


@lru_cache(maxsize=8)
def _cutter(block_bytes: int) -> Struct:
    """Return what cuts a prompt into blocks; a Struct does so in half the time of slices."""
    return Struct(f"{block_bytes}s")
