"""
The live engine: steps an engine in real or scaled time and hands out its tokens as they come.

Between a step and its results passes the time that the step takes. Requests that arrive meanwhile
are seen by the next step, as in a real engine, and what came out for one that was aborted meanwhile
goes nowhere. An idle engine waits for an event and costs nothing.
"""

import asyncio
from collections import Counter, deque
from dataclasses import dataclass

from epp.simulator.engine import Engine, EngineRequest, FinishReason, Step
from epp.simulator.telemetry import Telemetry


class EngineDead(Exception):
    """The engine stopped, and with it every request that was in it."""


class Inbox:
    """
    What the engine says to one reader, who may have several requests in it at once.

    A reader waits for the next token, or for the last.
    """

    def __init__(self) -> None:
        self.cached_tokens = 0
        """How many tokens of the prompts were cached, of the requests that were admitted."""
        self._tokens: deque[tuple[int, int, FinishReason | None]] = deque()
        self._open = 0
        self._dead = False
        self._waiter: asyncio.Future[None] | None = None
        self._waits_for_last = False

    def expect(self) -> None:
        """Count one more request whose tokens will come."""
        self._open += 1

    def put(self, index: int, token: int, finish_reason: FinishReason | None) -> None:
        """Take a token of the request that the reader knows by this index."""
        self._tokens.append((index, token, finish_reason))
        if finish_reason is not None:
            self._open -= 1
        if not (self._waits_for_last and self._open):
            self._wake()

    def fail(self) -> None:
        """Say that nothing more will come."""
        self._dead = True
        self._wake()

    @property
    def backlog(self) -> int:
        """How many tokens lie here unread."""
        return len(self._tokens)

    async def next(self) -> tuple[int, int, FinishReason | None]:
        """Return the next token, its request's index before it; EngineDead if none will come."""
        while not self._tokens:
            await self._wait()
        return self._tokens.popleft()

    async def all(self) -> list[tuple[int, int, FinishReason | None]]:
        """Return the unread tokens of all requests once the last has come, as `next` would."""
        self._waits_for_last = True
        while self._open:
            await self._wait()
        return list(self._tokens)

    async def _wait(self) -> None:
        if self._dead:
            raise EngineDead
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


@dataclass(slots=True)
class _Flight:
    """A request under way: whose it is, and when what happened to it."""

    request: EngineRequest
    inbox: Inbox
    index: int
    arrived: float
    last_token: float = 0.0
    generated: int = 0


class LiveEngine:
    """One engine that runs by itself, for as long as `run` does."""

    def __init__(self, engine: Engine, telemetry: Telemetry, *, time_scale: float = 1.0) -> None:
        self._engine = engine
        self._telemetry = telemetry
        self._time_scale = time_scale
        self._flights: dict[str, _Flight] = {}
        self._adapters: Counter[str] = Counter()
        self._work = asyncio.Event()
        self._dead = False

    @property
    def requests(self) -> int:
        """How many requests are in the engine, or have tokens on their way."""
        return len(self._flights)

    def submit(self, request: EngineRequest, inbox: Inbox, index: int = 0) -> None:
        """Let a request into the engine; its tokens come to the inbox, under the index."""
        if self._dead:
            raise EngineDead
        self._engine.add_request(request)
        inbox.expect()
        now = asyncio.get_running_loop().time()
        self._flights[request.id] = _Flight(request, inbox, index, now)
        self._work.set()

    def abort(self, request_id: str) -> None:
        """Take a request out; one that has ended, or never was, is no matter."""
        flight = self._flights.pop(request_id, None)
        if flight is None:
            return
        self._engine.abort(request_id)
        self._forget_adapter(flight)
        self._report()

    async def run(self) -> None:
        """Step for ever; at the end, fail whoever still waits for a token."""
        try:
            await self._run()
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
            started = clock()
            step = self._engine.step()
            # Due times add up, so that a timer's lateness is made good by the next step; a loop
            # that lags by more than a step starts afresh, or it would run too fast to catch up.
            due = max(due + step.duration * self._time_scale, started)
            await asyncio.sleep(due - clock())
            self._deliver(step, started, clock())

    def _deliver(self, step: Step, started: float, now: float) -> None:
        self._telemetry.count_step(
            tokens=sum(step.scheduled.values()), preemptions=len(step.preempted)
        )
        for admission in step.admitted:
            flight = self._flights.get(admission.request_id)
            if flight is not None and not admission.resumed:
                flight.inbox.cached_tokens += admission.cached_tokens
                self._telemetry.count_admission(
                    prompt_tokens=len(flight.request.prompt),
                    cached_tokens=admission.cached_tokens,
                    waited=started - flight.arrived,
                )
        for request_id, token, finish_reason in step.emitted:
            flight = self._flights.get(request_id)
            if flight is not None:
                self._count_token(flight, now)
                if finish_reason is not None:
                    self._finish(flight, finish_reason, now)
                flight.inbox.put(flight.index, token, finish_reason)
        self._report()

    def _count_token(self, flight: _Flight, now: float) -> None:
        if flight.generated:
            self._telemetry.count_next_token(now - flight.last_token)
        else:
            self._telemetry.count_first_token(
                prompt_tokens=len(flight.request.prompt), latency=now - flight.arrived
            )
            if flight.request.adapter is not None:
                self._adapters[flight.request.adapter] += 1
        flight.generated += 1
        flight.last_token = now

    def _finish(self, flight: _Flight, reason: FinishReason, now: float) -> None:
        del self._flights[flight.request.id]
        self._forget_adapter(flight)
        self._telemetry.count_finish(
            reason,
            prompt_tokens=len(flight.request.prompt),
            generated_tokens=flight.generated,
            latency=now - flight.arrived,
        )

    def _forget_adapter(self, flight: _Flight) -> None:
        adapter = flight.request.adapter
        if adapter is not None and flight.generated:
            self._adapters[adapter] -= 1
            if not self._adapters[adapter]:
                del self._adapters[adapter]

    def _report(self) -> None:
        self._telemetry.report(self._engine.load, tuple(self._adapters))
