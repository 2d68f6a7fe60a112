"""
Block hashes: what a full block of tokens is called, so that equal beginnings meet in the cache.

A block's hash covers its tokens, the hash of the block before it, and what else its content depends
on: the adapter, and in the first block the cache salt. The recipe is that of vLLM 0.32, byte for
byte, so that hashes which others compute from a prompt are those that this engine publishes.

The digest is of a serialised Python tuple: pickled for `sha256` and `xxhash`, which only Python can
repeat, in canonical CBOR for their portable siblings. The first block's parent is the digest of the
seed. One thing differs: with `xxhash` and no seed given, vLLM draws that parent at random in every
process; here it follows from the seed always, so that runs repeat themselves.
"""

import hashlib
import pickle
from array import array
from collections.abc import Callable
from functools import partial

import cbor2
import xxhash

from epp.simulator.engine.options import HashAlgorithm
from epp.simulator.engine.request import Adapter

BlockHash = bytes
ExtraKeys = tuple[tuple[str, ...], ...]

_WIRE_BYTES = 8
_serialise_pickle = partial(pickle.dumps, protocol=5)
_serialise_cbor = partial(cbor2.dumps, canonical=True)


def _sha256(serialised: bytes) -> bytes:
    return hashlib.sha256(serialised).digest()


_ALGORITHMS: dict[HashAlgorithm, tuple[Callable[[object], bytes], Callable[[bytes], BlockHash]]] = {
    "sha256": (_serialise_pickle, _sha256),
    "sha256_cbor": (_serialise_cbor, _sha256),
    "xxhash": (_serialise_pickle, xxhash.xxh3_128_digest),
    "xxhash_cbor": (_serialise_cbor, xxhash.xxh3_128_digest),
}


def wire_hash(digest: BlockHash) -> int:
    """Return the number by which events know a block: the end of its digest."""
    return int.from_bytes(digest[-_WIRE_BYTES:], "big")


def extra_keys(index: int, adapter: Adapter | None, cache_salt: str) -> ExtraKeys | None:
    """Return what the hash of the block at this index covers besides tokens, None for nothing."""
    keys: ExtraKeys = ()
    if adapter is not None:
        keys += (("lora", _distinct(adapter.name), _distinct(adapter.path)),)
    if cache_salt and index == 0:
        keys += (("cache_salt", _distinct(cache_salt)),)
    return keys or None


def event_keys(index: int, adapter: Adapter | None, cache_salt: str) -> tuple[str, ...] | None:
    """Return the same as an event tells it: without tags, and without the adapter's path."""
    keys: tuple[str, ...] = ()
    if adapter is not None:
        keys += (adapter.name,)
    if cache_salt and index == 0:
        keys += (cache_salt,)
    return keys or None


def _distinct(text: str) -> str:
    """Return an equal string of its own: pickle abbreviates an object that it meets again."""
    return text.encode().decode()


class BlockHasher:
    """The hashes of one engine: its block size, its algorithm and its seed."""

    def __init__(self, block_size: int, algorithm: HashAlgorithm, seed: str) -> None:
        self._block_size = block_size
        self._serialise, self._digest = _ALGORITHMS[algorithm]
        self.root: BlockHash = self._digest(self._serialise(seed))
        """The parent of every first block; vLLM calls it NONE_HASH."""

    def extend(
        self,
        hashes: list[BlockHash],
        tokens: "array[int]",
        adapter: Adapter | None,
        cache_salt: str,
    ) -> None:
        """Append the hashes of all blocks that these tokens fill and that are not there yet."""
        size, serialise, digest = self._block_size, self._serialise, self._digest
        done = len(hashes)
        parent = hashes[-1] if hashes else self.root
        keys = extra_keys(done, adapter, cache_salt)
        for start in range(done * size, len(tokens) - size + 1, size):
            parent = digest(serialise((parent, tuple(tokens[start : start + size]), keys)))
            hashes.append(parent)
            if not start:
                keys = extra_keys(1, adapter, cache_salt)
