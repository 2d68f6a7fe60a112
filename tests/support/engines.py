"""
Engines under test: small ones, requests for them, and what must hold of them at any time.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from epp.simulator.engine import Adapter, Engine, EngineOptions, EngineRequest, Step, StepTiming

OPTIONS = EngineOptions(
    max_num_seqs=4,
    max_num_batched_tokens=64,
    max_model_len=256,
    block_size=16,
    num_gpu_blocks=100,
    max_loras=2,
)


def engine(timing: StepTiming | None = None, **options: object) -> Engine:
    """Return an engine of four seats and 64 tokens a step, with these options changed."""
    return Engine(replace(OPTIONS, **options), timing or StepTiming())


def request(
    name: str,
    prompt: Sequence[int] = range(10),
    *,
    reply: int = 3,
    adapter: str | None = None,
    **more: object,
) -> EngineRequest:
    """Return a request that says 1000, 1001 and so on."""
    return EngineRequest(
        name,
        prompt,
        range(1000, 1000 + reply),
        None if adapter is None else Adapter(adapter),
        **more,
    )


def other_prompt(number: int, length: int) -> range:
    """Return a prompt that shares nothing with those of other numbers."""
    return range(number * 10_000, number * 10_000 + length)


def run(engine: Engine, now: float = 0.0) -> list[Step]:
    """Step to the end, each step beginning when the one before it is over."""
    steps = []
    while engine.has_work:
        steps.append(engine.step(now))
        now += steps[-1].duration
    return steps


def replies(steps: Sequence[Step]) -> dict[str, list[int]]:
    """Return what each request said."""
    said: dict[str, list[int]] = {}
    for step in steps:
        for emission in step.emitted:
            said.setdefault(emission.request_id, []).append(emission.token)
    return said


def scheduled(steps: Sequence[Step]) -> list[dict[str, int]]:
    """Return the tokens that each step computed, by request."""
    return [dict(step.scheduled) for step in steps]


def check(engine: Engine) -> None:
    """
    Assert what must hold of an engine between steps.

    Every block is free or held by exactly those who list it; requests share only blocks of equal
    content at equal places; the CPU's blocks are all accounted for; seats are not exceeded.
    """
    scheduler, cache = engine._scheduler, engine._scheduler.cache
    held = Counter(block for one in scheduler.running for block in one.blocks)
    assert cache._holders == [held[block] for block in range(cache.usable_blocks + 1)]
    assert set(cache._free) == set(range(1, cache.usable_blocks + 1)) - set(held)
    places: dict[int, tuple[int, bytes]] = {}
    for one in scheduler.running:
        assert len(one.blocks) == cache.blocks_for(one.computed)
        for at, block in enumerate(one.blocks):
            if held[block] > 1:
                assert at < one.filled
                assert places.setdefault(block, (at, one.hashes[at])) == (at, one.hashes[at])
    for one in (*scheduler.waiting, *scheduler.swapped):
        assert not one.blocks
    for block_hash, blocks in cache._cached.items():
        assert blocks
        assert all(cache._content[block] == block_hash for block in blocks)
    swapped = sum(one.swapped_blocks for one in scheduler.swapped)
    assert scheduler.free_cpu_blocks == engine.options.num_cpu_blocks - swapped
    assert len(scheduler.running) <= engine.options.max_num_seqs
    assert scheduler.deferred == sum(one.deferred for one in scheduler.waiting)
