"""
Child processes on loopback: started, waited for until they say where they listen, stopped by id.

Each writes to a file of its own, which is what to show where one dies early. Leaving the block of
`started` stops the process and waits for its end, whatever happened inside.
"""

import asyncio
import contextlib
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

START_SECONDS = 30.0
STOP_SECONDS = 10.0
_POLL_SECONDS = 0.02


class ProcessFailed(Exception):
    """A child that ended or stayed silent when it should have become ready."""


@dataclass(frozen=True, slots=True)
class Child:
    """A running process and the file that holds its output."""

    name: str
    process: asyncio.subprocess.Process
    output: Path

    @property
    def pid(self) -> int:
        """The process id."""
        return self.process.pid

    def text(self) -> str:
        """What it has written so far."""
        return self.output.read_text(errors="replace")

    async def wait_for(self, find: Callable[[str], object | None]) -> object:
        """Return what `find` makes of the output, once it makes something of it."""
        try:
            async with asyncio.timeout(START_SECONDS):
                while True:
                    found = find(self.text())
                    if found is not None:
                        return found
                    if self.process.returncode is not None:
                        raise self.failed(f"ended ({self.process.returncode})")
                    await asyncio.sleep(_POLL_SECONDS)
        except TimeoutError as error:
            raise self.failed("did not become ready") from error

    async def watch(self) -> None:
        """Raise ProcessFailed when it ends, which it should not do by itself."""
        code = await self.process.wait()
        raise self.failed(f"ended ({code})")

    def failed(self, what: str) -> ProcessFailed:
        """Return the error that says what happened, and what the process wrote last."""
        return ProcessFailed(f"{self.name} {what}; its last words:\n{self.last_words()}")

    def last_words(self) -> str:
        """The last lines it has written."""
        return "\n".join(self.text().splitlines()[-15:])

    async def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send the signal, wait for the end (killing it if it takes too long), return the code."""
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(number)
            try:
                async with asyncio.timeout(STOP_SECONDS):
                    await self.process.wait()
            except TimeoutError:
                self.process.kill()
        return await self.process.wait()


@contextlib.asynccontextmanager
async def started(name: str, argv: Sequence[str], folder: Path) -> AsyncIterator[Child]:
    """Start a process whose output goes to a file in the folder; stop it on leaving."""
    output = folder / f"{name}.log"
    with output.open("wb") as sink:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
            start_new_session=True,  # the terminal's Ctrl-C is for us alone, to stop in order
        )
    child = Child(name, process, output)
    try:
        yield child
    finally:
        stopping = asyncio.create_task(child.stop(), name=f"stop {name}")
        try:
            await asyncio.shield(stopping)
        except asyncio.CancelledError:
            await stopping  # whoever is in a hurry still leaves nothing behind
            raise


def command(name: str) -> str:
    """Return the path of a command installed beside this Python, or its bare name."""
    beside = Path(sys.executable).parent / name
    return str(beside) if beside.exists() else name


async def simulator(child: Child) -> int:
    """Return the port a simulator listens on, once it does."""

    def find(text: str) -> int | None:
        match = re.search(r"listening on http://\S+:(\d+)", text)
        return int(match[1]) if match else None

    port = await child.wait_for(find)
    assert isinstance(port, int)
    return port


@dataclass(frozen=True, slots=True)
class PickerPorts:
    """Where a picker listens."""

    grpc: int
    health: int
    metrics: int


async def picker(child: Child) -> PickerPorts:
    """Return a picker's ports, once it is ready."""
    ports = await child.wait_for(_picker_ports)
    assert isinstance(ports, PickerPorts)
    return ports


def _picker_ports(text: str) -> PickerPorts | None:
    lines = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    serving = next((line for line in lines if line["event"] == "serving"), None)
    if serving is None or not any(line["event"] == "ready" for line in lines):
        return None
    return PickerPorts(serving["grpc_port"], serving["grpc_health_port"], serving["metrics_port"])


def cpu_seconds(pid: int) -> float:
    """Return the CPU time a process has used, user and system, as the kernel accounts it."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    match = re.search(r"VmRSS:\s+(\d+) kB", status)
    assert match is not None  # every living process has it
    return int(match[1]) * 1024
