"""
The simulator: the engines of one server and what surrounds them, whoever asks.

It lets jobs into the engine that is least loaded and takes them out again, and keeps the catalog of
models, the metrics page and the fault switches. It knows jobs and not HTTP.
"""

import asyncio
import contextlib
import dataclasses
import itertools
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass

import xxhash

from epp.simulator.api import VERSION, errors, handoff
from epp.simulator.api.catalog import Catalog
from epp.simulator.api.completions import AnswerOptions
from epp.simulator.api.errors import APIError
from epp.simulator.api.headers import RequestHeaders
from epp.simulator.api.jobs import Job, JobReader
from epp.simulator.engine import Engine, EngineOptions, EngineRequest
from epp.simulator.faults import FaultSwitch
from epp.simulator.inbox import EngineDead, Inbox
from epp.simulator.kv_events import KVEventPublisher
from epp.simulator.live import LiveEngine
from epp.simulator.server.options import SimulatorOptions
from epp.simulator.telemetry import Passage, Siblings, Telemetry

_WAITING_WEIGHT = 6
_CALM_KV_USAGE = 0.5
_ANY_PORT = ":*"


@dataclass(frozen=True, slots=True)
class Flight:
    """A job in an engine."""

    inbox: Inbox
    passages: Sequence[Passage]
    """One for each choice."""


class Simulator:
    """A running model server, as its users see it."""

    def __init__(self, options: SimulatorOptions) -> None:
        self.options = options
        self.port = options.port
        self.faults = FaultSwitch(options.faults, options.seed)
        self.catalog = Catalog(options.model, options.lora_modules, options.engine.max_model_len)
        self.reader = JobReader(self.catalog, options.seed, options.force_include_usage)
        self.telemetry = Telemetry(
            options.model,
            options.engine,
            engines=options.data_parallel_size,
            lora=bool(options.lora_modules) or options.runtime_lora_updating,
            lora_info=options.lora_info,
        )
        self.answers = AnswerOptions(
            fingerprint=_fingerprint(options),
            prompt_details=options.prompt_tokens_details,
            metrics=options.per_request_metrics,
        )
        self.engines: Sequence[LiveEngine] = ()
        """One for each data-parallel rank, while it runs."""
        self.dead = asyncio.Event()
        """Set once an engine has died, and with it the server."""
        self.cause_of_death = ""
        self.server_load = 0
        """How many requests are being answered, where that is tracked."""
        self._publishers: list[KVEventPublisher] = []
        self._serial = itertools.count()
        self._under_way: dict[str, list[str]] = {}

    @property
    def url(self) -> str:
        """The address to call, without a slash at its end."""
        return f"http://{self.options.host}:{self.port}"

    @property
    def healthy(self) -> bool:
        """Whether the server says that it is well."""
        return not (self.dead.is_set() or self.faults.now.fail_health)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """
        Run the engines until the block ends, or one of them dies.

        Raises ValueError where KV events cannot be published.
        """
        async with contextlib.AsyncExitStack() as stack:
            engines = []
            for rank, telemetry in enumerate(self.telemetry.engines):
                publish = {}
                if self.options.kv_events.publishes:
                    publisher = await stack.enter_async_context(self._publisher(rank))
                    publish = {"publish": publisher.publish}
                engine = Engine(self._engine_options(), self.options.timing)
                engines.append(
                    LiveEngine(
                        engine,
                        telemetry,
                        time_scale=self.options.time_scale,
                        faults=self.faults,
                        clock=time.perf_counter,  # uvloop's counts whole milliseconds
                        **publish,
                    )
                )
            self.engines = engines
            task = asyncio.create_task(self._run_engines(), name="engines")
            try:
                yield
            finally:
                await _stop(task)

    def choose_engine(self, rank: int | None) -> LiveEngine:
        """Return the engine of a rank, or the least loaded one; APIError where there is none."""
        if rank is None:
            return min(self.engines, key=_score)
        if rank >= len(self.engines):
            raise APIError(f"data_parallel_rank {rank} is out of range [0, {len(self.engines)}).")
        return self.engines[rank]

    def check_queue(self, job: Job) -> None:
        """Refuse a job that the queue has no room for, before anything of it is in an engine."""
        options = self.options
        waiting = sum(engine.queued_requests for engine in self.engines)
        if options.max_num_queued_reqs is not None and waiting >= options.max_num_queued_reqs:
            self.telemetry.count_rejection("max_num_queued_reqs")
            raise errors.busy()
        tokens = sum(engine.queued_tokens for engine in self.engines)
        limit = options.max_num_queued_tokens
        if limit is not None and tokens + job.prompt_tokens > limit:
            self.telemetry.count_rejection("max_num_queued_tokens")
            raise errors.busy()

    @contextlib.contextmanager
    def submitted(self, job: Job, answer_id: str, headers: RequestHeaders) -> Iterator[Flight]:
        """Have the choices in an engine, and out of it again however the answer ends."""
        engine = self.choose_engine(headers.rank)
        self.check_queue(job)
        inbox = Inbox()
        ids = self._under_way.setdefault(answer_id, [])
        mine: list[str] = []
        try:
            passages = []
            siblings: Siblings | None = None
            for index in range(len(job.choices)):
                if job.choices_per_prompt > 1 and index % job.choices_per_prompt == 0:
                    siblings = Siblings(job.choices_per_prompt)
                request = self._request(job, index, f"{answer_id}-{next(self._serial)}", engine)
                mine.append(request.id)
                ids.append(request.id)
                passages.append(
                    engine.submit(
                        request, inbox, index, max_tokens=job.max_tokens, siblings=siblings
                    )
                )
            yield Flight(inbox, passages)
        except EngineDead as error:
            raise errors.engine_dead() from error
        finally:
            for request_id in mine:
                engine.abort(request_id)
                ids.remove(request_id)
            if not ids:
                self._under_way.pop(answer_id, None)

    @contextlib.contextmanager
    def counted(self) -> Iterator[None]:
        """Count a request in the server's load, if that is to be tracked."""
        tracked = self.options.server_load_tracking
        self.server_load += tracked
        try:
            yield
        finally:
            self.server_load -= tracked

    def kv_event_sources(self) -> dict[str, object]:
        """Return each rank's KV events: where they are published, and how."""
        sources: dict[str, object] = {}
        for rank, publisher in enumerate(self._publishers):
            source = self.options.kv_events.source(rank)
            if str(source["endpoint"]).endswith(_ANY_PORT):
                source["endpoint"] = publisher.endpoint
            if str(source["replay_endpoint"]).endswith(_ANY_PORT):
                source["replay_endpoint"] = publisher.replay_endpoint
            sources[str(rank)] = source
        return sources

    def handoff(self, job: Job, answer_id: str) -> dict[str, object] | None:
        """Return the kv_transfer_params of an answer."""
        return handoff.answered(
            job.kv_transfer_params,
            request_id=answer_id,
            engine_id=self.answers.fingerprint,
            prompt_tokens=job.prompt_tokens,
            block_size=self.options.engine.block_size,
            host=self.options.host,
        )

    def end_requests(self, answer_ids: Sequence[str]) -> None:
        """End requests by the ids of their answers, and tell who waits for them."""
        for answer_id in answer_ids:
            for request_id in list(self._under_way.get(answer_id, ())):
                for engine in self.engines:
                    engine.end(request_id)

    def _request(self, job: Job, index: int, request_id: str, engine: LiveEngine) -> EngineRequest:
        choice = job.choices[index]
        return EngineRequest(
            id=request_id,
            prompt=choice.prompt,
            reply=choice.reply,
            adapter=job.adapter,
            cache_salt=job.cache_salt,
            stops=choice.stops,
            priority=job.priority,
            arrival=engine.now(),
            session_id=job.session_id,
        )

    def _engine_options(self) -> EngineOptions:
        return dataclasses.replace(self.options.engine, kv_events=self.options.kv_events.publishes)

    @contextlib.asynccontextmanager
    async def _publisher(self, rank: int) -> AsyncIterator[KVEventPublisher]:
        publisher = KVEventPublisher(
            self.options.kv_events,
            rank=rank,
            encoding=self.options.kv_events_encoding,
            hashes=self.options.kv_events_hashes,
        )
        self._publishers.append(publisher)
        replays = asyncio.create_task(publisher.run(), name=f"KV events of rank {rank}")
        try:
            yield publisher
        finally:
            await _stop(replays)
            publisher.close()

    async def _run_engines(self) -> None:
        """Run all engines; when one dies, the others stop, and the server is dead."""
        try:
            async with asyncio.TaskGroup() as group:
                for engine in self.engines:
                    group.create_task(engine.run())
        except* EngineDead as deaths:
            self.cause_of_death = str(deaths.exceptions[0])
            self.dead.set()


async def _stop(task: asyncio.Task[None]) -> None:
    """Cancel a task and wait for its end; raise what ended it before it was told to."""
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled():
        task.result()


def _score(engine: LiveEngine) -> float:
    """Return how loaded an engine is, as vLLM's client of several engines sees it."""
    load = engine.load
    in_engine = max(engine.requests, load.waiting + load.running)
    crowded = max(0.0, load.kv_usage - _CALM_KV_USAGE)
    return in_engine + load.waiting * _WAITING_WEIGHT * crowded


def _fingerprint(options: SimulatorOptions) -> str:
    ranks = f"-dp{options.data_parallel_size}" if options.data_parallel_size > 1 else ""
    return f"vllm-{VERSION}{ranks}-{xxhash.xxh32_hexdigest(repr(options.engine).encode())}"
