"""How a prompt is cut into blocks, how many of them an endpoint holds, and what they are called."""

import os
import subprocess
import sys
from dataclasses import replace
from struct import pack
from typing import Any

import pytest

from epp.framework import (
    PREFIX_MATCH,
    Endpoint,
    EndpointView,
    PluginContext,
    PrefixMatch,
    ProfileResult,
    SchedulingResult,
    ScoredEndpoint,
)
from epp.testing import endpoint, request
from epp_plugins.data_producers.approximate_prefix import ApproximatePrefixProducer


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def producer(clock: Clock | None = None, **parameters: Any) -> ApproximatePrefixProducer:
    context = PluginContext("test", clock=clock or Clock())
    return ApproximatePrefixProducer(context=context, **parameters)


def tokens(count: int) -> bytes:
    """Return a prompt of so many token ids, all different."""
    return pack(f"<{count}I", *range(count))


def match(
    made: ApproximatePrefixProducer, prompt: bytes, *pool: Endpoint, **fields: Any
) -> PrefixMatch:
    return made.produce(request(prompt, **fields), EndpointView(pool or [endpoint()]))


def send(made: ApproximatePrefixProducer, prompt: bytes, to: Endpoint) -> None:
    asked = request(prompt)
    asked.attributes.put(PREFIX_MATCH, made.produce(asked, EndpointView([to])))
    result = SchedulingResult({"p": ProfileResult([ScoredEndpoint(to, 1.0)], [to], {})}, "p")
    made.pre_request(asked, result)


@pytest.mark.parametrize(
    ("parameters", "reported", "expected"),
    [
        pytest.param({}, [16], 64, id="small-engine-blocks"),
        pytest.param({}, [128], 128, id="large-engine-blocks"),
        pytest.param({"block_size_tokens": 256}, [128], 128, id="the-engine-wins"),
        pytest.param({}, [0], 64, id="nothing-reported"),
        pytest.param({"block_size_tokens": 96}, [0], 96, id="nothing-reported-but-configured"),
        pytest.param({"block_size": 96}, [0], 96, id="by-the-old-name"),
        pytest.param({}, [16, 256, 0, 128], 256, id="the-largest-of-a-mixed-pool"),
        pytest.param({"auto_tune": False, "block_size_tokens": 32}, [128], 64, id="fixed-small"),
        pytest.param({"auto_tune": False, "block_size_tokens": 96}, [128], 96, id="fixed"),
        pytest.param({"min_block_size_tokens": 1}, [16], 16, id="no-floor"),
    ],
)
def test_the_size_of_a_block(
    parameters: dict[str, Any], reported: list[int], expected: int
) -> None:
    pool = [endpoint(str(at), block_size=size) for at, size in enumerate(reported)]

    found = match(producer(**parameters), b"", *pool)

    assert expected * 4 == found.block_bytes


def test_the_size_follows_the_pool_to_larger_blocks_at_once() -> None:
    clock = Clock()
    made = producer(clock)
    match(made, b"", endpoint(block_size=64))
    clock.now += 1

    found = match(made, b"", endpoint(block_size=64), endpoint(block_size=128))

    assert found.block_bytes == 512


def test_the_size_follows_to_smaller_ones_when_the_larger_are_gone_for_long() -> None:
    """A request with a subset hint sees but a part of the pool."""
    clock = Clock()
    made = producer(clock)
    match(made, b"", endpoint(block_size=128))
    sizes = []
    for _ in range(3):
        clock.now += 31
        sizes.append(match(made, b"", endpoint(block_size=64)).block_bytes)

    assert sizes == [512, 256, 256]


@pytest.mark.parametrize(
    ("length", "expected"), [(192, 1), (255, 1), (256, 2), (127, 0), (0, 0)], ids=str
)
def test_a_partial_block_at_the_end_is_none(length: int, expected: int) -> None:
    found = match(producer(), tokens(length), endpoint(block_size=128))

    assert expected == found.total_blocks


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        pytest.param({"max_prefix_tokens_to_match": 2}, 2, id="tokens"),
        pytest.param(
            {"max_prefix_tokens_to_match": 2, "max_prefix_blocks_to_match": 3},
            2,
            id="tokens-before-blocks",
        ),
        pytest.param(
            {"max_prefix_tokens_to_match": 0, "max_prefix_blocks_to_match": 3}, 3, id="blocks"
        ),
        pytest.param(
            {"max_prefix_tokens_to_match": 0, "max_prefix_blocks_to_match": 0}, 4, id="all"
        ),
        pytest.param({}, 4, id="defaults"),
    ],
)
def test_how_much_of_a_prompt_counts(parameters: dict[str, int], expected: int) -> None:
    made = producer(block_size_tokens=1, min_block_size_tokens=1, **parameters)

    found = match(made, tokens(4))

    assert expected == found.total_blocks


def test_the_default_is_131072_tokens() -> None:
    found = match(producer(), bytes(4 * 200_000))

    assert found.total_blocks == 131_072 // 64


@pytest.mark.parametrize(
    ("parameters", "metrics", "expected"),
    [
        pytest.param({}, {}, 31250 * 16 // 64, id="default"),
        pytest.param({"lru_capacity_per_server": 10}, {}, 2, id="in-blocks-as-configured"),
        pytest.param({"lru_capacity_per_server": 1}, {}, 1, id="at-least-one"),
        pytest.param({}, {"block_size": 16, "num_blocks": 1000}, 250, id="the-engine's-own"),
        pytest.param(
            {"lru_capacity_per_server": 10},
            {"block_size": 16, "num_blocks": 1000},
            2,
            id="a-bound-that-is-set-holds-for-the-engine's-own",
        ),
        pytest.param(
            {"lru_capacity_per_server": 10_000},
            {"block_size": 16, "num_blocks": 1000},
            250,
            id="but-never-adds-to-it",
        ),
        pytest.param(
            {"auto_tune": False}, {"block_size": 16, "num_blocks": 8}, 7812, id="no-auto-tune"
        ),
    ],
)
def test_the_capacity_of_an_endpoint(
    parameters: dict[str, Any], metrics: dict[str, int], expected: int
) -> None:
    made = producer(**parameters)
    send(made, tokens(64), endpoint(**metrics))

    state = made.dump_state()

    assert expected == state["capacityInBlocks"]


def test_a_capacity_that_changes_is_followed() -> None:
    made = producer()
    one = endpoint(block_size=16, num_blocks=400)
    send(made, tokens(6400), one)
    smaller = replace(one, metrics=replace(one.metrics, num_blocks=100))
    before = made.dump_state()["heldBlocks"]

    send(made, tokens(64), smaller)

    assert (before, made.dump_state()["heldBlocks"]) == (100, 25)


def test_a_configured_capacity_is_kept_to() -> None:
    """Three prompts of eight blocks where ten fit: the first is cold again."""
    made = producer(lru_capacity_per_server=10, block_size_tokens=64)
    one = endpoint()
    prompts = [bytes([letter]) * 2048 for letter in b"xyz"]
    for prompt in prompts:
        send(made, prompt, one)

    matched = [match(made, prompt, one).matched_blocks[0] for prompt in prompts]

    assert matched == [0, 2, 8]


def test_eviction_goes_a_little_ahead_where_the_capacity_is_large() -> None:
    """Not every request is to pay for it."""
    made = producer(lru_capacity_per_server=640, block_size_tokens=64)
    one = endpoint()
    held = []
    for number in range(70):
        send(made, pack("<I", number) * 640, one)
        held.append(made.dump_state()["heldBlocks"])

    assert max(held) == 640
    assert set(held[64:]) == {630, 640}


def test_the_end_of_a_long_prompt_goes_first() -> None:
    made = producer(lru_capacity_per_server=100, block_size_tokens=64)
    one = endpoint()
    send(made, tokens(64 * 90), one)
    send(made, b"x" * 256 * 30, one)

    matched = match(made, tokens(64 * 90), one).matched_blocks

    assert matched == [69]


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"model": "m"}, id="no-salt"),
        pytest.param({"model": "m", "cache_salt": "salt"}, id="a-salt"),
        pytest.param({"model": "other"}, id="another-model"),
    ],
)
def test_token_ids_are_hashed_as_they_are(fields: dict[str, str]) -> None:
    """As many blocks for each model and salt, and no block of one is another's."""
    made = producer(block_size_tokens=2, min_block_size_tokens=2)
    sets = [{"model": "m"}, {"model": "m", "cache_salt": "salt"}, {"model": "other"}]
    others = [match(made, tokens(4), **one) for one in sets if one != fields]

    found = match(made, tokens(4), **fields)

    assert found.total_blocks == 2
    for one in others:
        assert not set(found.blocks) & set(one.blocks)  # type: ignore[attr-defined]


PRINT_HASHES = """
from epp.framework import InferenceRequest
from epp_plugins.data_producers.approximate_prefix.blocks import hashes
asked = InferenceRequest("r", {}, "model", bytes(range(256)) * 3, "salt")
print(*map(hex, hashes(asked, 256, None)))
"""


@pytest.mark.parametrize("seed", ["1", "2"])
def test_every_process_computes_the_same_hashes(seed: str) -> None:
    """Whatever its hash seed is: what the language itself hashes differs between processes."""
    environment = os.environ | {"PYTHONHASHSEED": seed}
    ran = subprocess.run(
        [sys.executable, "-c", PRINT_HASHES],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )

    assert ran.stdout.split() == ["0x7f91fe3a626b812c", "0xc7d25c47f36b3340", "0xbf0f6d5f8ff3d8b4"]


@pytest.mark.parametrize(
    "parameters",
    [
        {"block_size_tokens": 0},
        {"block_size": -1},
        {"min_block_size_tokens": 0},
        {"lru_capacity_per_server": 0},
        {"max_prefix_tokens_to_match": -1},
        {"max_prefix_blocks_to_match": -1},
        {"block_size_tokens": 2**63},
    ],
    ids=str,
)
def test_numbers_that_make_no_sense_are_refused(parameters: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"parameters\.\w+ must be from [01] to 2147483648, got"):
        producer(**parameters)
