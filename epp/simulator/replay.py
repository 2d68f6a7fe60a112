"""
Replay: a scenario run step by step, and written down as a trace.

A scenario names requests and the steps in which they arrive; its trace says, for each step, what
was scheduled, admitted and preempted, who ran and waited, how full the cache was and what happened
in it. The format is that of the traces taken from vLLM's own scheduler, so that the two can be laid
side by side. As in those, the k-th token that a request says is 100 + k (from 0), blocks are hashed
by `sha256` from the seed "0", and steps with nothing to do are steps too.

A scenario's `config` has the keys of `Config`, its requests those of `ScenarioRequest`; with
`full_events` the trace has the whole KV events and not only their kinds and sizes. All numbers are
bounded, and so are the steps, for a trace is made in memory.
"""

from collections import Counter
from typing import Annotated, Literal

import msgspec

from epp.simulator.engine import (
    Adapter,
    Batch,
    BlockRemoved,
    BlockStored,
    CacheEvent,
    Engine,
    EngineOptions,
    EngineRequest,
    Step,
    StepTiming,
)
from epp.simulator.engine.block_hash import wire_hash

_FIRST_TOKEN = 100
_SEED = "0"
_DIGITS = 6
_MOST_STEPS = 100_000

_Count = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
_Natural = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]


class Config(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """The engine of a scenario, by the names that traces use."""

    policy: Literal["fcfs", "priority"] = "fcfs"
    max_num_seqs: _Count = 256
    max_num_batched_tokens: _Count = 2048
    block_size: _Count = 16
    num_blocks: Annotated[int, msgspec.Meta(ge=2, le=10_000_000)] = 1000
    max_model_len: _Count = 2048
    max_loras: _Count | None = None
    """None where the engine knows no adapters."""
    enable_prefix_caching: bool = True
    reserve_full_isl: bool = True
    watermark: float = 0.0
    long_prefill_token_threshold: _Natural = 0

    def options(self, num_adapters: int) -> EngineOptions:
        """Return the engine's options; ValueError where they make no sense."""
        max_loras = max(num_adapters, 1) if self.max_loras is None else self.max_loras
        return EngineOptions(
            scheduling_policy=self.policy,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            block_size=self.block_size,
            num_gpu_blocks=self.num_blocks,
            max_model_len=self.max_model_len,
            max_loras=max_loras,
            max_cpu_loras=max(max_loras, num_adapters),
            prefix_caching=self.enable_prefix_caching,
            reserve_full_prompt=self.reserve_full_isl,
            watermark=self.watermark,
            long_prefill_token_threshold=self.long_prefill_token_threshold,
            hash_seed=_SEED,
            kv_events=True,
        )


class ScenarioRequest(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """A request of a scenario."""

    id: str
    prompt: list[Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]]
    max_tokens: _Count
    priority: Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)] = 0
    lora: str | None = None
    arrive_step: _Natural = 0
    abort_step: _Natural | None = None
    """The step before which it is taken out, if it has not ended by then."""
    cache_salt: str = ""


class Scenario(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """What to replay."""

    requests: list[ScenarioRequest]
    config: Config = Config()
    full_events: bool = False


def read(text: bytes) -> Scenario:
    """Return the scenario of a JSON text; ValueError says what is wrong with it, and where."""
    scenario = msgspec.json.decode(text, type=Scenario)
    counts = Counter(one.id for one in scenario.requests)
    for name, count in counts.items():
        if count > 1:
            raise ValueError(f"request ids must differ; {name!r} is there more than once")
    longest = scenario.config.max_model_len
    for one in scenario.requests:
        if one.max_tokens > longest:
            raise ValueError(
                f"request {one.id!r} has max_tokens {one.max_tokens};"
                f" max_model_len leaves room for {longest} at most"
            )
    return scenario


def trace(text: bytes) -> dict[str, object]:
    """Return the trace of a scenario's JSON text: its engine, its requests as given, the steps."""
    scenario = read(text)
    return {
        "config": scenario.config,
        "requests": msgspec.json.decode(text)["requests"],
        "trace": replay(scenario),
    }


def replay(scenario: Scenario) -> list[dict[str, object]]:
    """Return the steps of a scenario; ValueError where there would be no end of them, or nearly."""
    names = dict.fromkeys(one.lora for one in scenario.requests if one.lora is not None)
    adapters = {name: Adapter(name, f"lora/{name}", at + 1) for at, name in enumerate(names)}
    engine = Engine(scenario.config.options(len(adapters)), StepTiming())
    arrivals: dict[int, list[EngineRequest]] = {}
    aborts: dict[int, list[str]] = {}
    for at, one in enumerate(scenario.requests):
        arrival = one.arrive_step + at / len(scenario.requests)
        arrivals.setdefault(one.arrive_step, []).append(_request(one, adapters, arrival))
        if one.abort_step is not None:
            aborts.setdefault(one.abort_step, []).append(one.id)
    last = max(arrivals, default=-1)
    steps: list[dict[str, object]] = []
    while engine.has_work or len(steps) <= last:
        number = len(steps)
        if number >= _MOST_STEPS:
            raise ValueError(f"it takes more than {_MOST_STEPS:,} steps")
        for request in arrivals.get(number, ()):
            engine.add_request(request)
        for request_id in aborts.get(number, ()):
            engine.abort(request_id)
        if not engine.has_work and number >= last:
            break
        steps.append(_step(engine, number, full_events=scenario.full_events))
    return steps


def _request(one: ScenarioRequest, adapters: dict[str, Adapter], arrival: float) -> EngineRequest:
    return EngineRequest(
        one.id,
        one.prompt,
        range(_FIRST_TOKEN, _FIRST_TOKEN + one.max_tokens),
        adapter=None if one.lora is None else adapters[one.lora],
        cache_salt=one.cache_salt,
        priority=one.priority,
        arrival=arrival,
    )


def _step(engine: Engine, number: int, *, full_events: bool) -> dict[str, object]:
    batch = engine.schedule(number)
    scheduled = _scheduled(engine, batch)
    step = engine.complete(batch)
    return {
        "step": number,
        **scheduled,
        "finished": sorted(one.request_id for one in step.emitted if one.finish_reason is not None),
        "events": [_event(one, full=full_events) for one in step.events],
        "stats": _stats(engine, step),
    }


def _scheduled(engine: Engine, batch: Batch) -> dict[str, object]:
    return {
        "scheduled": dict(batch.scheduled),
        "total": sum(batch.scheduled.values()),
        "new": {one.request_id: one.cached_tokens for one in batch.admitted if not one.resumed},
        "preempted": sorted(batch.preempted),
        "running": engine.running_ids(),
        "waiting": engine.waiting_ids(),
        "deferred": sorted(engine.deferred_ids()),
        "kv_usage": round(engine.load.kv_usage, _DIGITS),
        "free_blocks": engine.free_blocks,
    }


def _stats(engine: Engine, step: Step) -> dict[str, object]:
    load = engine.load
    return {
        "running": load.running,
        "waiting": load.waiting - load.deferred,
        "deferred": load.deferred,
        "kv": round(load.kv_usage, _DIGITS),
        "pcq": step.lookups.queries,
        "pch": step.lookups.hits,
        "pcq_preempted": step.lookups.preempted_queries,
    }


def _event(event: CacheEvent, *, full: bool) -> object:
    if full:
        return _full_event(event)
    return [type(event).__name__, _num_hashes(event)]


def _num_hashes(event: CacheEvent) -> int:
    if isinstance(event, BlockStored):
        return len(event.block_hashes)
    return int(isinstance(event, BlockRemoved))


def _full_event(event: CacheEvent) -> dict[str, object]:
    if isinstance(event, BlockStored):
        return {
            "type": "BlockStored",
            "block_hashes": [wire_hash(one) for one in event.block_hashes],
            "parent_block_hash": None if event.parent is None else wire_hash(event.parent),
            "token_ids": event.token_ids,
            "block_size": event.block_size,
            "lora_id": event.adapter and event.adapter.number,
            "medium": "GPU",
            "lora_name": event.adapter and event.adapter.name,
            "extra_keys": event.extra_keys,
            "group_idx": 0,
            "kv_cache_spec_kind": "full_attention",
        }
    if isinstance(event, BlockRemoved):
        return {
            "type": "BlockRemoved",
            "block_hashes": [wire_hash(event.block_hash)],
            "medium": "GPU",
            "group_idx": 0,
        }
    return {"type": "AllBlocksCleared"}


def encode(trace: dict[str, object], *, indent: int = 0) -> bytes:
    """Return a trace as JSON, in one line or indented."""
    text = msgspec.json.encode(trace)
    return msgspec.json.format(text, indent=indent) if indent else text
