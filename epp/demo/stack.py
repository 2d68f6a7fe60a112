"""
The stack: three simulated model servers, the picker and a real Envoy, on free loopback ports.

Everything is started as a user would start it, one process each, with its output in a file. Leaving
the block stops them in the order of the traffic: Envoy, the picker, the model servers.
"""

import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from epp.demo import envoy, processes
from epp.demo.load import ADAPTERS, BASE_MODEL
from epp.demo.processes import Child

ENDPOINTS = ("sim-1", "sim-2", "sim-3")

TIME_SCALE = 0.5
"""The engines take half the time of real ones: twice their speed."""

# Small engines, so that a dozen users make their queues and caches move.
SIMULATOR_OPTIONS = [
    *("--model", BASE_MODEL, "--max-loras", "2"),
    *(option for adapter in ADAPTERS for option in ("--lora-module", adapter)),
    *("--time-scale", str(TIME_SCALE), "--max-num-seqs", "4"),
    *("--max-model-len", "4096", "--num-gpu-blocks", "1024", "--enable-prompt-tokens-details"),
]


@dataclass(frozen=True, slots=True)
class Stack:
    """What runs, and where it is reached."""

    url: str
    picker_url: str
    picker: Child
    children: Sequence[Child]

    @property
    def curl(self) -> str:
        """A command to send a request by hand."""
        body = f'{{"model":"{ADAPTERS[0]}","prompt":"Which items came late?","max_tokens":16}}'
        return f"curl {self.url}/v1/completions -H 'content-type: application/json' -d '{body}'"


Say = Callable[[str, str], None]
"""Told the name of each process and what it is, once it is ready."""


@contextlib.asynccontextmanager
async def running(folder: Path, say: Say) -> AsyncIterator[Stack]:
    """
    Run everything until the block ends; the folder takes outputs and configurations.

    Raises ProcessFailed where a process does not become ready.
    """
    async with contextlib.AsyncExitStack() as stack:
        simulators = [
            await stack.enter_async_context(processes.started(name, _simulator_argv(), folder))
            for name in ENDPOINTS
        ]
        ports = []
        for child in simulators:
            ports.append(await processes.simulator(child))
            say(
                child.name,
                f"simulated vLLM, at twice its real speed, on http://127.0.0.1:{ports[-1]}",
            )
        picker = await stack.enter_async_context(
            processes.started("picker", _picker_argv(folder, ports), folder)
        )
        picker_ports = await processes.picker(picker)
        picker_url = f"http://127.0.0.1:{picker_ports.metrics}"
        say("picker", f"epp serve; its pages: {picker_url}")
        config = envoy.adapted(
            envoy.reference("full-duplex"),
            picker_port=picker_ports.grpc,
            pool_ports=ports,
            secure=True,
        )
        gateway = await stack.enter_async_context(envoy.running(config, folder))
        say("envoy", f"takes requests on {gateway.url}; its admin page: http://{gateway.admin}")
        yield Stack(gateway.url, picker_url, picker, [*simulators, picker, gateway.child])


def _simulator_argv() -> list[str]:
    return [processes.command("vllm-sim"), "serve", "--port", "0", *SIMULATOR_OPTIONS]


def _picker_argv(folder: Path, ports: Sequence[int]) -> list[str]:
    endpoints = folder / "endpoints.yaml"
    entries = [
        {"name": name, "address": "127.0.0.1", "port": port}
        for name, port in zip(ENDPOINTS, ports, strict=True)
    ]
    endpoints.write_bytes(msgspec.yaml.encode({"endpoints": entries}))
    argv = [processes.command("epp"), "serve", "--endpoints-file", str(endpoints)]
    argv += ["--grpc-port", "0", "--grpc-health-port", "0", "--metrics-port", "0"]
    return [*argv, "--bind-address", "127.0.0.1", "--drain-timeout", "5s"]
