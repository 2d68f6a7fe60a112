"""
The simulator's streams: how many tokens a second it serves to many readers at once, and how late.

`python -m benchmarks.simulator_streams` starts a simulated model server in a process of its own,
opens a thousand streams and lets them run, once for each scale of time: 1 is the pace of the timing
(an A100 with a 7B model), 0 as fast as it goes. Tokens are those that the server's own metrics page
counted within the measured seconds, CPU time is the server's, and lateness is how long after they
were due the engine's steps ended. The readers share the machine and do nothing but read.
"""

import asyncio
import contextlib
import functools
import json
import re
import signal
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import cast

import click
import uvloop

from benchmarks.stand import cpu_seconds
from epp.demo import processes
from epp.simulator.engine import EngineOptions
from epp.simulator.live import Pace
from epp.simulator.server import SimulatorOptions, serve

PROMPT = "Which of the items that were ordered came late, and who is to be told of it? " * 4
MAX_TOKENS = 7_000
"""More than any stream says before its reader leaves."""
OPENING_SECONDS = 60.0
SCALES = (1.0, 0.25, 0.0)

_GENERATED = re.compile(rb"^vllm:generation_tokens_total\{.*\} (\S+)$", re.MULTILINE)
_RUNNING = re.compile(rb"^vllm:num_requests_running\{.*\} (\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Measured:
    """What one run was like."""

    time_scale: float
    tokens: float
    seconds: float
    cpu_seconds: float
    pace: Pace

    @property
    def row(self) -> str:
        """A line of the table."""
        step_ms = self.seconds / max(1, self.pace.steps) * 1e3
        return (
            f"{self.time_scale:>10g} {self.tokens / self.seconds:>10,.0f}"
            f" {self.cpu_seconds / self.tokens * 1e6:>12.1f}"
            f" {self.cpu_seconds / self.seconds:>10.2f} {step_ms:>8.1f}"
            f" {self.pace.late_seconds / max(1, self.pace.steps) * 1e3:>13.2f}"
            f" {self.pace.latest_seconds * 1e3:>14.2f}"
        )


HEAD = (
    f"{'time scale':>10} {'tokens/s':>10} {'CPU us/token':>12} {'CPU cores':>10} {'step ms':>8}"
    f" {'mean late ms':>13} {'worst late ms':>14}"
)


class _Reader(asyncio.Protocol):
    """Asks for a stream and reads it away."""

    def __init__(self, request: bytes) -> None:
        self._request = request

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).write(self._request)

    def data_received(self, data: bytes) -> None:
        pass


async def served(streams: int, time_scale: float) -> None:
    """Serve until SIGTERM, then say how the engine kept time; SIGUSR1 begins that anew."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    options = SimulatorOptions(
        time_scale=time_scale,
        engine=EngineOptions(max_num_seqs=streams, num_gpu_blocks=streams * 512),
    )
    async with serve(options) as simulator:
        [engine] = simulator.engines

        def begin() -> None:
            engine.pace = Pace()

        loop.add_signal_handler(signal.SIGTERM, stop.set)
        loop.add_signal_handler(signal.SIGUSR1, begin)
        click.echo(f"listening on {simulator.url}")
        await stop.wait()
        click.echo(json.dumps(asdict(engine.pace)))


def _request(port: int, path: str, body: bytes = b"") -> bytes:
    method = "POST" if body else "GET"
    return (
        f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-type: application/json\r\n"
        f"connection: close\r\ncontent-length: {len(body)}\r\n\r\n"
    ).encode() + body


async def _count(port: int, pattern: re.Pattern[bytes]) -> float:
    """Return a number from the metrics page."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(_request(port, "/metrics"))
    page = await reader.read()
    writer.close()
    found = pattern.search(page)
    assert found is not None
    return float(found[1])


@contextlib.asynccontextmanager
async def _open_streams(port: int, streams: int) -> AsyncIterator[None]:
    """Have that many streams open, each with a prompt of its own, and all of them running."""
    loop = asyncio.get_running_loop()
    opened: list[asyncio.BaseTransport] = []
    try:
        for number in range(streams):
            body = {"prompt": f"{number} {PROMPT}", "max_tokens": MAX_TOKENS, "stream": True}
            request = _request(port, "/v1/completions", json.dumps(body).encode())
            make = functools.partial(_Reader, request)
            opened.append((await loop.create_connection(make, "127.0.0.1", port))[0])
        async with asyncio.timeout(OPENING_SECONDS):
            while await _count(port, _RUNNING) < streams:  # noqa: ASYNC110  # its page has no event
                await asyncio.sleep(0.1)
        yield
    finally:
        for one in opened:
            one.close()


async def measure(folder: Path, streams: int, time_scale: float, seconds: float) -> Measured:
    """Start a server, let the streams run for so long, and stop it."""
    argv = [sys.executable, "-m", "benchmarks.simulator_streams", "--serve"]
    argv += ["--streams", str(streams), "--time-scale", str(time_scale)]
    async with processes.started(f"simulator-{time_scale}", argv, folder) as child:
        port = await processes.simulator(child)
        async with _open_streams(port, streams):
            child.process.send_signal(signal.SIGUSR1)
            used, tokens = cpu_seconds(child.pid), await _count(port, _GENERATED)
            began = time.perf_counter()
            await asyncio.sleep(seconds)
            tokens = await _count(port, _GENERATED) - tokens
            taken = time.perf_counter() - began
            used = cpu_seconds(child.pid) - used
            await child.stop()
        pace = Pace(**json.loads(child.last_words().splitlines()[-1]))
        return Measured(time_scale, tokens, taken, used, pace)


async def _measure_all(streams: int, scales: Sequence[float], seconds: float) -> None:
    click.echo(f"{streams} streams at once, {seconds:g} seconds each")
    click.echo(HEAD)
    with tempfile.TemporaryDirectory(prefix="simulator-bench-") as name:
        for time_scale in scales:
            click.echo((await measure(Path(name), streams, time_scale, seconds)).row)


@click.command()
@click.option("--streams", type=click.IntRange(1), default=1000, help="How many at once.")
@click.option("--seconds", type=float, default=10.0, help="How long each run is measured.")
@click.option("--time-scale", "scales", type=float, multiple=True, default=SCALES)
@click.option("--serve", "serving", is_flag=True, hidden=True)
def main(streams: int, seconds: float, scales: Sequence[float], serving: bool) -> None:
    """Measure the simulator's streams."""
    if serving:
        uvloop.run(served(streams, scales[0]))
    else:
        uvloop.run(_measure_all(streams, scales, seconds))


if __name__ == "__main__":
    main()
