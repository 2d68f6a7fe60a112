"""
The field's acceptance cases of the area multi-port, from their data.

A pool that has ports, pods and a selector is of Kubernetes, which comes with its own issue. What
holds without it is tested with endpoints from a file, one for each port.
"""

import asyncio
import base64
import contextlib
import json
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from epp.commands import schedule
from epp.config import loader
from epp.datalayer.collector import Collector
from epp.datalayer.datastore import Datastore
from epp.framework import (
    ConfigError,
    Endpoint,
    EndpointId,
    EndpointUpdate,
    EndpointUpserted,
    PluginContext,
    Registry,
    Synced,
)
from epp_plugins.data_sources.metrics import MetricsDataSource
from epp_plugins.discoveries.static_file import FileDiscovery
from epp_plugins.extractors.model_server_metrics import ModelServerMetricsExtractor
from support import cases

Case = dict[str, Any]

CASES = cases.load("multi-port")

KUBERNETES = "pools and pods come with the Kubernetes issue"

DIFFERING = {
    "mp-001-one-endpoint-per-port": f"{KUBERNETES}; with a file, each port is an entry, see below",
    "mp-002-metrics-per-rank": f"{KUBERNETES}; that each port is scraped is tested below",
    "mp-006-active-ports-keep-rank-numbers": f"{KUBERNETES}; a file names its endpoints, see below",
    "mp-007-active-ports-update": f"{KUBERNETES}; that endpoints leave at once is tested below",
    "mp-009-pod-eligibility": f"{KUBERNETES}; what a file can say of it is tested below",
    "mp-010-pool-lifecycle": KUBERNETES,
}

CHECKS = cases.Checks()
case = CHECKS.register


def test_every_binding_case_is_tested_or_has_a_reason() -> None:
    assert cases.unaccounted(CASES, CHECKS, DIFFERING) == set()
    assert set(CHECKS) | set(DIFFERING) <= set(CASES)
    assert not set(CHECKS) & set(DIFFERING)


def configured(*plugins: Mapping[str, Any]) -> loader.Configuration:
    document = {"apiVersion": "llm-d.ai/v1alpha1", "kind": "EndpointPickerConfig"}
    return loader.load(json.dumps({**document, "plugins": plugins}).encode(), Registry())


@case("mp-012-session-token-names-rank")
def session_token(data: Case) -> None:
    ports = data["given"]["pool_target_ports"]
    [(header, encoded)] = data["when"][0].items()
    name = re.fullmatch(r"base64\((.*)\)", encoded)
    wanted = re.search(r"port (\d+)", data["then"]["endpoint"])
    assert name is not None
    assert wanted is not None
    pool = [
        {"name": f"pod1-rank-{at}", "address": "10.0.0.1", "port": port}
        for at, port in enumerate(ports)
    ]
    for plugin in ("session-affinity-filter", "session-affinity-scorer"):
        found = schedule.run(
            configured({"type": plugin}),
            schedule.read_state(json.dumps({"endpoints": pool}).encode()),
            schedule.read_request(None, {header: base64.b64encode(name[1].encode()).decode()}),
            draws=20,
            seed=1,
        )
        [picked] = found["picks"]
        [destination] = [
            one["destination"]
            for one in found["profiles"]["default"]["candidates"]
            if one["endpoint"] == picked
        ]

        assert destination == f"10.0.0.1:{wanted[1]}"


@pytest.mark.parametrize("name", sorted(CHECKS))
def test_case(name: str) -> None:
    CHECKS[name](CASES[name])


def test_a_handler_that_comes_later_is_refused_by_its_name() -> None:
    kind = CASES["mp-011-data-parallel-handler"]["given"]["handler"]

    with pytest.raises(ConfigError, match=f"{kind}': this version has no"):
        configured({"type": kind})


# Endpoints from a file


class FilePool:
    """A datastore that follows a file."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "endpoints.yaml"
        self._datastore = Datastore(clock=asyncio.get_running_loop().time)

    @contextlib.asynccontextmanager
    async def following(self, *entries: Mapping[str, Any]) -> AsyncIterator[None]:
        """Follow the file, which has these entries at first."""
        self._write(entries)
        task = asyncio.create_task(self._follow())
        await asyncio.sleep(1)
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def rewrite(self, *entries: Mapping[str, Any]) -> None:
        """Replace the file, and wait until that must have been seen."""
        self._write(entries)
        await asyncio.sleep(5)

    @property
    def endpoints(self) -> Mapping[str, str]:
        """Where each endpoint is, by its name."""
        return {one.id.name: one.destination for one in self._datastore.endpoints()}

    def _write(self, entries: Sequence[Mapping[str, Any]]) -> None:
        self._path.write_text(json.dumps({"endpoints": entries}))

    async def _follow(self) -> None:
        discovery = FileDiscovery(path=str(self._path), context=PluginContext("discovery"))
        async for event in discovery.discover():
            self._datastore.apply(event)


def entry(name: str, destination: str) -> dict[str, Any]:
    address, _, port = destination.rpartition(":")
    return {"name": name, "address": address, "port": int(port)}


async def test_each_port_is_an_endpoint_of_its_own(tmp_path: Path) -> None:
    wanted = CASES["mp-001-one-endpoint-per-port"]["then"]["endpoints"]
    pool = FilePool(tmp_path)

    async with pool.following(*[entry(one["name"], one["address"]) for one in wanted]):
        assert pool.endpoints == {one["name"]: one["address"] for one in wanted}


async def test_names_stay_as_the_file_gives_them(tmp_path: Path) -> None:
    data = CASES["mp-006-active-ports-keep-rank-numbers"]
    names = data["then"]["endpoints"]
    given = data["given"]
    ports = [str(port) for port in given["pool_target_ports"]]
    active = {
        f"pod1-rank-{ports.index(port)}": f"10.0.0.1:{port}"
        for port in given["pod1_active_ports"].split(",")
    }
    pool = FilePool(tmp_path)

    async with pool.following(*[entry(name, active[name]) for name in names]):
        assert pool.endpoints == active


async def test_ports_that_leave_the_file_leave_the_pool(tmp_path: Path) -> None:
    data = CASES["mp-007-active-ports-update"]
    ports = data["given"]["pool_target_ports"]
    ranks = [entry(f"pod1-rank-{at}", f"10.0.0.1:{port}") for at, port in enumerate(ports)]
    pool = FilePool(tmp_path)

    async with pool.following(*ranks):
        counts = [len(pool.endpoints)]
        for left in data["then"]["table_endpoints"]:
            await pool.rewrite(*ranks[:left])
            counts.append(len(pool.endpoints))

    assert counts == [len(ports), *data["then"]["table_endpoints"]]


async def test_what_a_file_says_of_an_endpoint_is_taken_at_once(tmp_path: Path) -> None:
    data = CASES["mp-009-pod-eligibility"]
    wanted = dict(zip(data["when"]["table"], data["then"]["table"], strict=True))
    first, moved = entry("a", "10.0.0.1:8000"), entry("a", "10.0.0.9:8000")
    other = entry("b", "10.0.0.2:8000")
    pool = FilePool(tmp_path)
    found = {}

    async with pool.following(other):
        await pool.rewrite(first, other)
        found["ready pod matching the selector"] = {True: "added"}.get("a" in pool.endpoints)
        await pool.rewrite(moved, other)
        found["its IP changes"] = {"10.0.0.9:8000": "new IP used"}.get(pool.endpoints["a"])
        before = pool.endpoints
        await pool.rewrite(other, moved)
        found["unknown pod deleted"] = {True: "no change"}.get(before == pool.endpoints)
        await pool.rewrite(other)
        found["deletion timestamp set"] = {False: "removed at once"}.get("a" in pool.endpoints)

    assert found == {row: wanted[row] for row in found}


# Metrics of each port


@contextlib.asynccontextmanager
async def model_server(page: str) -> AsyncIterator[int]:
    """Serve a metrics page; yields the port."""

    async def answer(request: web.Request) -> web.Response:
        return web.Response(text=page)

    app = web.Application()
    app.router.add_get("/metrics", answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.01)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


class Uncounted:
    """Counts no scrapes."""

    def scraped(self, endpoint: Endpoint, seconds: float, update: EndpointUpdate) -> None:
        """Nothing to do."""

    def failed(self, endpoint: Endpoint, reason: str) -> None:
        """Nothing to do."""


@pytest.mark.looptime(False)  # noqa: FBT003 - real sockets need real time
async def test_each_port_has_metrics_of_its_own() -> None:
    urls = CASES["mp-002-metrics-per-rank"]["then"]["urls"]
    assert all(url.endswith("/metrics") for url in urls)
    datastore = Datastore(clock=asyncio.get_running_loop().time)
    source = MetricsDataSource()
    collector = Collector(
        datastore, source, ModelServerMetricsExtractor(), Uncounted(), interval=0.1
    )
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(source.aclose)
        for rank in range(len(urls)):
            page = f"vllm:num_requests_waiting {rank + 3}\nvllm:kv_cache_usage_perc 0.{rank + 1}\n"
            port = await stack.enter_async_context(model_server(page))
            name = EndpointId("default", f"pod1-rank-{rank}")
            datastore.apply(EndpointUpserted(name, "127.0.0.1", port))
        datastore.apply(Synced())
        task = asyncio.create_task(collector.run())
        await collector.first_round.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    found = [(one.metrics.waiting, one.metrics.kv_usage) for one in datastore.endpoints()]
    assert found == [(rank + 3, (rank + 1) / 10) for rank in range(len(urls))]
