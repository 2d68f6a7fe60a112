"""A simulated model server on a real socket, and what a real one answered."""

import asyncio
import dataclasses
import io
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp

from epp.simulator.engine import EngineOptions
from epp.simulator.server import Simulator, SimulatorOptions, serve

CAPTURES = Path(__file__).parents[1] / "unit" / "simulator" / "captures"
OPTIONS = SimulatorOptions(
    model="tiny-llama",
    lora_modules=("a=/srv/lora/a", "b=/srv/lora/b"),
    engine=EngineOptions(max_model_len=2048),
    prompt_tokens_details=True,
    time_scale=0,
)
SLOW = SimulatorOptions(model="tiny-llama", time_scale=1000)
"""So slow that no token comes within a test, which ends in milliseconds all the same."""

COMPLETIONS, CHAT, RESPONSES = "/v1/completions", "/v1/chat/completions", "/v1/responses"
TINY = {"model": "tiny-llama", "prompt": "x", "max_tokens": 1}
HELLO = [{"role": "user", "content": "hello"}]


class Answer(NamedTuple):
    status: int
    headers: Any
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def options(**changes: Any) -> SimulatorOptions:
    """The usual options, with changes."""
    return dataclasses.replace(OPTIONS, **changes)


@asynccontextmanager
async def client(
    served: SimulatorOptions = OPTIONS,
) -> AsyncIterator[tuple[Simulator, Callable[..., Any]]]:
    """Serve, and give a function that asks: path, body and headers in, the whole answer out."""
    async with serve(served) as simulator, aiohttp.ClientSession(simulator.url) as session:

        async def ask(path: str, body: Any = None, method: str = "", **headers: str) -> Answer:
            method = method or ("GET" if body is None else "POST")
            data = (
                body if isinstance(body, bytes | io.BytesIO | None) else json.dumps(body).encode()
            )
            headers = {"content-type": "application/json"} | headers
            async with session.request(method, path, data=data, headers=headers) as response:
                return Answer(response.status, response.headers, await response.read())

        yield simulator, ask


async def ask_once(
    path: str, body: Any = None, *, served: SimulatorOptions = OPTIONS, **more: Any
) -> Answer:
    """Serve for one question."""
    async with client(served) as (_, ask):
        return await ask(path, body, **more)


def capture(name: str) -> Answer:
    """Read what the real server answered."""
    head, _, body = (CAPTURES / f"{name}.http").read_bytes().partition(b"\n\n")
    lines = [line.partition(": ") for line in head.decode().splitlines()[1:]]
    return Answer(int(head.split()[1]), {name: value for name, _, value in lines}, body.strip())


def events(body: bytes) -> list[Any]:
    """Return the events of a stream: what is in their JSON, and the last as it is."""
    chunks = body.strip().split(b"\n\n")
    data = [chunk.partition(b"data: ")[2] for chunk in chunks]
    return [json.loads(one) for one in data[:-1]] + data[-1:]


def shape(value: Any) -> Any:
    """Return the names, their order and the types in a document, whatever it says."""
    if isinstance(value, dict):
        return [(name, shape(one)) for name, one in value.items()]
    if isinstance(value, list):
        return [shape(one) for one in value]
    return type(value).__name__


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what the other end of a socket brings about; the test's own time limit applies."""
    while not condition():  # noqa: ASYNC110  # it shows in the engine, which has no event for it
        await asyncio.sleep(0)
