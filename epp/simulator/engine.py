"""
The engine: continuous batching in steps, sans-I/O and without a clock.

A request has no prefill and no decode phase: the tokens computed so far chase the tokens there are,
and whoever catches up yields one more. A step shares its token budget among the running requests in
the order of their admission; then, while seats and budget last, it admits from the queue. Where
blocks run out, the last admitted request gives its blocks back and waits at the head of the queue
to be computed anew, and nobody is admitted in that step. A request is admitted only if all its
tokens fit into free blocks, and one that does not fit holds up those behind it; one whose adapter
exceeds the limit on adapters in a step is passed over and keeps its place.

The engine is told what each request will say, and says how long each step takes: whoever drives it,
in real time or in virtual time, lets that time pass before it believes the step.
"""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from epp.simulator.kv_cache import BlockHash, KVCache, block_hashes, root_hash
from epp.simulator.request_queue import RequestQueue
from epp.simulator.timing import AdapterSlots, StepTiming

FinishReason = Literal["stop", "length"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """The limits of one engine; the defaults are those of vLLM on an A100 with an 8B model."""

    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    max_model_len: int = 8192
    block_size: int = 16
    num_gpu_blocks: int = 8192
    max_loras: int = 4
    """How many adapters one step can compute; there is no other limit on adapters."""
    prefix_caching: bool = True


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """
    A request as the engine needs it, with the tokens it will say.

    It ends with its reply: by itself (`stops`), or because it was given no more room.
    """

    id: str
    prompt: Sequence[int]
    reply: Sequence[int]
    adapter: str | None = None
    cache_salt: str = ""
    stops: bool = False


class Admission(NamedTuple):
    """A request that got a seat, and how many of its tokens were cached; `resumed` if not anew."""

    request_id: str
    cached_tokens: int
    resumed: bool


class Emission(NamedTuple):
    """One token that came out; the last of its request has a finish reason."""

    request_id: str
    token: int
    finish_reason: FinishReason | None


class EngineLoad(NamedTuple):
    """How full the engine is; the waiting ones include those that the limit on adapters defers."""

    running: int
    waiting: int
    deferred: int
    kv_usage: float


@dataclass(frozen=True, slots=True)
class Step:
    """What one step did: the tokens it computed for each request, and what came of it."""

    scheduled: Mapping[str, int]
    admitted: Sequence[Admission]
    preempted: Sequence[str]
    emitted: Sequence[Emission]
    duration: float


class _Sequence:
    """A request inside the engine: its tokens, how many are computed, the blocks they live in."""

    __slots__ = (
        "adapter", "blocks", "computed", "deferred", "filled", "finish_reason", "hashes", "id",
        "limit", "preempted", "produced", "reply", "root", "tokens",
    )  # fmt: skip

    def __init__(self, request: EngineRequest, options: EngineOptions) -> None:
        self.id = request.id
        self.adapter = request.adapter
        self.tokens = array("I", request.prompt)
        self.reply = request.reply
        room = options.max_model_len - len(self.tokens)
        self.limit = min(len(request.reply), room)
        by_itself = request.stops and self.limit == len(request.reply)
        self.finish_reason: FinishReason = "stop" if by_itself else "length"
        self.produced = 0
        self.computed = 0
        self.deferred = False
        self.preempted = False
        self.blocks: list[int] = []
        self.filled = 0
        self.root = root_hash(request.adapter, request.cache_salt)
        self.hashes: list[BlockHash] = []
        self.extend_hashes(options.block_size)

    def extend_hashes(self, block_size: int) -> None:
        """Hash the blocks that became full."""
        known = len(self.hashes)
        if (known + 1) * block_size <= len(self.tokens):
            parent = self.hashes[-1] if known else self.root
            self.hashes.extend(block_hashes(self.tokens, block_size, parent, known))


@dataclass(slots=True)
class _Batch:
    """A step in the making."""

    budget: int
    scheduled: dict[_Sequence, int] = field(default_factory=dict)
    adapters: dict[str, None] = field(default_factory=dict)
    admitted: list[Admission] = field(default_factory=list)
    preempted: list[_Sequence] = field(default_factory=list)

    def add(self, sequence: _Sequence, num_tokens: int) -> None:
        self.budget -= num_tokens
        self.scheduled[sequence] = num_tokens
        if sequence.adapter is not None:
            self.adapters[sequence.adapter] = None


class Engine:
    """One model server's scheduler, cache and clockless computation."""

    def __init__(self, options: EngineOptions, timing: StepTiming) -> None:
        self.options = options
        self.cache = KVCache(
            options.num_gpu_blocks, options.block_size, prefix_caching=options.prefix_caching
        )
        self._timing = timing
        self._slots = AdapterSlots(options.max_loras)
        self._waiting: RequestQueue[_Sequence] = RequestQueue()
        self._running: list[_Sequence] = []
        self._deferred = 0

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(self._running or self._waiting)

    @property
    def load(self) -> EngineLoad:
        """How full the engine is after the last step."""
        return EngineLoad(len(self._running), len(self._waiting), self._deferred, self.cache.usage)

    def add_request(self, request: EngineRequest) -> None:
        """Let a request wait; ValueError where it could never run to its end."""
        sequence = _Sequence(request, self.options)
        if not sequence.tokens or sequence.limit < 1:
            raise ValueError(f"no room for a reply to {len(sequence.tokens)} tokens")
        if self.cache.blocks_for(len(sequence.tokens) + sequence.limit) > self.cache.usable_blocks:
            raise ValueError(f"{len(sequence.tokens)} tokens and a reply exceed the cache")
        self._waiting.add(sequence)

    def abort(self, request_id: str) -> bool:
        """Forget a request; False where there is none of this id, any more or at all."""
        waiting = self._waiting.remove(request_id)
        if waiting is not None:
            self._deferred -= waiting.deferred
            return True
        for at, sequence in enumerate(self._running):
            if sequence.id == request_id:
                del self._running[at]
                self.cache.release(sequence.blocks)
                return True
        return False

    def step(self) -> Step:
        """Compute one step: who gets how many tokens, who comes and goes, what comes out."""
        batch = _Batch(self.options.max_num_batched_tokens)
        self._schedule_running(batch)
        if not batch.preempted:
            self._admit(batch)
        duration = self._timing.duration(
            tokens=self.options.max_num_batched_tokens - batch.budget,
            sequences=len(batch.scheduled),
            lora_loads=self._slots.activate(batch.adapters),
        )
        return Step(
            {sequence.id: num_tokens for sequence, num_tokens in batch.scheduled.items()},
            batch.admitted,
            [sequence.id for sequence in batch.preempted],
            self._compute(batch),
            duration,
        )

    def _schedule_running(self, batch: _Batch) -> None:
        at = 0
        while at < len(self._running) and batch.budget > 0:
            sequence = self._running[at]
            num_tokens = min(len(sequence.tokens) - sequence.computed, batch.budget)
            if not self._make_room(batch, sequence, num_tokens):
                return
            self._take_blocks(sequence, num_tokens)
            batch.add(sequence, num_tokens)
            at += 1

    def _make_room(self, batch: _Batch, sequence: _Sequence, num_tokens: int) -> bool:
        """
        Preempt from the end until the tokens fit; False if that hit the sequence itself.

        Whoever is preempted stands behind the sequence, so this step gave it nothing yet.
        """
        while self._blocks_lacking(sequence, num_tokens) > self.cache.free_blocks:
            victim = self._running.pop()
            batch.preempted.append(victim)
            self.cache.release(victim.blocks)
            victim.blocks = []
            victim.filled = victim.computed = 0
            victim.preempted = True
            self._waiting.put_back([victim])
            if victim is sequence:
                return False
        return True

    def _admit(self, batch: _Batch) -> None:
        passed_over = []
        while self._waiting and batch.budget > 0 and len(self._running) < self.options.max_num_seqs:
            sequence = self._waiting.pop()
            if self._exceeds_adapters(batch, sequence):
                self._deferred += not sequence.deferred
                sequence.deferred = True
                passed_over.append(sequence)
            elif not self._seat(batch, sequence):
                passed_over.append(sequence)
                break
        self._waiting.put_back(passed_over)

    def _exceeds_adapters(self, batch: _Batch, sequence: _Sequence) -> bool:
        return (
            sequence.adapter is not None
            and sequence.adapter not in batch.adapters
            and len(batch.adapters) >= self.options.max_loras
        )

    def _seat(self, batch: _Batch, sequence: _Sequence) -> bool:
        """Admit a waiting sequence; False, with nothing changed, if its tokens do not all fit."""
        num_tokens = len(sequence.tokens)
        shared = self.cache.lookup(sequence.hashes, num_tokens)
        lacking = self.cache.blocks_for(num_tokens) - len(shared) + self.cache.free_among(shared)
        if lacking > self.cache.free_blocks:
            return False
        self.cache.share(shared)
        sequence.blocks = shared
        sequence.filled = len(shared)
        sequence.computed = cached = len(shared) * self.cache.block_size
        scheduled = min(num_tokens - cached, batch.budget)
        self._take_blocks(sequence, scheduled)
        self._deferred -= sequence.deferred
        sequence.deferred = False
        self._running.append(sequence)
        batch.admitted.append(Admission(sequence.id, cached, sequence.preempted))
        batch.add(sequence, scheduled)
        return True

    def _blocks_lacking(self, sequence: _Sequence, num_tokens: int) -> int:
        return self.cache.blocks_for(sequence.computed + num_tokens) - len(sequence.blocks)

    def _take_blocks(self, sequence: _Sequence, num_tokens: int) -> None:
        """
        Give the sequence the blocks for its next tokens, and name those that will be full.

        They are named before they are computed, so two requests of one step can share a prefix.
        """
        lacking = self._blocks_lacking(sequence, num_tokens)
        if lacking > 0:
            sequence.blocks += self.cache.allocate(lacking)
        full = (sequence.computed + num_tokens) // self.cache.block_size
        for at in range(sequence.filled, full):
            self.cache.fill(sequence.blocks[at], sequence.hashes[at])
        sequence.filled = full

    def _compute(self, batch: _Batch) -> list[Emission]:
        emitted = []
        finished = []
        for sequence, num_tokens in batch.scheduled.items():
            sequence.computed += num_tokens
            if sequence.computed < len(sequence.tokens):
                continue
            token = sequence.reply[sequence.produced]
            sequence.produced += 1
            sequence.tokens.append(token)
            sequence.extend_hashes(self.cache.block_size)
            done = sequence.produced == sequence.limit
            emitted.append(Emission(sequence.id, token, sequence.finish_reason if done else None))
            if done:
                finished.append(sequence)
        self._retire(finished)
        return emitted

    def _retire(self, finished: Sequence[_Sequence]) -> None:
        if finished:
            gone = set(finished)
            self._running = [one for one in self._running if one not in gone]
        for sequence in finished:
            self.cache.release(sequence.blocks)
