"""The simulated engine under arbitrary traffic, limits and policies."""

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from epp.simulator.engine import (
    Adapter,
    ClassLimit,
    Engine,
    EngineOptions,
    EngineRequest,
    Step,
    StepTiming,
)
from support.engines import OPTIONS, check, other_prompt

TICK = StepTiming(base_seconds=1, token_seconds=0, sequence_seconds=0, lora_load_seconds=0)
PATIENCE = 20_000
"""Steps after which something that has not ended never will."""


def engine_options(**given: object) -> EngineOptions:
    """
    Return options, with the whole prompt reserved where the order is not strict.

    Without both, requests that lost their blocks come back for their first piece in the very next
    step and take the blocks of others: in a small cache none may ever get to its end.
    """
    options = replace(OPTIONS, kv_events=True, **given)
    return options if options.strict_order else replace(options, reserve_full_prompt=True)


options = st.builds(
    engine_options,
    block_size=st.sampled_from([2, 4]),
    num_gpu_blocks=st.integers(18, 40),
    max_model_len=st.just(34),
    max_num_seqs=st.integers(1, 5),
    max_num_batched_tokens=st.sampled_from([5, 16, 64]),
    long_prefill_token_threshold=st.sampled_from([0, 0, 7]),
    watermark=st.sampled_from([0.0, 0.0, 0.2]),
    reserve_full_prompt=st.booleans(),
    prefix_caching=st.booleans(),
    max_loras=st.integers(1, 2),
    lora_waiting=st.sampled_from(["skip", "stop"]),
    scheduling_policy=st.sampled_from(["fcfs", "priority", "ageing", "qoe"]),
    priority_preemption=st.booleans(),
    class_limits=st.sampled_from([(), (ClassLimit(1, 1),), (ClassLimit(0, 3), ClassLimit(2, 1))]),
    preemption_mode=st.sampled_from(["recompute", "swap"]),
    num_cpu_blocks=st.sampled_from([0, 4, 100]),
    strict_order=st.booleans(),
)
requests = st.builds(
    lambda prompt, length, reply, adapter, priority: (
        other_prompt(prompt, length),
        range(1000, 1000 + reply),
        adapter and Adapter(adapter),
        priority,
    ),
    prompt=st.integers(0, 2),
    length=st.integers(1, 20),
    reply=st.integers(1, 14),
    adapter=st.sampled_from([None, "x", "y", "z"]),
    priority=st.integers(0, 2),
)
events = st.lists(
    st.one_of(
        st.tuples(st.just("add"), requests),
        st.tuples(st.just("add"), requests),
        st.tuples(st.just("step"), st.integers(1, 8)),
        st.tuples(st.just("abort"), st.integers(0, 9)),
        st.tuples(st.just("priority"), st.integers(0, 9)),
    ),
    min_size=10,
    max_size=40,
)


class Watched:
    """An engine whose every step is checked."""

    def __init__(self, options: EngineOptions) -> None:
        self.engine = Engine(options, TICK)
        self.now = 0.0
        self.said: dict[str, list[int]] = {}
        self.adapters: dict[str, str] = {}
        self.priorities: dict[str, int] = {}
        self._changed = False

    def add(self, prompt: range, reply: range, adapter: Adapter | None, priority: int) -> None:
        name = str(len(self.said))
        self.said[name] = []
        self.priorities[name] = priority
        if adapter is not None:
            self.adapters[name] = adapter.name
        self.engine.add_request(
            EngineRequest(name, prompt, reply, adapter, priority=priority, arrival=self.now)
        )

    def reprioritise(self, name: str, priority: int) -> None:
        self.priorities[name] = priority
        self._changed |= self.engine.set_priority(name, priority, self.now)

    def step(self) -> Step:
        step = self.engine.step(self.now)
        self.now += step.duration
        for one in step.emitted:
            self.said[one.request_id].append(one.token)
        self._check(step)
        return step

    def _check(self, step: Step) -> None:
        options = self.engine.options
        active = {self.adapters[name] for name in step.scheduled if name in self.adapters}
        assert sum(step.scheduled.values()) <= options.max_num_batched_tokens
        assert len(step.scheduled) <= options.max_num_seqs
        assert len(active) <= options.max_loras
        assert not set(step.preempted) & set(step.scheduled) or not options.strict_order
        for least, most in () if self._changed else options.class_limits:
            running = self.engine.running_ids()
            assert sum(self.priorities[name] >= least for name in running) <= most
        check(self.engine)


@given(options, events)
def test_limits_hold_and_everyone_is_served_whatever_comes(
    options: EngineOptions, events: Sequence[tuple[str, object]]
):
    sut = Watched(options)
    wanted: dict[str, range] = {}
    for kind, value in events:
        match kind, value:
            case "add", (prompt, reply, adapter, priority):
                wanted[str(len(sut.said))] = reply
                sut.add(prompt, reply, adapter, priority)
            case "step", int(count):
                for _ in range(count):
                    sut.step()
            case "abort", int(number) if sut.engine.abort(str(number)):
                del wanted[str(number)]
            case "priority", int(number) if str(number) in wanted:
                sut.reprioritise(str(number), number % 4)
    steps = 0
    while sut.engine.has_work and steps < PATIENCE:
        sut.step()
        steps += 1

    assert {name: sut.said[name] for name in wanted} == {
        name: list(reply) for name, reply in wanted.items()
    }
    assert sut.engine.free_blocks == options.num_gpu_blocks - 1


@given(
    options=options,
    gap=st.integers(1, 4),
    reply=st.integers(1, 12),
    priority=st.integers(1, 5),
)
def test_nobody_starves_under_ageing(options: EngineOptions, gap: int, reply: int, priority: int):
    """However many urgent requests come after it, and for as long as they do."""
    sut = Watched(
        replace(
            options,
            scheduling_policy="ageing",
            strict_order=True,  # without it, newcomers may starve whoever is swapped out
            ageing_seconds=5,
            class_limits=(),
            max_num_seqs=2,
            max_num_batched_tokens=64,
        )
    )
    sut.add(other_prompt(0, 20), range(1000, 1005), None, priority)
    steps = 0
    while len(sut.said["0"]) < 5 and steps < 300:
        if steps % gap == 0:
            sut.add(other_prompt(1 + steps, 8), range(1000, 1000 + reply), None, 0)
        sut.step()
        steps += 1

    assert len(sut.said["0"]) == 5
