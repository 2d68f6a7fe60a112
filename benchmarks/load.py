"""
The load: `wrk` where it is installed, and a client of our own that costs little more.

Both are closed loops over kept connections. Our own counts only requests that came to their end,
which long streams need, and knows how long each took; `wrk` cuts what is open when its time is
over, which is nothing among thousands of short requests.
"""

import asyncio
import contextlib
import itertools
import random
import re
import shutil
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import msgspec

from benchmarks.workloads import PATH
from epp.demo import processes

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_END_OF_HEAD = b"\r\n\r\n"
_END_OF_CHUNKS = b"\r\n0\r\n\r\n"

PACED_CONNECTIONS = 64
PATIENCE_SECONDS = 20.0
"""Beyond the time of a load, for its last answers."""


class LoadFailed(Exception):
    """Requests that were not answered with a 200."""


@dataclass(frozen=True, slots=True)
class Load:
    """
    What a load did: how many requests were answered, over how many seconds.

    `latencies` are the seconds to the first byte of each answer, where they are known.
    """

    requests: int
    seconds: float
    latencies: Sequence[float] = ()


class Answer:
    """Reads one response: where it ends."""

    def __init__(self) -> None:
        self._data = b""
        self._left: int | None = None
        self.status = b""

    def feed(self, data: bytes) -> bool:
        """Take the next piece; return whether the response is whole."""
        if self._left is not None:
            self._left -= len(data)
            return self._left <= 0
        self._data = data = self._data + data
        if not self.status:
            head = data.find(_END_OF_HEAD)
            if head < 0:
                return False
            self.status = data[9:12]
            declared = _LENGTH.search(data, 0, head)
            if declared is not None:
                self._left = int(declared[1]) - (len(data) - head - len(_END_OF_HEAD))
                return self._left <= 0
        # A chunked body: only its last bytes can be its end.
        self._data = data[-len(_END_OF_CHUNKS) :]
        return data.endswith(_END_OF_CHUNKS)


@dataclass(slots=True)
class _Run:
    """What the connections of one load share."""

    requests: Iterator[bytes]
    deadline: float
    open: int
    done: asyncio.Future[None]
    latencies: list[float] = field(default_factory=list)

    def fail(self, message: str) -> None:
        """End the load with an error."""
        if not self.done.done():
            self.done.set_exception(LoadFailed(message))

    def answered(self, client: "_Client", now: float) -> None:
        """Send the next request at once, while the time is not over."""
        if now < self.deadline:
            client.send(next(self.requests), now)
        else:
            client.close()
            self.closed()

    def closed(self) -> None:
        """Note that a connection has sent its last request."""
        self.open -= 1
        if not self.open and not self.done.done():
            self.done.set_result(None)


@dataclass(slots=True)
class _PacedRun(_Run):
    """
    Requests that come when they come, whether or not others are answered.

    Where no connection is free a request waits, and its waiting counts.
    """

    free: list["_Client"] = field(default_factory=list)
    due: deque[float] = field(default_factory=deque)

    def arrive(self, now: float) -> None:
        """Send a request, or have it wait for a connection."""
        if self.free:
            self.free.pop().send(next(self.requests), now)
        else:
            self.due.append(now)

    def answered(self, client: "_Client", now: float) -> None:
        """Send what waits, or let the connection rest."""
        if self.due:
            client.send(next(self.requests), self.due.popleft())
        elif now < self.deadline:
            self.free.append(client)
        else:
            client.close()
            self.closed()


class _Client(asyncio.Protocol):
    """One connection: a request, its answer, the next, until the time is over."""

    def __init__(self, run: _Run) -> None:
        self._run = run
        self._answer = Answer()
        self._sent = 0.0
        self._waits = True
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._run.answered(self, time.perf_counter())

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        if self._waits:
            self._waits = False
            self._run.latencies.append(now - self._sent)
        if not self._answer.feed(data):
            return
        if self._answer.status != b"200":
            self._run.fail(f"a request was answered with {self._answer.status.decode()}")
            return
        self._run.answered(self, now)

    def close(self) -> None:
        """Send no more."""
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.close()

    def connection_lost(self, _: Exception | None) -> None:
        if self._transport is not None:
            self._run.fail("a connection was closed on us")

    def send(self, request: bytes, since: float) -> None:
        """Send a request; what it waits for its answer is counted from `since`."""
        assert self._transport is not None
        self._answer = Answer()
        self._waits = True
        self._sent = since
        self._transport.write(request)


async def own(port: int, requests: Sequence[bytes], *, connections: int, seconds: float) -> Load:
    """
    Send requests for so long, and wait for the answers to the last ones.

    Raises LoadFailed where one is not a 200.
    """
    loop = asyncio.get_running_loop()
    began = time.perf_counter()
    run = _Run(itertools.cycle(requests), began + seconds, connections, loop.create_future())
    opened: list[asyncio.BaseTransport] = []
    try:
        async with asyncio.timeout(seconds + PATIENCE_SECONDS):
            for _ in range(connections):
                made, _protocol = await loop.create_connection(
                    lambda: _Client(run), "127.0.0.1", port
                )
                opened.append(made)
            await run.done
    except (OSError, TimeoutError) as error:
        raise LoadFailed(f"the load could not be sent: {type(error).__name__}") from error
    finally:
        for one in opened:
            one.close()
    return Load(len(run.latencies), time.perf_counter() - began, run.latencies)


async def paced(port: int, requests: Sequence[bytes], *, per_second: float, seconds: float) -> Load:
    """
    Send requests at random times, so many a second on average, however long the answers take.

    Raises LoadFailed where one is not a 200.
    """
    loop = asyncio.get_running_loop()
    began = time.perf_counter()
    connections = PACED_CONNECTIONS
    run = _PacedRun(itertools.cycle(requests), began + seconds, connections, loop.create_future())
    gaps = random.Random(1)
    try:
        async with asyncio.timeout(seconds + PATIENCE_SECONDS):
            for _ in range(connections):
                await loop.create_connection(lambda: _Client(run), "127.0.0.1", port)
            following = time.perf_counter()
            while following < run.deadline:
                following += gaps.expovariate(per_second)
                await asyncio.sleep(following - time.perf_counter())
                run.arrive(time.perf_counter())
            for client in run.free:
                run.answered(client, run.deadline)
            await run.done
    except (OSError, TimeoutError) as error:
        raise LoadFailed(f"the load could not be sent: {type(error).__name__}") from error
    return Load(len(run.latencies), time.perf_counter() - began, run.latencies)


def has_wrk() -> bool:
    """Say whether `wrk` is installed."""
    return shutil.which("wrk") is not None


async def wrk(
    port: int, bodies: Sequence[bytes], folder: Path, *, connections: int, seconds: int
) -> Load:
    """
    Let `wrk` send the bodies for so long.

    Raises LoadFailed where an answer is not a 200.
    """
    script = folder / "wrk.lua"
    await asyncio.to_thread(script.write_text, lua_script(bodies))
    argv = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "-s", str(script)]
    argv.append(f"http://127.0.0.1:{port}{PATH}")
    async with processes.started("wrk", argv, folder) as child:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds + PATIENCE_SECONDS):
                await child.process.wait()
        return wrk_load(child.text())


def lua_script(bodies: Sequence[bytes]) -> str:
    """Return the script that sends each body in turn, and ends with a line of JSON."""
    made = "\n".join(
        f'requests[{at}] = wrk.format(nil, nil, nil, "{_lua(body)}")'
        for at, body in enumerate(bodies, 1)
    )
    return f"""\
wrk.method = "POST"
wrk.headers["content-type"] = "application/json"
local requests = {{}}
local at = 0
function init(args)
{made}
end
function request()
  at = at % #requests + 1
  return requests[at]
end
function done(summary, latency, all)
  local e = summary.errors
  local failed = e.connect + e.read + e.write + e.status + e.timeout
  io.write(string.format('\\n{{"requests":%d,"microseconds":%d,"failed":%d}}\\n',
    summary.requests, summary.duration, failed))
end
"""


def _lua(body: bytes) -> str:
    """The inside of a Lua string literal."""
    return "".join(
        chr(byte) if 32 <= byte < 127 and byte not in b'"\\' else f"\\{byte:03d}" for byte in body
    )


class _Summary(msgspec.Struct):
    requests: int
    microseconds: int
    failed: int


def wrk_load(output: str) -> Load:
    """Return what `wrk` says it did; raise LoadFailed where some failed, or it says nothing."""
    last = output.strip().rpartition("\n")[2]
    try:
        summary = msgspec.json.decode(last, type=_Summary)
    except msgspec.DecodeError as error:
        raise LoadFailed(f"wrk ended without its summary: {last!r}") from error
    if summary.failed:
        raise LoadFailed(f"{summary.failed} of {summary.requests} requests failed")
    return Load(summary.requests, summary.microseconds / 1e6)
