"""The memory that prompts leave behind is bounded by what endpoints hold, not by traffic."""

import random
import tracemalloc

import pytest

from epp.framework import (
    PREFIX_MATCH,
    EndpointView,
    PluginContext,
    ProfileResult,
    SchedulingResult,
    ScoredEndpoint,
    TerminationCause,
)
from epp.testing import endpoint, request
from epp_plugins.data_producers.approximate_prefix import ApproximatePrefixProducer

POOL = [endpoint(str(at)) for at in range(8)]
RESULTS = [
    SchedulingResult({"p": ProfileResult([ScoredEndpoint(one, 1.0)], POOL, {})}, "p")
    for one in POOL
]


def sent(prompts: int, prompt_bytes: int, *, shared: int) -> tuple[ApproximatePrefixProducer, int]:
    """Send so many prompts around; return the producer, and the bytes that stay allocated."""
    draw = random.Random(1)
    start = draw.randbytes(shared)
    began = tracemalloc.is_tracing()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        producer = ApproximatePrefixProducer(
            context=PluginContext("test"), lru_capacity_per_server=3000
        )
        for number in range(prompts):
            asked = request(start + draw.randbytes(prompt_bytes - shared))
            asked.attributes.put(PREFIX_MATCH, producer.produce(asked, EndpointView(POOL)))
            result = RESULTS[number % len(POOL)]
            producer.pre_request(asked, result)
            producer.on_response_complete(asked, result, TerminationCause.COMPLETED, None)
        del asked
        return producer, tracemalloc.get_traced_memory()[0] - before
    finally:
        if not began:
            tracemalloc.stop()


@pytest.mark.parametrize(
    ("prompt_bytes", "shared", "most"),
    [
        pytest.param(40_000, 0, 150_000, id="long-prompts"),
        pytest.param(40_000, 20_000, 200_000, id="long-prompts-that-begin-alike"),
        pytest.param(400, 0, 5_000_000, id="prompts-of-one-block"),
    ],
)
def test_memory_stays_within_what_endpoints_hold(prompt_bytes: int, shared: int, most: int) -> None:
    """Eight endpoints of 750 blocks: twenty times as many were sent, or all that fit."""
    producer, taken = sent(800 if prompt_bytes > 1000 else 9000, prompt_bytes, shared=shared)
    state = producer.dump_state()

    assert state["heldBlocks"] <= state["capacityInBlocks"] == 8 * 750
    assert taken < most


@pytest.mark.parametrize(("count", "prompt_bytes"), [(400, 40_000), (3000, 1000), (5000, 300)])
def test_the_memory_that_is_reported_is_about_what_it_takes(count: int, prompt_bytes: int) -> None:
    producer, taken = sent(count, prompt_bytes, shared=0)

    reported = producer.dump_state()["approximateBytes"]

    assert 0.6 < reported / taken < 1.6
