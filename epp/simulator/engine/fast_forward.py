"""
Fast forward: many steps at once, where nothing but decoding happens in them.

Such a stretch is as long as nobody finishes, blocks suffice for all, and nobody who waits could be
admitted: because none waits, every seat is taken, or every adapter slot is and all who wait need
another one. Then each step gives each running request one token and takes as long as the linear
model says; only blocks that become full or are newly taken need looking at, in the order in which
the steps would.
"""

from collections.abc import Sequence

from epp.simulator.engine.batch import Stretch
from epp.simulator.engine.cache_events import CacheEvent
from epp.simulator.engine.request import ActiveRequest
from epp.simulator.engine.scheduler import Scheduler


def advance(scheduler: Scheduler, now: float, until: float) -> Stretch | None:
    """Advance by all steps that start before `until`; None where not even one is possible."""
    longest = _decode_steps(scheduler)
    if not longest or not _admits_nobody(scheduler):
        return None
    running = scheduler.running
    adapters = dict.fromkeys(one.adapter.name for one in running if one.adapter is not None)
    if not scheduler.adapters.holds(adapters):
        return None
    durations = _durations(scheduler, now, until, longest)
    steps = _fitting(scheduler, len(durations))
    if not steps:
        return None
    del durations[steps:]
    scheduler.adapters.activate(adapters)
    tokens = {}
    for request in running:
        said = request.reply[request.produced : request.produced + steps]
        tokens[request.id] = said
        request.tokens.extend(said)
    events = _move_blocks(scheduler, steps)
    for request in running:
        request.produced += steps
        request.computed += steps
    return Stretch(durations, tokens, events)


def _decode_steps(scheduler: Scheduler) -> int:
    """Return for how many steps all lack one token only, get theirs, and nobody finishes."""
    running = scheduler.running
    if not running or len(running) > scheduler.options.max_num_batched_tokens:
        return 0
    shortest = running[0].limit
    for request in running:
        left = request.limit - request.produced
        if left <= 1 or len(request.tokens) - request.computed != 1:
            return 0
        if left < shortest:
            shortest = left
    return shortest - 1


def _admits_nobody(scheduler: Scheduler) -> bool:
    """Whether nobody can come in, as long as those who run do."""
    if scheduler.swapped:
        return False
    if not scheduler.waiting:
        return True
    if scheduler.options.priority_preemption:
        return False
    if len(scheduler.running) >= scheduler.options.max_num_seqs:
        return True
    active = {one.adapter.name for one in scheduler.running if one.adapter is not None}
    if len(active) < scheduler.options.max_loras:
        return False
    waiting: Sequence[ActiveRequest] = (
        [next(iter(scheduler.waiting))]
        if scheduler.options.lora_waiting == "stop"
        else list(scheduler.waiting)
    )
    return all(
        one.deferred and one.adapter is not None and one.adapter.name not in active
        for one in waiting
    )


def _durations(scheduler: Scheduler, now: float, until: float, longest: int) -> list[float]:
    """Return the durations of the steps that start before `until`, at most so many."""
    running = scheduler.running
    timing = scheduler.timing
    context = sum(one.computed for one in running) if timing.context_token_seconds else 0
    durations: list[float] = []
    while now < until and len(durations) < longest:
        durations.append(
            timing.duration(tokens=len(running), sequences=len(running), context_tokens=context)
        )
        now += durations[-1]
        context += len(running)
    return durations


def _fitting(scheduler: Scheduler, steps: int) -> int:
    """Return for how many of these steps there are blocks."""
    size = scheduler.options.block_size
    free = scheduler.cache.free_blocks
    rooms = [len(one.blocks) * size - one.computed for one in scheduler.running]

    def lacking(count: int) -> int:
        return sum(-(-(count - room) // size) for room in rooms if count > room)

    if lacking(steps) <= free:
        return steps
    fits, fails = 0, steps
    while fails - fits > 1:
        middle = (fits + fails) // 2
        if lacking(middle) <= free:
            fits = middle
        else:
            fails = middle
    return fits


def _move_blocks(scheduler: Scheduler, steps: int) -> Sequence[tuple[int, CacheEvent]]:
    """Take and name blocks as the steps would; the tokens are there already."""
    size = scheduler.options.block_size
    due = []
    for at, request in enumerate(scheduler.running):
        last = request.computed + steps
        full = range(-(-(request.computed + 1) // size) * size, last + 1, size)
        taken = range(-(-request.computed // size) * size + 1, last + 1, size)
        due += [(end - request.computed - 1, at, end) for end in {*full, *taken}]
    events: list[tuple[int, CacheEvent]] = []
    for step, at, end in sorted(due):
        scheduler.tables.extend(scheduler.running[at], end)
        events += [(step, event) for event in scheduler.cache.take_events()]
    return events
