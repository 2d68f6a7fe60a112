"""
The engine: continuous batching in steps, sans-I/O and without a clock.

It is told what each request will say, and says how long each step takes: whoever drives it, in real
time or in virtual time, schedules a step, lets its duration pass and completes it. Time comes in
from outside, in seconds of whatever clock; only the policies that change with time look at it.
"""

from collections.abc import Sequence

from epp.simulator.engine import fast_forward
from epp.simulator.engine.batch import Batch, Emission, EngineLoad, Step, Stretch
from epp.simulator.engine.options import EngineOptions
from epp.simulator.engine.request import ActiveRequest, EngineRequest
from epp.simulator.engine.scheduler import Scheduler
from epp.simulator.engine.timing import StepTiming


class Engine:
    """One model server's scheduler, cache and clockless computation."""

    def __init__(self, options: EngineOptions, timing: StepTiming) -> None:
        self.options = options
        self._scheduler = Scheduler(options, timing)
        self._requests: dict[str, ActiveRequest] = {}

    @property
    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(self._requests)

    @property
    def load(self) -> EngineLoad:
        """How full the engine is after the last step."""
        scheduler = self._scheduler
        swapped = len(scheduler.swapped)
        cpu_blocks = self.options.num_cpu_blocks
        return EngineLoad(
            running=len(scheduler.running),
            waiting=len(scheduler.waiting) + swapped,
            deferred=scheduler.deferred,
            swapped=swapped,
            kv_usage=scheduler.cache.usage,
            cpu_usage=1 - scheduler.free_cpu_blocks / cpu_blocks if cpu_blocks else 0.0,
        )

    @property
    def free_blocks(self) -> int:
        """How many blocks of the cache nobody holds."""
        return self._scheduler.cache.free_blocks

    @property
    def resident_adapters(self) -> tuple[Sequence[str], Sequence[str]]:
        """The adapters on the accelerator and in the CPU's memory, the longest unused first."""
        return self._scheduler.adapters.on_accelerator, self._scheduler.adapters.on_cpu

    def running_ids(self) -> Sequence[str]:
        """Return the requests that have seats, in the order of their admission."""
        return [request.id for request in self._scheduler.running]

    def waiting_ids(self) -> Sequence[str]:
        """Return the requests that wait for a seat, in the order in which they are looked at."""
        return [request.id for request in self._scheduler.waiting]

    def swapped_ids(self) -> Sequence[str]:
        """Return the requests that wait with their blocks in the CPU's memory, likewise."""
        return [request.id for request in self._scheduler.swapped]

    def deferred_ids(self) -> Sequence[str]:
        """Return the waiting requests whose adapter or class was at its limit."""
        return [request.id for request in self._scheduler.waiting if request.deferred]

    def add_request(self, request: EngineRequest) -> None:
        """Let a request wait; ValueError where it could never run to its end, or has a known id."""
        active = ActiveRequest(request, self.options.max_model_len)
        cache = self._scheduler.cache
        if active.id in self._requests:
            raise ValueError(f"there is a request {active.id!r} already")
        if not active.prompt_tokens or active.limit < 1:
            raise ValueError(f"no room for a reply to {active.prompt_tokens} tokens")
        if cache.blocks_for(active.prompt_tokens + active.limit) > cache.usable_blocks:
            raise ValueError(f"{active.prompt_tokens} tokens and a reply exceed the cache")
        self._requests[active.id] = active
        self._scheduler.add(active)

    def abort(self, request_id: str) -> bool:
        """Forget a request; False where there is none of this id, any more or at all."""
        request = self._requests.pop(request_id, None)
        if request is None:
            return False
        self._scheduler.remove(request)
        return True

    def set_priority(self, request_id: str, priority: int, now: float = 0.0) -> bool:
        """Change the priority of a request, running or waiting; False where there is none."""
        request = self._requests.get(request_id)
        if request is None:
            return False
        self._scheduler.reprioritise(request, priority, now)
        return True

    def reset_prefix_cache(self) -> bool:
        """Forget all cached blocks; False, with nothing changed, while any block is held."""
        return self._scheduler.cache.clear()

    def forget_adapter(self, name: str) -> None:
        """Drop an adapter from memory, after it was unloaded."""
        self._scheduler.adapters.forget(name)

    def schedule(self, now: float = 0.0) -> Batch:
        """Decide a step: who gets how many tokens, who comes and goes, how long it takes."""
        return self._scheduler.schedule(now)

    def complete(self, batch: Batch) -> Step:
        """Finish a step: its tokens come out, but for those of requests aborted meanwhile."""
        emitted = []
        finished = []
        for request, num_tokens in zip(batch.requests, batch.scheduled.values(), strict=True):
            if request.gone:
                continue
            request.computed += num_tokens
            if request.computed < len(request.tokens):
                continue
            token = request.reply[request.produced]
            request.produced += 1
            request.tokens.append(token)
            if request.produced == request.limit:
                emitted.append(Emission(request.id, token, request.finish_reason))
                finished.append(request)
            else:
                emitted.append(Emission(request.id, token, None))
        if finished:
            self._scheduler.retire(finished)
            for request in finished:
                del self._requests[request.id]
        return Step(
            batch.scheduled,
            batch.admitted,
            batch.preempted,
            batch.swapped_out,
            batch.swapped_in,
            batch.lookups,
            batch.lora_loads,
            batch.duration,
            emitted,
            self._scheduler.cache.take_events(),
        )

    def step(self, now: float = 0.0) -> Step:
        """Compute one step at once."""
        return self.complete(self.schedule(now))

    def fast_forward(self, now: float, until: float) -> Stretch | None:
        """
        Take all steps at once that start before `until` and in which nothing but decoding happens.

        Each running request gets one token in each of them; nobody comes, goes or ends. The outcome
        is that of as many calls of `step`. None where not even the next step is like that.
        """
        return fast_forward.advance(self._scheduler, now, until)
