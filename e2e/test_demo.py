"""
The demo as a user runs it: it shows, it ends, and it leaves nothing behind.
"""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from epp.demo import processes

PROCESSES = 5
"""Three simulators, the picker and Envoy."""


@asynccontextmanager
async def demo(*options: str) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        processes.command("epp"),
        "demo",
        *options,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        await process.wait()


def children(pid: int) -> list[int]:
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in listed]


def alive(pids: list[int]) -> list[int]:
    return [pid for pid in pids if Path(f"/proc/{pid}").exists()]


async def lines_until(process: asyncio.subprocess.Process, text: str) -> list[str]:
    """The output up to the first line with the text, or to the end."""
    assert process.stdout is not None
    lines: list[str] = []
    while line := (await process.stdout.readline()).decode():
        lines.append(line.rstrip())
        if text in line:
            break
    return lines


async def rest(process: asyncio.subprocess.Process) -> str:
    output, _ = await process.communicate()
    return output.decode()


async def test_a_bounded_demo_sums_up_and_leaves_no_process() -> None:
    async with demo("--once", "--seconds", "5") as process:
        started = await lines_until(process, "try it yourself: curl")
        pids = children(process.pid)
        output = await rest(process)

    assert process.returncode == 0, output
    assert [line.split()[1] for line in started[:PROCESSES]] == [
        *("sim-1", "sim-2", "sim-3", "picker", "envoy")
    ]
    assert len(pids) == PROCESSES
    assert alive(pids) == []
    assert " 0 failed" in output
    assert "of the prompt tokens of requests with a shared prompt were served" in output
    assert "The adapter sql-lora lived on" in output
    assert output.splitlines()[-1] == "everything is stopped"
    words = [line.split() for line in output.splitlines()]
    total = next(int(line[0]) for line in words if line[1:3] == ["requests", "in"])
    routed = sum(int(line[1]) for line in words if len(line) > 2 and line[2].endswith("%"))
    assert routed == total > 0, "every request is found among the picker's decisions"


async def test_ctrl_c_stops_a_running_demo_in_order() -> None:
    async with demo() as process:
        await lines_until(process, " -> sim-")
        pids = children(process.pid)
        process.send_signal(signal.SIGINT)
        output = await rest(process)

    assert process.returncode == 0, output
    assert len(pids) == PROCESSES
    assert alive(pids) == []
    assert "Traceback" not in output
    assert "latency" in output


async def test_an_impatient_signal_during_the_start_leaves_no_process() -> None:
    async with demo() as process:
        await lines_until(process, "ready: sim-1")
        pids = children(process.pid)
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGINT)
        output = await rest(process)

    assert process.returncode == 0, output
    assert alive(pids) == []
    assert output.splitlines()[-1] == "everything is stopped"


async def test_a_process_that_dies_ends_the_demo_with_its_name() -> None:
    async with demo() as process:
        await lines_until(process, "try it yourself")
        pids = children(process.pid)
        killed = await asyncio.create_subprocess_exec("kill", "-KILL", str(pids[1]))
        await killed.wait()
        output = await rest(process)

    assert process.returncode == 1, output
    assert alive(pids) == []
    assert "epp demo: sim-2 ended (-9); its last words:" in output
