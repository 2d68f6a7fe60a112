"""
Runs: an engine driven in virtual time over requests that come at given times.

Time is a number that grows by the duration of each step. A request is seen by the first step that
starts at its arrival or later; an engine with nothing to do jumps to the next arrival. Stretches in
which nothing but decoding happens are taken at once, which changes how long a run takes to compute
and nothing else: the same steps happen, and every time in the result is the same to the last bit.
"""

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import inf

from epp.simulator.engine import Batch, Engine, EngineRequest, Step, Stretch

_MAX_BARREN_STEPS = 100_000
"""In so many steps the longest prompt is computed, whatever the budget; then a token comes out."""


class Stuck(RuntimeError):
    """An engine has work, and nothing comes of it."""


@dataclass(slots=True)
class Record:
    """What became of one request; times are those of the run."""

    id: str
    arrival: float
    priority: int
    adapter: str | None
    admitted: float = inf
    """When the step began in which it first got a seat."""
    first_token: float = inf
    last_token: float = inf
    num_tokens: int = 0
    preemptions: int = 0
    swap_outs: int = 0
    """Of the preemptions, those in which it kept its blocks, in the CPU's memory."""
    swapped_seconds: float = 0.0
    """How long it was outside with its blocks in the CPU's memory."""
    recomputed_tokens: int = 0
    """Tokens computed again after a preemption; what the prefix cache still had is not counted."""
    token_times: "array[float]" = field(default_factory=lambda: array("d"))
    """When each token came out, where the run was asked for it."""

    @property
    def ttft(self) -> float:
        """Seconds from arrival to the first token."""
        return self.first_token - self.arrival

    @property
    def tpot(self) -> float:
        """Seconds for each token after the first, on average; 0 where there is none."""
        gaps = self.num_tokens - 1
        return (self.last_token - self.first_token) / gaps if gaps > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Run:
    """What became of all requests, in the order in which they were given."""

    records: Sequence[Record]
    steps: int
    seconds: float
    """When the last step ended."""
    lora_loads: int
    swapped_blocks: int
    """Blocks copied to the CPU's memory and back, each way counted."""


def run(
    engine: Engine,
    requests: Sequence[EngineRequest],
    *,
    token_times: bool = False,
    fast_forward: bool = True,
) -> Run:
    """Run a fresh engine over these requests until all have ended; Stuck where it never will."""
    log = _Log(requests, token_times=token_times)
    coming = sorted(requests, key=lambda one: one.arrival)
    now, at, barren = 0.0, 0, 0
    while at < len(coming) or engine.has_work:
        if not engine.has_work:
            now = max(now, coming[at].arrival)
        while at < len(coming) and coming[at].arrival <= now:
            engine.add_request(coming[at])
            at += 1
        if fast_forward:
            until = coming[at].arrival if at < len(coming) else inf
            stretch = engine.fast_forward(now, until)
            if stretch is not None:
                now = log.stretch(stretch, now)
                continue
        batch = engine.schedule(now)
        log.scheduled(batch, now)
        now += batch.duration
        step = engine.complete(batch)
        log.completed(step, now)
        barren = 0 if step.emitted else barren + 1
        if barren > _MAX_BARREN_STEPS:
            load = engine.load
            raise Stuck(f"{load.running} requests run, {load.waiting} wait, and no token comes out")
    return log.result(now)


class _Log:
    """Writes down what the steps of a run did."""

    def __init__(self, requests: Sequence[EngineRequest], *, token_times: bool) -> None:
        self._records = {
            one.id: Record(
                one.id, one.arrival, one.priority, None if one.adapter is None else one.adapter.name
            )
            for one in requests
        }
        self._token_times = token_times
        self._computed = dict.fromkeys(self._records, 0)
        self._lost: dict[str, int] = {}
        """By request that was preempted to be computed again: the tokens computed before that."""
        self._out_since: dict[str, float] = {}
        self._steps = 0
        self._lora_loads = 0
        self._swapped_blocks = 0

    def scheduled(self, batch: Batch, now: float) -> None:
        """Write down who came and went for a step that starts now."""
        self._steps += 1
        self._lora_loads += batch.lora_loads
        self._swapped_blocks += batch.swapped_blocks
        if batch.preempted:
            self._preempted(batch, now)
        for request_id in batch.swapped_in:
            since = self._out_since.pop(request_id)
            self._records[request_id].swapped_seconds += now - since
        for admission in batch.admitted:
            record = self._records[admission.request_id]
            record.admitted = min(record.admitted, now)
            self._computed[record.id] = admission.cached_tokens
            lost = self._lost.pop(record.id, 0)
            record.recomputed_tokens += max(0, lost - admission.cached_tokens)

    def _preempted(self, batch: Batch, now: float) -> None:
        swapped_out = set(batch.swapped_out)
        for request_id in batch.preempted:
            record = self._records[request_id]
            record.preemptions += 1
            if request_id in swapped_out:
                record.swap_outs += 1
                self._out_since[request_id] = now
            else:
                self._lost[request_id] = self._computed[request_id]

    def completed(self, step: Step, now: float) -> None:
        """Write down what came out of a step that ends now."""
        for request_id, num_tokens in step.scheduled.items():
            self._computed[request_id] += num_tokens
        for emission in step.emitted:
            record = self._records[emission.request_id]
            if not record.num_tokens:
                record.first_token = now
            record.num_tokens += 1
            record.last_token = now
            if self._token_times:
                record.token_times.append(now)

    def stretch(self, stretch: Stretch, now: float) -> float:
        """Write down several steps of which the first starts now; return when the last ends."""
        times = list(accumulate(stretch.durations, initial=now))[1:]
        self._steps += len(times)
        for request_id in stretch.tokens:
            self._computed[request_id] += len(times)
            record = self._records[request_id]
            if not record.num_tokens:
                record.first_token = times[0]
            record.num_tokens += len(times)
            record.last_token = times[-1]
            if self._token_times:
                record.token_times.extend(times)
        return times[-1]

    def result(self, now: float) -> Run:
        """Return all that was written down."""
        return Run(
            list(self._records.values()),
            self._steps,
            now,
            self._lora_loads,
            self._swapped_blocks,
        )
