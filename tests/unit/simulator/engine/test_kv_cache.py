from array import array
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from epp.simulator.engine.block_hash import BlockHasher
from epp.simulator.engine.kv_cache import KVCache

BLOCK_SIZE = 4


def hashes_of(tokens: Sequence[int]) -> list[bytes]:
    hashes: list[bytes] = []
    BlockHasher(BLOCK_SIZE, "sha256", "0").extend(hashes, array("I", tokens), None, "")
    return hashes


def filled(cache: KVCache, hashes: list[bytes]) -> list[int]:
    blocks = cache.allocate(len(hashes))
    for block, block_hash in zip(blocks, hashes, strict=True):
        cache.fill(block, block_hash)
    return blocks


def test_a_released_prefix_is_found_again():
    cache = KVCache(10, BLOCK_SIZE)
    hashes = hashes_of(range(12))
    blocks = filled(cache, hashes)

    cache.release(blocks)

    assert cache.lookup(hashes, 13) == blocks
    assert cache.free_blocks == 9


def test_the_last_token_of_a_sequence_is_never_cached():
    cache = KVCache(10, BLOCK_SIZE)
    hashes = hashes_of(range(12))
    blocks = filled(cache, hashes)

    assert cache.lookup(hashes, 12) == blocks[:2]


def test_a_prefix_ends_where_the_tokens_differ():
    cache = KVCache(10, BLOCK_SIZE)
    blocks = filled(cache, hashes_of(range(12)))
    other = hashes_of([*range(8), 99, 99, 99, 99])

    assert cache.lookup(other, 13) == blocks[:2]


def test_blocks_without_content_are_taken_before_cached_ones():
    cache = KVCache(4, BLOCK_SIZE)
    hashes = hashes_of(range(4))
    cached = filled(cache, hashes)
    cache.release(cached)

    cache.allocate(2)

    assert cache.lookup(hashes, 5) == cached


def test_the_longest_unused_content_goes_first_and_of_a_sequence_its_end():
    cache = KVCache(5, BLOCK_SIZE)
    old, recent = hashes_of(range(8)), hashes_of(range(100, 108))
    old_blocks, recent_blocks = filled(cache, old), filled(cache, recent)
    cache.release(old_blocks)
    cache.release(recent_blocks)

    cache.allocate(1)

    assert cache.lookup(old, 9) == old_blocks[:1]
    assert cache.lookup(recent, 9) == recent_blocks


def test_content_that_two_blocks_hold_outlives_one_of_them():
    cache = KVCache(3, BLOCK_SIZE)
    hashes = hashes_of(range(4))
    first, second = filled(cache, hashes), filled(cache, hashes)
    cache.release(first)

    cache.allocate(1)

    assert cache.lookup(hashes, 5) == second


def test_a_shared_block_is_free_when_its_last_holder_lets_go():
    cache = KVCache(10, BLOCK_SIZE)
    blocks = filled(cache, hashes_of(range(8)))
    cache.share(blocks)

    free = [cache.free_blocks]
    for _ in range(2):
        cache.release(blocks)
        free.append(cache.free_blocks)

    assert free == [7, 7, 9]


def test_a_cache_told_not_to_share_finds_nothing():
    cache = KVCache(10, BLOCK_SIZE, prefix_caching=False)
    hashes = hashes_of(range(8))
    filled(cache, hashes)

    assert cache.lookup(hashes, 9) == []


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5), st.booleans()), max_size=60))
def test_blocks_are_conserved_whatever_happens(turns: list[tuple[int, int, bool]]):
    """Sequences over four prompts come, share what is cached, and go in any order."""
    cache = KVCache(12, BLOCK_SIZE)
    held: list[list[int]] = []
    for prompt, length, leaves in turns:
        if leaves and held:
            cache.release(held.pop(length % len(held)))
        else:
            hashes = hashes_of(range(prompt * 100, prompt * 100 + length * BLOCK_SIZE))
            shared = cache.lookup(hashes, length * BLOCK_SIZE + 1)
            if length - len(shared) + cache.free_among(shared) > cache.free_blocks:
                continue
            cache.share(shared)
            held.append(shared + filled(cache, hashes[len(shared) :]))

        in_use = {block for blocks in held for block in blocks}

        assert cache.free_blocks == cache.usable_blocks - len(in_use)
        assert 0 not in in_use
