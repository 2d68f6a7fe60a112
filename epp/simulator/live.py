"""
The live engine: steps an engine in real or scaled time and hands out its tokens as they come.

Between a step and its results passes the time that the step takes. Requests that arrive meanwhile
are seen by the next step, as in a real engine, and what came out for one that was aborted meanwhile
goes nowhere. An idle engine waits for an event and costs nothing.

Two times run here. What clients see, and what the metrics page says of it, is real time, read from
a clock of its own where the loop's is too coarse. The engine's time, by which its policies age, is
the one that its steps took: the real one divided by the scale, or where nothing is waited for, the
sum of all steps.
"""

import asyncio
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from epp.simulator.engine import Batch, CacheEvent, Engine, EngineLoad, EngineRequest, Step
from epp.simulator.faults import Faults, FaultSwitch
from epp.simulator.inbox import EngineDead, Inbox
from epp.simulator.telemetry import EngineTelemetry, Passage, Siblings


@dataclass(slots=True)
class Pace:
    """How well a live engine keeps time: how much later than due its steps ended, in seconds."""

    steps: int = 0
    late_seconds: float = 0.0
    """Of all steps together."""
    latest_seconds: float = 0.0
    """Of the one that was latest."""

    def note(self, late_seconds: float) -> None:
        """Count a step."""
        self.steps += 1
        self.late_seconds += late_seconds
        self.latest_seconds = max(self.latest_seconds, late_seconds)


@dataclass(slots=True)
class _Flight:
    """A request under way: whose it is, and how far it came."""

    request: EngineRequest
    inbox: Inbox
    index: int
    passage: Passage


def _unheard(_events: Sequence[CacheEvent]) -> None:
    """Publish nothing."""


class LiveEngine:
    """One engine that runs by itself, for as long as `run` does."""

    def __init__(
        self,
        engine: Engine,
        telemetry: EngineTelemetry,
        *,
        time_scale: float = 1.0,
        faults: FaultSwitch | None = None,
        publish: Callable[[Sequence[CacheEvent]], None] = _unheard,
        clock: Callable[[], float] | None = None,
    ) -> None:
        """Measure by this clock, in seconds since whenever; None is that of the running loop."""
        self.pace = Pace()
        self.queued_requests = 0
        """How many requests have not had a seat yet."""
        self.queued_tokens = 0
        """How many tokens the prompts of these have."""
        self._engine = engine
        self._telemetry = telemetry
        self._time_scale = time_scale
        self._faults = faults or FaultSwitch(Faults())
        self._publish = publish
        self._clock = clock or _loop_time
        self._flights: dict[str, _Flight] = {}
        self._computed_seconds = 0.0
        self._work = asyncio.Event()
        self._dead = False

    @property
    def requests(self) -> int:
        """How many requests are in the engine, or have tokens on their way."""
        return len(self._flights)

    @property
    def load(self) -> EngineLoad:
        """How full the engine is now."""
        return self._engine.load

    def now(self) -> float:
        """Return the engine's own time."""
        if self._time_scale:
            return asyncio.get_running_loop().time() / self._time_scale
        return self._computed_seconds

    def submit(
        self,
        request: EngineRequest,
        inbox: Inbox,
        index: int = 0,
        *,
        max_tokens: int | None = None,
        siblings: Siblings | None = None,
    ) -> Passage:
        """
        Let a request into the engine; its tokens come to the inbox, under the index.

        Return how far it came, which moves on with it.
        """
        if self._dead:
            raise EngineDead
        self._engine.add_request(request)
        inbox.expect()
        passage = self._telemetry.arrive(
            self._clock(),
            prompt_tokens=len(request.prompt),
            max_tokens=max_tokens,
            adapter=None if request.adapter is None else request.adapter.name,
            siblings=siblings,
        )
        self._flights[request.id] = _Flight(request, inbox, index, passage)
        self.queued_requests += 1
        self.queued_tokens += len(request.prompt)
        self._work.set()
        return passage

    def abort(self, request_id: str) -> None:
        """Take out a request whose reader left; one that ended, or never was, is no matter."""
        flight = self._take_out(request_id)
        if flight is not None:
            flight.passage.leave()
            self._telemetry.report(self._engine.load)

    def end(self, request_id: str) -> None:
        """Take out a request whose reader stays, and tell him; likewise."""
        flight = self._take_out(request_id)
        if flight is not None:
            flight.passage.finish(self._clock(), "abort")
            flight.inbox.put(flight.index, None, "abort")
            self._telemetry.report(self._engine.load)

    def reset_prefix_cache(self) -> bool:
        """Forget what is cached; False, with nothing changed, while anything is held."""
        return self._engine.reset_prefix_cache()

    def forget_adapter(self, name: str) -> None:
        """Drop an adapter's weights: what uses it next must load it anew."""
        self._engine.forget_adapter(name)

    async def run(self) -> None:
        """
        Step for ever; at the end, fail whoever still waits for a token.

        Raise EngineDead where a fault says that it dies, and for any error: as with the real one,
        an engine that failed in one step is not to be trusted with another.
        """
        try:
            await self._run()
        except EngineDead:
            raise
        except Exception as error:
            raise EngineDead(_told(error)) from error
        finally:
            self._dead = True
            for flight in self._flights.values():
                flight.inbox.fail()

    async def _run(self) -> None:
        clock = asyncio.get_running_loop().time
        due = clock()
        while True:
            if not self._engine.has_work:
                self._work.clear()
                await self._work.wait()
                due = clock()
            faults = self._faults.now
            if faults.die_at_step is not None and self.pace.steps + 1 >= faults.die_at_step:
                raise EngineDead("a fault switch asked for it")
            started = clock()
            batch = self._engine.schedule(self.now())
            self._note_moves(batch, self._clock())
            # Due times add up, so that a timer's lateness is made good by the next step; a loop
            # that lags by more than a step starts afresh, or it would run too fast to catch up.
            due = max(due + batch.duration * faults.slow_down * self._time_scale, started)
            await _sleep_until(due)
            self._computed_seconds += batch.duration * faults.slow_down
            self.pace.note(clock() - due)
            self._deliver(self._engine.complete(batch), self._clock())

    def _note_moves(self, batch: Batch, now: float) -> None:
        """Note who went and came for a step: who was sent away may be back within the same one."""
        flights = self._flights
        for request_id in batch.preempted:
            flights[request_id].passage.preempt()
        for admission in batch.admitted:
            flight = flights[admission.request_id]
            if flight.passage.admitted is None:
                self._leave_queue(flight)
            flight.passage.admit(now, admission.cached_tokens)
        for request_id in batch.swapped_in:
            flights[request_id].passage.resume()

    def _deliver(self, step: Step, now: float) -> None:
        flights = self._flights
        for request_id, token, finish_reason in step.emitted:
            flight = flights[request_id]
            flight.passage.token(now)
            if finish_reason is not None:
                flight.passage.finish(now, finish_reason)
                del flights[request_id]
            flight.inbox.put(flight.index, token, finish_reason)
        self._telemetry.report(
            self._engine.load, queries=step.lookups.queries, hits=step.lookups.hits
        )
        self._publish(step.events)

    def _take_out(self, request_id: str) -> _Flight | None:
        flight = self._flights.pop(request_id, None)
        if flight is not None:
            self._engine.abort(request_id)
            if flight.passage.admitted is None:
                self._leave_queue(flight)
        return flight

    def _leave_queue(self, flight: _Flight) -> None:
        self.queued_requests -= 1
        self.queued_tokens -= len(flight.request.prompt)


async def _sleep_until(due: float) -> None:
    """
    Let others run, and the time pass until it is due.

    A loop's clock may stand still while callbacks run, and its timers with it: uvloop's are late by
    as long as the last callbacks took, which for a thousand readers of tokens is 40 ms. So these
    run first, and the time that is left is read in a turn of the loop in which nothing else ran.
    """
    clock = asyncio.get_running_loop().time
    if due > clock():
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    await asyncio.sleep(due - clock())


def _loop_time() -> float:
    return asyncio.get_running_loop().time()


def _told(error: Exception) -> str:
    """Say what an error is and where it was raised; not its message, which may quote a request."""
    *_, (frame, line) = traceback.walk_tb(error.__traceback__)
    return f"{type(error).__name__} in {frame.f_globals.get('__name__')}, line {line}"
