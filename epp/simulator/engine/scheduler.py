"""
The scheduler: which request gets how many tokens in a step.

A request has no prefill and no decode phase: the tokens computed so far chase the tokens there are,
and whoever catches up yields one more. A step shares its token budget among the running requests in
the order of their admission. Where blocks run out, somebody gives them up: the last admitted under
`fcfs`, else the least urgent; it waits to be computed anew, or keeps its blocks in the CPU's memory
under `swap`. Then those that were swapped out come back, and then, while seats and budget last, the
waiting ones are admitted.

The order running, swapped, waiting is strict: in a step that took somebody's blocks away, or could
not bring everybody back, nobody new is admitted. Without that (`strict_order` off) newcomers with
small prompts take the blocks that the one outside waits for, again and again; and where prompts are
not reserved whole either, requests may take each other's blocks for ever. A waiting request
that does not fit holds up those behind it; one whose adapter or class is at its limit is passed
over and keeps its place.

The rules are those of vLLM 0.32's scheduler, for the part of it that is modelled: `fcfs` and
`priority`, chunked prefill, prefix caching, adapters. Swapping follows vLLM's first engine (0.x),
as does taking a seat for a more urgent request (`priority_preemption`).
"""

from collections.abc import Iterator, Mapping, Sequence
from math import inf

from epp.simulator.engine.adapters import ResidentAdapters
from epp.simulator.engine.batch import Admission, Batch
from epp.simulator.engine.block_tables import BlockTables
from epp.simulator.engine.kv_cache import KVCache
from epp.simulator.engine.options import EngineOptions
from epp.simulator.engine.policies import scheduling_policy
from epp.simulator.engine.precedence import Precedence
from epp.simulator.engine.request import ActiveRequest
from epp.simulator.engine.request_queue import ArrivalQueue, RankedQueue, RequestQueue
from epp.simulator.engine.timing import StepTiming


class Scheduler:
    """Who runs, who waits, who is swapped out; and the cache and adapters that they share."""

    def __init__(self, options: EngineOptions, timing: StepTiming) -> None:
        self.options = options
        self.timing = timing
        self.cache = KVCache(
            options.num_gpu_blocks,
            options.block_size,
            prefix_caching=options.prefix_caching,
            events=options.kv_events,
        )
        self.adapters = ResidentAdapters(options.max_loras, options.max_cpu_loras)
        self.running: list[ActiveRequest] = []
        self.waiting = self._queue()
        self.swapped = self._queue()
        self.deferred = 0
        self.free_cpu_blocks = options.num_cpu_blocks
        self.tables = BlockTables(self.cache, options)
        self.watermark_blocks = int(options.watermark * options.num_gpu_blocks)

    def _queue(self) -> RequestQueue:
        self.policy = scheduling_policy(self.options)
        if self.policy is None:
            return ArrivalQueue()
        return RankedQueue(self.policy.rank, dynamic=self.policy.dynamic)

    def add(self, request: ActiveRequest) -> None:
        """Let a new request wait."""
        self.tables.hash_tokens(request)
        self.waiting.add(request, request.arrival)

    def remove(self, request: ActiveRequest) -> None:
        """Forget a request, wherever it is."""
        request.gone = True
        if self.waiting.remove(request.id) is not None:
            self._undefer(request)
        elif self.swapped.remove(request.id) is not None:
            self.free_cpu_blocks += request.swapped_blocks
        else:
            self.running.remove(request)
            self.cache.release(request.blocks)

    def retire(self, finished: Sequence[ActiveRequest]) -> None:
        """Take the seats and blocks of requests that came to their end."""
        gone = set(finished)
        self.running = [one for one in self.running if one not in gone]
        for request in finished:
            self.cache.release(request.blocks)

    def reprioritise(self, request: ActiveRequest, priority: int, now: float) -> None:
        """Give a request another priority, whether it runs or waits."""
        request.priority = priority
        for queue in (self.waiting, self.swapped):
            if queue.remove(request.id) is not None:
                queue.add(request, now)

    def schedule(self, now: float) -> Batch:
        """Decide one step."""
        batch = Batch(self.options.max_num_batched_tokens)
        self.waiting.refresh(now)
        self.swapped.refresh(now)
        limit = self._chunk_limit()
        if self.options.priority_preemption and self.waiting and self.policy is not None:
            Precedence(self, batch, limit, now).apply()
        forced_out = len(batch.preempted)
        self._schedule_running(batch, limit, now)
        short = len(batch.preempted) > forced_out
        strict = self.options.strict_order
        if short and not strict:
            # Whoever stands behind one that gave way itself got no tokens, but keeps its adapter.
            batch.adapters |= {one.adapter.name: None for one in self.running if one.adapter}
        if self.swapped and not short:
            short = not self._swap_in(batch, limit, now)
        if self.waiting and not (short and strict):
            self._admit(batch, limit)
        return self._timed(batch)

    def _timed(self, batch: Batch) -> Batch:
        loads = self.adapters.activate(batch.adapters)
        batch.lora_loads = loads.loaded
        context = 0
        if self.timing.context_token_seconds:
            context = sum(request.computed for request in batch.requests)
        batch.duration = self.timing.duration(
            tokens=self.options.max_num_batched_tokens - batch.budget,
            sequences=len(batch.requests),
            context_tokens=context,
            lora_loads=loads.loaded,
            lora_fetches=loads.fetched,
            swapped_blocks=batch.swapped_blocks,
        )
        return batch

    def _chunk_limit(self) -> int:
        """Return how many tokens a step may compute for one request, where others want some too."""
        threshold = self.options.long_prefill_token_threshold
        others = len(self.running) + len(self.waiting) + len(self.swapped) > 1
        return threshold if threshold and others else self.options.max_num_batched_tokens

    # Running requests, and who gives way

    def _schedule_running(self, batch: Batch, limit: int, now: float) -> None:
        at = 0
        while at < len(self.running) and batch.budget > 0:
            request = self.running[at]
            num_tokens = min(len(request.tokens) - request.computed, limit, batch.budget)
            end = request.computed + num_tokens
            if end > len(request.blocks) * self.options.block_size:
                fits, at = self._make_room(batch, at, end, now)
                if not fits:
                    return
            self.tables.extend(request, end)
            batch.add(request, num_tokens)
            at += 1

    def _make_room(self, batch: Batch, at: int, end: int, now: float) -> tuple[bool, int]:
        """
        Preempt until the request at this position has blocks for its tokens up to `end`.

        Returns whether it has, and its position, which moves up when somebody before it leaves. The
        answer is no where the request itself was the one to give way.
        """
        request = self.running[at]
        lacking = self.cache.blocks_for(end) - len(request.blocks)
        while lacking > self.cache.free_blocks:
            victim_at = self._least_urgent(now)
            victim = self.running[victim_at]
            if victim_at < at:
                at -= 1
            self.preempt(batch, victim_at, now)
            if victim is request:
                return False, at
        return True, at

    def _least_urgent(self, now: float) -> int:
        """Return the position of the running request that gives way first."""
        if self.policy is None:
            return len(self.running) - 1
        rank = self.policy.rank
        ranks = [rank(request, now) for request in self.running]
        return ranks.index(max(ranks))

    def preempt(self, batch: Batch, at: int, now: float) -> None:
        """Take the seat of the running request at this position, and its blocks on the device."""
        victim = self.running.pop(at)
        batch.take_back(victim)
        batch.preempted.append(victim.id)
        victim.preemptions += 1
        self.cache.release(victim.blocks)
        held = len(victim.blocks)
        victim.blocks = []
        victim.filled = 0
        if self.options.preemption_mode == "swap" and held <= self.free_cpu_blocks:
            self.free_cpu_blocks -= held
            victim.swapped_blocks = held
            batch.swapped_blocks += held
            batch.swapped_out.append(victim.id)
            self.swapped.put_back(victim, now)
        else:
            victim.computed = 0
            self.waiting.put_back(victim, now)

    # Swapped requests

    def _swap_in(self, batch: Batch, limit: int, now: float) -> bool:
        """
        Bring swapped requests back in their order; False if any was left outside for room.

        Those who made way for a more urgent request that is still to be admitted wait for it.
        """
        first = self._most_urgent_waiting(batch, now)
        for request in list(self.swapped):
            if self.policy and first < self.policy.rank(request, now).level - self.policy.margin:
                return True
            num_tokens = min(len(request.tokens) - request.computed, limit, batch.budget)
            end = request.computed + num_tokens
            if (
                num_tokens == 0
                or len(self.running) >= self.options.max_num_seqs
                or self.cache.blocks_for(end) > self.cache.free_blocks
                or self._exceeds_adapters(batch, request)
            ):
                return False
            self.swapped.remove(request.id)
            self.free_cpu_blocks += request.swapped_blocks
            batch.swapped_blocks += request.swapped_blocks
            request.swapped_blocks = 0
            batch.swapped_in.append(request.id)
            self.tables.extend(request, end)
            self._seat(batch, request, num_tokens)
        return True

    def _most_urgent_waiting(self, batch: Batch, now: float) -> float:
        """Return the level of the first who could be admitted, for whom swapped ones may wait."""
        if not self.options.priority_preemption or self.policy is None:
            return inf
        classes = self.class_room()
        for request in self.waiting:
            if self._exceeds_adapters(batch, request):
                if self.options.lora_waiting == "stop":
                    return inf
            elif not _exceeds(classes, request):
                return self.policy.rank(request, now).level
        return inf

    # Waiting requests

    def _admit(self, batch: Batch, limit: int) -> None:
        admitted = []
        for request in self._candidates(batch):
            if not self._admit_one(batch, request, limit):
                break
            admitted.append(request)
        for request in admitted:
            self.waiting.remove(request.id)

    def _candidates(self, batch: Batch) -> Iterator[ActiveRequest]:
        """Yield the waiting requests that may be admitted now, while seats and budget last."""
        classes = self.class_room()
        for request in self.waiting:
            if batch.budget <= 0 or len(self.running) >= self.options.max_num_seqs:
                return
            # Whoever has just lost its seat could be back at once, for its first piece may fit.
            if request.id in batch.sent_away:
                return
            if request.id in batch.preempted:
                continue
            lacks_adapter = self._exceeds_adapters(batch, request)
            if lacks_adapter or _exceeds(classes, request):
                self._defer(request)
                if lacks_adapter and self.options.lora_waiting == "stop":
                    return
                continue
            yield request
            for least in classes:
                classes[least] -= request.priority >= least

    def class_room(self) -> dict[int, int]:
        """Return how many more of each limited class may run; the swapped ones count as running."""
        return {
            least: most
            - sum(one.priority >= least for one in self.running)
            - sum(one.priority >= least for one in self.swapped)
            for least, most in self.options.class_limits
        }

    def _exceeds_adapters(self, batch: Batch, request: ActiveRequest) -> bool:
        return (
            request.adapter is not None
            and len(batch.adapters) >= self.options.max_loras
            and request.adapter.name not in batch.adapters
        )

    def _admit_one(self, batch: Batch, request: ActiveRequest, limit: int) -> bool:
        """Give a waiting request a seat; False, with nothing changed, if its tokens do not fit."""
        cache = self.cache
        total = len(request.tokens)
        shared = cache.lookup(request.hashes, total)
        cached = len(shared) * self.options.block_size
        num_tokens = min(total - cached, limit, batch.budget)
        reserved = total if self.options.reserve_full_prompt else cached + num_tokens
        lacking = cache.blocks_for(reserved) - len(shared) + cache.free_among(shared)
        if self.running:
            lacking += self.watermark_blocks
        if lacking > cache.free_blocks:
            return False
        cache.share(shared)
        request.blocks = shared
        request.filled = len(shared)
        request.computed = cached
        self.tables.extend(request, cached + num_tokens)
        self._undefer(request)
        resumed = request.preemptions > 0
        if cache.prefix_caching:
            self._count_lookup(batch, total, cached, resumed=resumed)
        batch.admitted.append(Admission(request.id, request.prompt_tokens, cached, resumed))
        self._seat(batch, request, num_tokens)
        return True

    @staticmethod
    def _count_lookup(batch: Batch, queries: int, hits: int, *, resumed: bool) -> None:
        lookups = batch.lookups
        if resumed:
            lookups.preempted_queries += queries
        else:
            lookups.queries += queries
            lookups.hits += hits

    def _seat(self, batch: Batch, request: ActiveRequest, num_tokens: int) -> None:
        self.running.append(request)
        batch.add(request, num_tokens)

    def _defer(self, request: ActiveRequest) -> None:
        if not request.deferred:
            request.deferred = True
            self.deferred += 1

    def _undefer(self, request: ActiveRequest) -> None:
        if request.deferred:
            request.deferred = False
            self.deferred -= 1


def _exceeds(room: Mapping[int, int], request: ActiveRequest) -> bool:
    """Whether one more of the request's class would be too many."""
    return any(left <= 0 and request.priority >= least for least, left in room.items())
