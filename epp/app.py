"""
The composition root: every object is built once here, run in one TaskGroup, and drained on SIGTERM.

Nothing else knows all the rooms. A stop goes in three steps: readiness falls and new streams are
refused, running ones finish or meet the drain time-out, everything in the background is cancelled.
"""

import asyncio
import contextlib
import functools
import gc
import logging
import random
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog
from prometheus_client import CollectorRegistry, ProcessCollector

from epp import __version__
from epp.config import loader
from epp.datalayer.collector import Collector
from epp.datalayer.datastore import Datastore
from epp.extproc import listeners
from epp.extproc.certificates import Certificate
from epp.extproc.door import Door
from epp.extproc.grpc_door import GrpcDoor
from epp.extproc.h2.door import LeanDoor
from epp.extproc.health import Health
from epp.framework import (
    ConfigError,
    EndpointRemoved,
    EPPError,
    PluginContext,
    PluginInstance,
    Registry,
    StateDumper,
    Synced,
)
from epp.observability import exporter
from epp.observability.logs import RequestLog
from epp.observability.metrics import Metrics, watch_loop_lag
from epp.requestcontrol.decisions import RecentDecisions
from epp.requestcontrol.director import Director
from epp.requestcontrol.policies import Policies
from epp.requestcontrol.reload import Reloader, scorer_weights

MIN_REFRESH_SECONDS = 0.05
"""As the field has it: 20 scrapes a second tell no more than engines report."""

TRANSPORTS: Mapping[str, Callable[..., Door]] = {"lean": LeanDoor, "grpc": GrpcDoor}
"""What serves ext_proc: HTTP/2 frames of our own, or the gRPC library."""

_log = structlog.get_logger("epp")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the command line sets; sizes in bytes, times in seconds, port 0 is any free one."""

    bind_address: str = ""
    grpc_port: int = 9002
    grpc_health_port: int = 9003
    metrics_port: int = 9090
    config_file: Path | None = None
    endpoints_file: Path | None = None
    transport: str = "lean"
    secure_serving: bool = True
    cert_path: Path | None = None
    drain_timeout: float = 30.0
    answer_timeout: float = 1.0
    max_request_bytes: int = 64 << 20
    refresh_metrics_interval: float = 0.2
    scrape_timeout: float = 1.0
    metrics_staleness_threshold: float = 2.0
    explain_header: bool = False
    reload_interval: float = 1.0
    """How often the configuration file is looked at."""

    @property
    def scrape_interval(self) -> float:
        """The interval of scrapes: the one asked for, but no less than the field's least."""
        return max(MIN_REFRESH_SECONDS, self.refresh_metrics_interval)


@dataclass(frozen=True, slots=True)
class Ports:
    """Where the picker listens, once it does."""

    grpc: int
    health: int
    metrics: int


class App:
    """One picker. `run` serves until `stop` is called; several can live in one process."""

    def __init__(
        self,
        options: Options,
        *,
        log: RequestLog | None = None,
        registry: Registry | None = None,
        rng: random.Random | None = None,
    ) -> None:
        """`rng` breaks ties. Raises ConfigError where the configuration cannot be used."""
        self._options = options
        self._log = log or RequestLog(None)
        self._stop = asyncio.Event()
        self._rng = rng or random.Random()
        clock = time.monotonic
        self._prometheus = CollectorRegistry()
        ProcessCollector(registry=self._prometheus)
        self.metrics = Metrics(self._prometheus)
        folder = options.config_file.parent if options.config_file else None
        self._registry = registry or Registry(folder=folder)
        self._document = loader.DEFAULT_CONFIG
        configuration = self._configure()
        self.datastore = Datastore(clock=clock, stale_after=options.metrics_staleness_threshold)
        self.metrics.watch_pool(self.datastore.endpoints, clock)
        self.decisions = RecentDecisions(weights=scorer_weights(configuration), clock=clock)
        self.director = Director(
            endpoints=self.datastore.endpoints,
            policies=self._policies(configuration),
            decisions=self.decisions,
            metrics=self.metrics,
            log=self._log,
            clock=clock,
            explains=options.explain_header,
        )
        self.reloader = Reloader(
            configuration,
            load=self._load,
            build=self._policies,
            director=self.director,
            decisions=self.decisions,
            metrics=self.metrics,
        )
        self.health = Health()
        self.door = TRANSPORTS[options.transport](
            self.director, self.metrics, self.health, max_body_bytes=options.max_request_bytes
        )
        self._certificate = Certificate(options.cert_path) if options.secure_serving else None
        self._synced = asyncio.Event()
        self.ready = asyncio.Event()
        """Set once the picker can decide with what it should know, and its ports are open."""
        self.ports: Ports | None = None

    def _configure(self) -> loader.Configuration:
        path = self._options.config_file
        if path is not None:
            try:
                self._document = path.read_bytes()
            except OSError as error:
                message = f"--config-file: {path}: {error.strerror}"
                raise ConfigError(message) from error
        configuration = self._load(self._document, None)
        if configuration.discovery is None:
            raise ConfigError(
                "nothing says where the endpoints are: give --endpoints-file, or configure"
                " dataLayer.discovery"
            )
        return configuration

    def _load(self, document: bytes, current: loader.Configuration | None) -> loader.Configuration:
        """Return the configuration of a document, with what it can take over of the current one."""
        endpoints_file = self._options.endpoints_file
        return loader.load(
            document,
            self._registry,
            self._context,
            endpoints_file=str(endpoints_file) if endpoints_file else None,
            reuse={one.name: one for one in current.plugins} if current else {},
        )

    def _policies(self, configuration: loader.Configuration) -> Policies:
        return Policies.from_config(
            configuration,
            self.metrics,
            self._rng,
            producer_deadline_seconds=self._options.answer_timeout,
        )

    def _context(self, name: str) -> PluginContext:
        return PluginContext(
            name=name,
            clock=time.monotonic,
            random=self._rng,
            logger=logging.getLogger(f"epp.plugin.{name}"),
            count=functools.partial(self.metrics.plugin_event, name),
        )

    @property
    def configuration(self) -> loader.Configuration:
        """The configuration in force."""
        return self.reloader.configuration

    @property
    def stopping(self) -> bool:
        """Whether `stop` was called."""
        return self._stop.is_set()

    def stop(self) -> None:
        """Begin to stop; `run` returns when all is done."""
        self._stop.set()

    async def run(self) -> None:
        """
        Serve until stopped.

        Raises ConfigError where a port is taken or the endpoints cannot be read at first.
        """
        for warning in self.configuration.warnings:
            _log.warning("configuration", warning=warning)
        async with contextlib.AsyncExitStack() as stack:
            await self._open(stack)
            gc.collect()
            gc.freeze()
            async with asyncio.TaskGroup() as group:
                collector = self._collector(stack)
                tasks = [
                    group.create_task(self._discover(), name="discovery"),
                    group.create_task(self._become_ready(collector), name="readiness"),
                    group.create_task(watch_loop_lag(self.metrics), name="loop lag"),
                ]
                if collector is not None:
                    tasks.append(group.create_task(collector.run(), name="collector"))
                if self._options.config_file is not None:
                    tasks.append(group.create_task(self._reload(), name="reload"))
                await self._stop.wait()
                await self._drain()
                for task in tasks:
                    task.cancel()
        _log.info("stopped")

    async def _open(self, stack: contextlib.AsyncExitStack) -> None:
        options = self._options
        address = options.bind_address or listeners.any_address()
        stack.push_async_callback(self.door.close)
        grpc_port = await self.door.listen(
            address, options.grpc_port, certificate=self._certificate
        )
        health_port = await self.door.listen(address, options.grpc_health_port, only_health=True)
        site = await stack.enter_async_context(
            exporter.serve(
                address,
                options.metrics_port,
                self._prometheus,
                self.state,
                {"/debug/decisions": self.decisions.dump},
            )
        )
        self.ports = Ports(grpc_port, health_port, site.port)
        _log.info(
            "serving",
            version=__version__,
            address=address,
            grpc_port=grpc_port,
            grpc_health_port=health_port,
            metrics_port=site.port,
            secure=options.secure_serving,
            transport=options.transport,
        )

    async def _reload(self) -> None:
        assert self._options.config_file is not None  # else nothing would change
        await self.reloader.run(
            self._options.config_file,
            self._document,
            lambda: self._registry.files,
            interval=self._options.reload_interval,
        )

    async def _discover(self) -> None:
        assert self.configuration.discovery is not None  # checked in _configure
        async for event in self.configuration.discovery.plugin.discover():
            self.datastore.apply(event)
            if isinstance(event, EndpointRemoved):
                self.metrics.forget(str(event.id))
            if isinstance(event, Synced):
                self._synced.set()

    async def _become_ready(self, collector: Collector | None) -> None:
        """Be ready once the endpoints are known and were asked for their load, or had the time."""
        await self._synced.wait()
        if collector is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._options.scrape_timeout):
                    await collector.first_round.wait()
        if not self.stopping:
            self.health.set_ready(ready=True)
            self.ready.set()
            _log.info("ready", endpoints=len(self.datastore.endpoints()))

    def _collector(self, stack: contextlib.AsyncExitStack) -> Collector | None:
        source, extractor = self.configuration.source, self.configuration.extractor
        if source is None or extractor is None:
            return None
        stack.push_async_callback(source.plugin.aclose)
        return Collector(
            self.datastore,
            source.plugin,
            extractor.plugin,
            self.metrics.scrapes,
            interval=self._options.scrape_interval,
            timeout=self._options.scrape_timeout,
        )

    async def _drain(self) -> None:
        """Refuse what is new, wait for what runs, cut what is left at the time-out."""
        seconds = self._options.drain_timeout
        _log.info("draining", timeout_seconds=seconds)
        self.metrics.draining(draining=True)
        self.health.set_ready(ready=False)
        try:
            await self.door.drain(seconds)
        except TimeoutError:
            _log.warning("drain time-out: streams that still run are cut")
        await self.door.close()

    def state(self) -> Mapping[str, Any]:
        """What /debug/state shows: the pool and the plugins' memory."""
        return {
            "version": __version__,
            **self.datastore.dump_state(),
            "plugins": {one.name: self._dump(one) for one in self.configuration.of(StateDumper)},
        }

    def _dump(self, instance: PluginInstance) -> Mapping[str, Any]:
        try:
            with self.metrics.plugin("state-dumper", instance):
                dumped: Mapping[str, Any] = instance.plugin.dump_state()
        except EPPError:
            return {"error": "the plugin failed to tell"}
        return dumped


@contextlib.asynccontextmanager
async def running(options: Options, *, registry: Registry | None = None) -> AsyncIterator[App]:
    """Run a picker beside the caller's own work; leave the block to drain it."""
    app = App(options, registry=registry)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(app.run(), name="app")
        await app.ready.wait()
        try:
            yield app
        finally:
            app.stop()
            await task


async def serve(options: Options, log: RequestLog) -> None:
    """Run a picker until SIGTERM or SIGINT; a second signal ends it at once."""
    app = App(options, log=log)
    loop = asyncio.get_running_loop()

    def on_signal() -> None:
        if app.stopping:
            sys.exit(1)
        app.stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal)
    await app.run()
