import json
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cbor2
import msgspec
import pytest

from epp.simulator.engine.block_hash import BlockHasher, event_keys, extra_keys, wire_hash
from epp.simulator.engine.options import HashAlgorithm
from epp.simulator.engine.request import Adapter

CAPTURES = Path(__file__).with_name("captures")
DATA = Path(__file__).parents[2] / "data"
SEVENS = array("I", [7] * 64)
DEFAULT_SEED = "vllm-none-hash"


def hashes(
    tokens: "array[int]",
    *,
    adapter: Adapter | None = None,
    cache_salt: str = "",
    algorithm: HashAlgorithm = "sha256",
    block_size: int = 32,
) -> list[bytes]:
    found: list[bytes] = []
    BlockHasher(block_size, algorithm, DEFAULT_SEED).extend(found, tokens, adapter, cache_salt)
    return found


@pytest.mark.parametrize(
    ("algorithm", "root", "blocks"),
    [
        pytest.param(
            "sha256_cbor",
            "9bd96a485ad84efdafb72ee48a1d7a69bcead0f8f0433173941b276b9581eef0",
            [
                "f2c5d927fdffe9d28080dd64176693fbf0d7f5bdd63a23c147534867bd24e3f5",
                "4168095ca0cdaafb2f497bc900bcdb6cf0e357a259f5172fb4a018012d0d05c5",
            ],
            id="sha256_cbor",
        ),
        pytest.param(
            "sha256",
            "066b1e8987e027138e98701c46128929378935f9b6cd1549105ae6b4f0d71198",
            ["60f6736a4295e08a6293a09b331147e958f0de4aaddf404040af338cd30400b3"],
            id="sha256",
        ),
    ],
)
def test_hashes_are_those_of_vllm(algorithm: HashAlgorithm, root: str, blocks: list[str]):
    sut = BlockHasher(32, algorithm, DEFAULT_SEED)
    found: list[bytes] = []

    sut.extend(found, SEVENS, None, "")

    assert sut.root.hex() == root
    assert blocks == [digest.hex() for digest in found[: len(blocks)]]


def test_a_hash_travels_as_the_number_at_the_end_of_its_digest():
    digest = bytes.fromhex("60f6736a4295e08a6293a09b331147e958f0de4aaddf404040af338cd30400b3")

    assert wire_hash(digest) == 4661000819280445619


def test_the_portable_serialisation_is_canonical_cbor():
    serialised = cbor2.dumps((bytes(32), (1, 2, 300), None), canonical=True)

    assert serialised.hex() == "835820" + "00" * 32 + "83010219012cf6"


@pytest.mark.parametrize("algorithm", ["xxhash", "xxhash_cbor"])
def test_the_quick_hashes_are_of_sixteen_bytes_and_repeat_themselves(algorithm: HashAlgorithm):
    found = hashes(SEVENS, algorithm=algorithm)

    assert [len(digest) for digest in found] == [16, 16]
    assert found == hashes(SEVENS, algorithm=algorithm)


def test_every_algorithm_has_hashes_of_its_own():
    algorithms: list[HashAlgorithm] = ["sha256", "sha256_cbor", "xxhash", "xxhash_cbor"]

    firsts = {hashes(SEVENS, algorithm=algorithm)[0] for algorithm in algorithms}

    assert len(firsts) == len(algorithms)


def test_another_seed_gives_other_hashes():
    one, other = BlockHasher(32, "sha256", "0"), BlockHasher(32, "sha256", "1")

    assert one.root != other.root


def test_only_full_blocks_have_a_hash():
    assert [len(hashes(SEVENS[:count])) for count in (0, 31, 32, 63, 64)] == [0, 0, 1, 1, 2]


@pytest.mark.parametrize("adapter", [None, Adapter("a", "lora/a", 1)], ids=["base", "adapter"])
@pytest.mark.parametrize("cache_salt", ["", "s3cret"], ids=["unsalted", "salted"])
def test_hashes_that_grow_with_their_tokens_are_those_made_at_once(
    adapter: Adapter | None, cache_salt: str
):
    sut = BlockHasher(4, "sha256", DEFAULT_SEED)
    tokens = array("I", range(50))
    grown: list[bytes] = []
    for count in range(len(tokens) + 1):
        sut.extend(grown, tokens[:count], adapter, cache_salt)

    at_once = hashes(tokens, adapter=adapter, cache_salt=cache_salt, block_size=4)

    assert at_once == grown
    assert len(grown) == 12


def test_what_is_cached_for_one_adapter_or_salt_is_nothing_to_another():
    kinds = [
        hashes(SEVENS),
        hashes(SEVENS, cache_salt="x"),
        hashes(SEVENS, adapter=Adapter("x")),
        hashes(SEVENS, adapter=Adapter("x", "lora/x")),
        hashes(SEVENS, adapter=Adapter("x"), cache_salt="x"),
    ]

    assert len({digest for found in kinds for digest in found}) == 2 * len(kinds)


def test_the_number_of_an_adapter_is_no_part_of_the_hash():
    assert hashes(SEVENS, adapter=Adapter("a", "p", 1)) == hashes(
        SEVENS, adapter=Adapter("a", "p", 2)
    )


def test_a_hash_does_not_depend_on_which_objects_hold_equal_strings():
    name = "".join(["ada", "pter"])
    same = Adapter(name, name)
    equal = Adapter(name, "".join(["adap", "ter"]))

    assert hashes(SEVENS, adapter=same, cache_salt=name) == hashes(
        SEVENS, adapter=equal, cache_salt="".join(["adapt", "er"])
    )


@pytest.mark.parametrize(
    ("index", "adapter", "cache_salt", "hashed", "told"),
    [
        pytest.param(0, None, "", None, None, id="plain"),
        pytest.param(
            0,
            Adapter("a", "lora/a"),
            "s3cret",
            (("lora", "a", "lora/a"), ("cache_salt", "s3cret")),
            ("a", "s3cret"),
            id="first block",
        ),
        pytest.param(
            1, Adapter("a", "lora/a"), "s3cret", (("lora", "a", "lora/a"),), ("a",), id="later"
        ),
        pytest.param(0, None, "s3cret", (("cache_salt", "s3cret"),), ("s3cret",), id="salted"),
        pytest.param(1, None, "s3cret", None, None, id="after the salted"),
    ],
)
def test_keys_beside_the_tokens_are_hashed_with_tags_and_told_without(
    index: int, adapter: Adapter | None, cache_salt: str, hashed: object, told: object
):
    assert hashed == extra_keys(index, adapter, cache_salt)
    assert told == event_keys(index, adapter, cache_salt)


def _stored(capture: str) -> Iterator[dict[str, Any]]:
    for line in (CAPTURES / capture).read_text().splitlines():
        payload = bytes.fromhex(json.loads(line)["payload_hex"])
        for event in msgspec.msgpack.decode(payload)[1]:
            if event["type"] == "BlockStored":
                yield event


@dataclass
class _Replay:
    """Every captured hash made again from the tokens that events tell, along their chains."""

    hasher: BlockHasher
    chains: dict[int | bytes, tuple[list[bytes], "array[int]", str]] = field(default_factory=dict)
    checked: int = 0

    def check(self, event: dict[str, Any]) -> None:
        found, tokens, salt = self._beginning(event)
        known = len(found)
        tokens = tokens + array("I", event["token_ids"])
        name = event["lora_name"]
        adapter = None if name is None else Adapter(name, f"lora/{name}")
        self.hasher.extend(found, tokens, adapter, salt)
        for count, captured in enumerate(event["block_hashes"], start=known + 1):
            made = found[count - 1]
            assert captured == (wire_hash(made) if isinstance(captured, int) else made)
            self.chains[captured] = (found[:count], tokens[: count * event["block_size"]], salt)
            self.checked += 1

    def _beginning(self, event: dict[str, Any]) -> tuple[list[bytes], "array[int]", str]:
        if event["parent_block_hash"] is None:
            keys = event["extra_keys"][0] or ()
            salts = [key for key in keys if key != event["lora_name"]]
            return [], array("I"), "".join(salts)
        found, tokens, salt = self.chains[event["parent_block_hash"]]
        return list(found), tokens, salt


@pytest.mark.parametrize(
    ("capture", "hasher", "blocks"),
    [
        pytest.param("kv_events.jsonl", BlockHasher(32, "sha256", "0"), 83, id="with salts"),
        pytest.param(
            "kv_events_preemption.jsonl", BlockHasher(32, "sha256", "0"), 62, id="preemption"
        ),
        pytest.param(
            "kv_events_cbor_bytes.jsonl",
            BlockHasher(32, "sha256_cbor", DEFAULT_SEED),
            14,
            id="cbor",
        ),
    ],
)
def test_every_captured_block_of_the_base_model_has_the_hash_it_had(
    capture: str, hasher: BlockHasher, blocks: int
):
    replay = _Replay(hasher)
    for event in _stored(capture):
        if event["lora_name"] is None:
            replay.check(event)

    assert replay.checked == blocks


def test_every_block_of_an_adapter_in_a_scheduler_trace_has_the_hash_it_had():
    trace = json.loads((DATA / "engine_traces" / "full_events_lora.trace.json").read_bytes())
    replay = _Replay(BlockHasher(16, "sha256", "0"))
    told_with = set()
    for step in trace["trace"]:
        for event in step.get("events", ()):
            if event["type"] == "BlockStored":
                replay.check(event)
                told_with.add(event["lora_name"])

    assert len(told_with - {None}) > 1
    assert replay.checked == 30
