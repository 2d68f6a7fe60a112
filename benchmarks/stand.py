"""
The stand: the processes that a run measures, and what the kernel says they used.

An upstream for ten endpoints, a picker of each transport, the floor, an Envoy before each of them
for each mode, and one that leads straight to the upstream. What a process used is read from the
kernel, and what a picker uses without any request (its scrapes) is measured beforehand, to be taken
off. A further picker, as it is shipped and with three endpoints, is there only to be measured at
rest.
"""

import asyncio
import contextlib
import os
import re
import signal
import sys
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.workloads import REFERENCES
from epp.demo import envoy, processes
from epp.demo.envoy import Envoy
from epp.demo.processes import Child

ENDPOINTS = 10
ENDPOINTS_AT_REST = 3
PAGE = Path(__file__).parents[1] / "tests" / "data" / "vllm" / "metrics_under_load.txt"
"""A real vLLM's page of 62 kB."""

SELDOM_SCRAPING = ("--refresh-metrics-interval", "1s")
"""
For the picker that is measured under load. Streams bring few requests a second, and what it spends
on scrapes at the shipped interval would be half of its CPU time then, and most of the error.
"""

PROFILE_SECONDS = 10.0
"""For a picker to write what was seen of it."""

WARM_UP_SECONDS = 6.0
"""For the picker's first scrapes and imports to be over, and for its pool to be quiet."""


@dataclass(frozen=True, slots=True)
class Rest:
    """What the picker uses without requests: a share of a core, and memory."""

    cores: float
    resident_bytes: int


@dataclass(frozen=True, slots=True)
class Subject:
    """
    A picker under measurement, with the Envoys before it by mode.

    `cores_at_rest` is the share of a core that it uses without requests.
    """

    child: Child
    cores_at_rest: float
    envoys: Mapping[str, Envoy]
    profile: Path | None = None
    """Where it writes its profile, if it is watched."""

    async def samples(self) -> Mapping[str, int]:
        """Return how often each stage was met since this was last asked for."""
        assert self.profile is not None  # asked of a subject that is watched
        os.kill(self.child.pid, signal.SIGUSR2)
        async with asyncio.timeout(PROFILE_SECONDS):
            while not await asyncio.to_thread(self.profile.exists):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        text = await asyncio.to_thread(self.profile.read_bytes)
        await asyncio.to_thread(self.profile.unlink)
        return msgspec.json.decode(text, type=dict[str, int])


@dataclass(frozen=True, slots=True)
class Stand:
    """All that runs."""

    picker: Subject
    grpc: Subject
    """The same picker, through the gRPC library."""
    floor: Subject
    direct: Envoy
    at_rest: Rest
    """What a picker as it is shipped uses without requests."""


def cpu_seconds(pid: int) -> float:
    """Return the CPU time that all threads of a process have used."""
    # The kernel's clock of another process, in nanoseconds: /proc counts in ticks of 10 ms.
    return time.clock_gettime(~pid << 3 | 2)


def without_picker(text: str, port: int) -> str:
    """Return a reference configuration without ext_proc, that leads to one port of loopback."""
    tree = msgspec.yaml.decode(text)
    for listener in tree["static_resources"]["listeners"]:
        for chain in listener["filter_chains"]:
            for one in chain["filters"]:
                filters = one["typed_config"]["http_filters"]
                filters[:] = [f for f in filters if f["name"] != "envoy.filters.http.ext_proc"]
    clusters: list[dict[str, Any]] = tree["static_resources"]["clusters"]
    [routed] = [one for one in clusters if one["type"] == "ORIGINAL_DST"]
    address = {"socket_address": {"address": "127.0.0.1", "port_value": port}}
    fixed = {
        "name": routed["name"],
        "type": "STATIC",
        "connect_timeout": routed["connect_timeout"],
        "circuit_breakers": routed["circuit_breakers"],
        "load_assignment": {
            "cluster_name": routed["name"],
            "endpoints": [{"lb_endpoints": [{"endpoint": {"address": address}}]}],
        },
    }
    tree["static_resources"]["clusters"] = [fixed]
    return msgspec.yaml.encode(tree).decode()


@contextlib.asynccontextmanager
async def standing(
    folder: Path, modes: Iterable[str], *, rest_seconds: float, profile: bool = False
) -> AsyncIterator[Stand]:
    """Start everything, let it come to rest, and stop it on leaving."""
    written = folder / "profile.json" if profile else None
    async with contextlib.AsyncExitStack() as stack:
        argv = [sys.executable, "-m", "benchmarks.upstream", "--page", str(PAGE)]
        argv += ["--endpoints", str(ENDPOINTS)]
        upstream = await stack.enter_async_context(processes.started("upstream", argv, folder))
        ports = await _listening(upstream)
        argv = await _picker_argv(folder, ports)
        children = {
            transport: await stack.enter_async_context(
                processes.started(
                    transport,
                    [*start, *argv, *SELDOM_SCRAPING, "--transport", transport],
                    folder,
                )
            )
            for transport, start in (("lean", _start(written)), ("grpc", _start(None)))
        }
        doors = {name: (await processes.picker(child)).grpc for name, child in children.items()}
        argv_of_floor = [sys.executable, "-m", "benchmarks.floor"]
        argv_of_floor += ["--destination", f"127.0.0.1:{ports[0]}"]
        floor = await stack.enter_async_context(processes.started("floor", argv_of_floor, folder))
        [doors["floor"]] = await _listening(floor)
        envoys: dict[str, dict[str, Envoy]] = {name: {} for name in doors}
        for mode in modes:
            for name, port in doors.items():
                text = _adapted(envoy.reference(REFERENCES[mode]), port)
                running = _envoy(text, folder / f"{name}-{mode}")
                envoys[name][mode] = await stack.enter_async_context(running)
        text = _adapted(without_picker(envoy.reference("lean"), ports[0]), 0)
        direct = await stack.enter_async_context(_envoy(text, folder / "direct"))
        argv = [*_start(None), *await _picker_argv(folder, ports[:ENDPOINTS_AT_REST])]
        async with processes.started("resting", argv, folder) as resting:
            await processes.picker(resting)
            await asyncio.sleep(WARM_UP_SECONDS)
            shipped, lean, grpc = await asyncio.gather(
                *(at_rest(one, rest_seconds) for one in (resting, *children.values()))
            )
        yield Stand(
            Subject(children["lean"], lean.cores, envoys["lean"], written),
            Subject(children["grpc"], grpc.cores, envoys["grpc"]),
            Subject(floor, 0.0, envoys["floor"]),
            direct,
            shipped,
        )


def _adapted(text: str, picker_port: int) -> str:
    return envoy.adapted(text, picker_port=picker_port, pool_ports=(), secure=False)


async def at_rest(child: Child, seconds: float) -> Rest:
    """Watch a process for so long, and return what it used."""
    began, used = time.perf_counter(), cpu_seconds(child.pid)
    await asyncio.sleep(seconds)
    cores = (cpu_seconds(child.pid) - used) / (time.perf_counter() - began)
    return Rest(cores, processes.resident_bytes(child.pid))


@contextlib.asynccontextmanager
async def _envoy(text: str, folder: Path) -> AsyncIterator[Envoy]:
    await asyncio.to_thread(folder.mkdir)
    async with envoy.running(text, folder) as running:
        yield running


def _start(profile: Path | None) -> list[str]:
    """Return how `epp` begins, watched if there is a file for what is seen."""
    if profile is None:
        return [processes.command("epp")]
    return [sys.executable, "-m", "benchmarks.profiled", str(profile)]


async def _picker_argv(folder: Path, ports: Sequence[int]) -> list[str]:
    endpoints = folder / f"{len(ports)}-endpoints.yaml"
    lines = [f"- {{name: s{at}, address: 127.0.0.1, port: {p}}}\n" for at, p in enumerate(ports)]
    await asyncio.to_thread(endpoints.write_text, "endpoints:\n" + "".join(lines))
    argv = ["serve", "--endpoints-file", str(endpoints)]
    argv += ["--grpc-port", "0", "--grpc-health-port", "0", "--metrics-port", "0"]
    return [*argv, "--bind-address", "127.0.0.1", "--secure-serving=false"]


async def _listening(child: Child) -> list[int]:
    """Return the ports that a child of ours says it listens on."""

    def find(text: str) -> list[int] | None:
        match = re.search(r"^listening on ([\d,]+)\n", text, re.MULTILINE)
        return [int(port) for port in match[1].split(",")] if match else None

    ports = await child.wait_for(find)
    assert isinstance(ports, list)
    return ports
