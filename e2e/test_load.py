"""Many streams at once, and streams that end anywhere: every request is answered or let go."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import aiohttp
import pytest

from stack import MODEL, REFERENCES, Picker, gateway

STREAMS = 1500
CANCELLED = 500

LaunchPicker = Callable[..., contextlib.AbstractAsyncContextManager[Picker]]
LaunchSimulator = Callable[..., contextlib.AbstractAsyncContextManager[int]]


@contextlib.asynccontextmanager
async def pool(
    launch_simulator: LaunchSimulator, launch_picker: LaunchPicker, *options: str
) -> AsyncIterator[tuple[dict[bool, Picker], list[int]]]:
    async with contextlib.AsyncExitStack() as stack:
        ports = [await stack.enter_async_context(launch_simulator(*options)) for _ in range(3)]
        picker = await stack.enter_async_context(launch_picker(ports))
        yield {True: picker}, ports


def body(max_tokens: int) -> dict[str, object]:
    return {"model": MODEL, "prompt": "hello", "max_tokens": max_tokens, "stream": True}


def client() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))


@pytest.mark.parametrize("name", REFERENCES)
async def test_fifteen_hundred_streams_run_at_once(
    name: str,
    launch_simulator: LaunchSimulator,
    launch_picker: LaunchPicker,
    folder: Path,
) -> None:
    # Steps of three seconds keep every stream open until the last has begun.
    options = ["--max-num-seqs", "600", "--base-ms", "3000", "--token-us", "0", "--seq-ms", "0"]

    async with (
        pool(launch_simulator, launch_picker, *options) as (pickers, ports),
        gateway(name, pickers, ports, folder) as (running, picker),
        client() as session,
    ):

        async def stream() -> tuple[int, bytes]:
            async with session.post(f"{running.url}/v1/completions", json=body(3)) as response:
                return response.status, await response.read()

        tasks = [asyncio.create_task(stream()) for _ in range(STREAMS)]
        most = 0.0
        while not all(task.done() for task in tasks):
            most = max(most, await picker.metric("epp_endpoint_in_flight"))
            await asyncio.sleep(0.2)
        answers = [task.result() for task in tasks]
        await picker.idle()

    assert {status for status, _ in answers} == {200}
    assert all(text.rstrip().endswith(b"data: [DONE]") for _, text in answers)
    assert most == STREAMS


@pytest.mark.parametrize("name", REFERENCES)
async def test_requests_cancelled_anywhere_leave_nothing_behind(
    name: str,
    launch_simulator: LaunchSimulator,
    launch_picker: LaunchPicker,
    folder: Path,
) -> None:
    rng = random.Random(5)

    async with (
        pool(launch_simulator, launch_picker, "--time-scale", "0.5") as (pickers, ports),
        gateway(name, pickers, ports, folder) as (running, picker),
        client() as session,
    ):

        async def abandon(seconds: float) -> None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    post = session.post(f"{running.url}/v1/completions", json=body(100))
                    async with post as response:
                        await response.read()

        batches = [[rng.uniform(0, 0.6) for _ in range(50)] for _ in range(CANCELLED // 50)]
        for batch in batches:
            await asyncio.gather(*[abandon(seconds) for seconds in batch])
        await picker.idle()
        running_now = await picker.metric("epp_requests_running")
        open_now = await picker.metric("epp_streams_open")
        log = picker.child.text()

    assert (running_now, open_now) == (0, 0)
    assert '"level":"error"' not in log
