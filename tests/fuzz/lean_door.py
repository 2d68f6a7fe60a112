"""
Fuzzes the lean door: mutated connections into real services, and nothing may give way.

`make fuzz ARGS="--seconds 3600"`. A case is one connection, made of its seed and its number alone,
fed in pieces while virtual time goes on; `--case 123` repeats one. After each:

- no exception escaped or was contained and logged: what a peer does is its own violation;
- `work` came to an end, and no longer ran than its frames explain;
- what it said is whole frames, and not much more than what was said to it;
- nothing is left of it: calls, tasks, and the gauges of streams and requests.

At the end, the process must not have grown by more than `MOST_GROWTH_BYTES` since a tenth of its
time was over.
"""

import argparse
import asyncio
import gc
import io
import os
import resource
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from random import Random
from types import FrameType

from epp.extproc.h2 import frames
from epp.extproc.h2.connection import Connection
from epp.extproc.h2.frames import Violation
from epp.extproc.h2.limits import Limits
from epp.extproc.h2.services import Services
from epp.observability import logs
from fuzz import conversations
from fuzz.conversations import Composer
from fuzz.mutations import Mutator
from support import plugins
from support.core import Core

MOST_GROWTH_BYTES = 32 << 20
HANG_SECONDS = 20
MOST_OUTPUT = 100
"""How many bytes may answer one byte, beside what a single request may be answered with."""

WAITING_CONFIG = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins: [{type: queue-scorer}, {type: slow-producer, parameters: {seconds: 0.5}}]
"""
LIMITS = [
    Limits(),
    Limits(slice_seconds=0.0, max_streams=2, max_message_bytes=50_000),
    Limits(stream_window_bytes=65_535, connection_window_bytes=65_535, max_queued_bytes=1_000),
    Limits(settings_rate=3, ping_rate=3, reset_rate=3, idle_frame_rate=30, max_continuations=3),
]


class Hung(BaseException):
    """A case that does not end; no boundary is to contain it."""


class Failure(Exception):
    """What a case brought to light."""


class Loop(asyncio.SelectorEventLoop):
    """A loop in virtual time, which stands still unless it is told to go on."""

    now = 0.0

    def time(self) -> float:
        """The time of now."""
        return self.now


class Picker:
    """A picker without its ports, and what must be as it was after each connection."""

    def __init__(self, config: Path | None) -> None:
        pods = [{"name": "a"}, {"name": "b", "q": 3}, {"name": "c", "ip": "10.0.0.9"}]
        self.core = Core(pods, config=config, registry=plugins.registry())
        app = self.core.app
        self.services = Services(app.director, app.metrics, app.health, max_body_bytes=60_000)

    def left(self) -> list[str]:
        """Name what a connection left behind."""
        gauges = {
            "in flight": self.core.in_flight,
            "streams open": self._streams_open(),
            "busy": self.services.busy._count,
            "watchers": len(self.core.app.health._watchers),
        }
        return [f"{name}: {value}" for name, value in gauges.items() if value]

    def _streams_open(self) -> float:
        # Of this one series alone: to collect all of them takes longer than a case.
        only = self.core.app.metrics.registry.restricted_registry(["epp_streams_open"])
        return sum(one.value for family in only.collect() for one in family.samples)

    def contained(self) -> float:
        """Failures that were contained, of plugins too, and requests that still run."""
        return self.core.total("epp_plugin_errors_total") + self.core.total("epp_requests_running")


class Case:
    """One connection from its beginning to its end."""

    def __init__(self, picker: Picker, data: bytes, rng: Random, loop: Loop) -> None:
        self._picker = picker
        self._rng = rng
        self._loop = loop
        self._data = data
        self._ticks = 0
        self.violations: Counter[str] = Counter()
        self._output = 0
        self._unread = b""
        self._connection = Connection(
            picker.services.accept,
            limits=rng.choice(LIMITS),
            clock=self._clock,
            violated=self._violated,
            flush=self._flush,
        )

    def _clock(self) -> float:
        self._ticks += 1
        return self._loop.now + self._ticks * 0.001

    def _violated(self, violation: Violation) -> None:
        self.violations[violation.code.name] += 1

    def _flush(self) -> None:
        said = self._connection.take_output()
        self._output += len(said)
        self._unread += said
        position = 0
        while len(self._unread) - position >= frames.HEADER_BYTES:
            head, *_ = frames.unpack_header(self._unread, position)
            length, kind = divmod(head, 256)
            if kind > frames.CONTINUATION or len(self._unread) - position < length:
                raise Failure(f"said what is no frame: {self._unread[position:][:40].hex()}")
            position += frames.HEADER_BYTES + length
        self._unread = self._unread[position:]
        if self._unread:
            raise Failure(f"said half a frame: {self._unread[:40].hex()}")

    async def run(self) -> None:
        """Feed it all, end it, and raise Failure where anything is not as it must be."""
        rest = self._data
        while rest and not self._connection.closing:
            size = self._rng.choice([1, 9, 100, 5_000, len(rest)])
            self._connection.receive(rest[:size])
            rest = rest[size:]
            self._work()
            if self._rng.random() < 0.1:
                await self._meanwhile()
        for _ in range(self._rng.randrange(3)):
            await self._meanwhile()
        self._end()
        if self._output > 200_000 + MOST_OUTPUT * len(self._data):
            raise Failure(f"said {self._output} bytes to {len(self._data)}")
        await self._nothing_is_left()

    def _work(self) -> None:
        most = len(self._data) // frames.HEADER_BYTES + 2
        turns = 1
        while self._connection.work():
            turns += 1
            if turns > most:
                raise Failure("works for ever")
            self._flush()
        self._flush()

    async def _meanwhile(self) -> None:
        """Let something happen that has its own time."""
        what = self._rng.random()
        if what < 0.5:
            self._loop.now += self._rng.choice([0.1, 0.2, 0.6])
        elif what < 0.6:
            self._loop.now += self._rng.choice([5.0, 40.0])
            self._connection.look()
        elif what < 0.65:
            self._connection.drain()
        elif what < 0.7:
            self._connection.refuse_new()
        else:
            self._picker.core.app.health.set_ready(ready=what < 0.85)
        for _ in range(3):
            await asyncio.sleep(0)
        self._flush()

    def _end(self) -> None:
        if self._rng.random() < 0.3:
            self._connection.shut_down()
            self._flush()
        self._connection.lost()
        self._connection.lost()

    async def _nothing_is_left(self) -> None:
        for _ in range(5):
            await asyncio.sleep(0)
        connection = self._connection
        left = self._picker.left()
        outbox = connection.outbox
        held = {"calls": connection.calls, "blocked": outbox.blocked, "thirsty": outbox.thirsty}
        left += [f"{name}: {len(calls)}" for name, calls in held.items() if calls]
        left += [one.get_name() for one in asyncio.all_tasks() if one is not asyncio.current_task()]
        if left:
            raise Failure(f"left behind: {', '.join(left)}")


class Run:
    """Cases one after the other, until the time is over."""

    def __init__(self, seed: int, seconds: float, folder: Path) -> None:
        config = folder / "waiting.yaml"
        config.write_text(WAITING_CONFIG)
        self._pickers = [Picker(None), Picker(None), Picker(config)]
        self._recorded = conversations.recorded()
        self._seed = seed
        self._seconds = seconds
        self._log = io.BytesIO()
        logs.configure(verbosity=2, stream=self._log)
        self.violations: Counter[str] = Counter()
        self.done = 0

    def data_of(self, number: int) -> tuple[bytes, Random]:
        """Return the bytes of a case, and the chance that goes with it."""
        rng = Random(f"{self._seed}/{number}")
        made = Composer(rng).connection()
        if rng.random() < 0.3:
            made = rng.choice(self._recorded)
        return Mutator(rng, [*self._recorded, made]).case(made), rng

    async def one(self, number: int) -> None:
        """Run a case; raise whatever it brings to light."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, Loop)
        data, rng = self.data_of(number)
        case = Case(rng.choice(self._pickers), data, rng, loop)
        await case.run()
        self.violations += case.violations
        self.violations["none"] += not case.violations
        self._read_log()
        self.done += 1

    def _read_log(self) -> None:
        written = self._log.getvalue()
        if b'"level":"error"' in written:
            raise Failure(f"logged {written.decode()}")
        if written:
            self._log.seek(0)
            self._log.truncate()

    async def all(self) -> int:
        """Run cases until the time is over; return by how many bytes the process grew."""
        began = reported = time.monotonic()
        early: int | None = None
        while (now := time.monotonic()) - began < self._seconds:
            signal.alarm(HANG_SECONDS)
            await self.one(self.done)
            signal.alarm(0)
            if early is None and now - began > self._seconds / 10:
                early = resident_bytes()
            if now - reported > 10:
                reported = now
                self._check_contained()
                say(f"{self.done:>9} cases, {self.done / (now - began):.0f}/s, {_megabytes()} MB")
        self._check_contained()
        return resident_bytes() - (resident_bytes() if early is None else early)

    def _check_contained(self) -> None:
        if contained := [one.contained() for one in self._pickers if one.contained()]:
            raise Failure(f"contained failures, or requests that never end: {contained}")


def resident_bytes() -> int:
    """Return the resident memory of this process."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def _megabytes() -> int:
    return resident_bytes() >> 20


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _hung(_: int, __: FrameType | None) -> None:
    raise Hung


def main() -> int:
    """Return 1 where a case failed, after saying which."""
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4)))
    parser.add_argument("--case", type=int, help="run this case of the seed alone")
    given = parser.parse_args()
    signal.signal(signal.SIGALRM, _hung)
    say(f"seed {given.seed}")
    with (
        tempfile.TemporaryDirectory() as folder,
        asyncio.Runner(loop_factory=Loop) as runner,
    ):
        run = runner.run(_made(given.seed, given.seconds, Path(folder)))
        number = given.case
        try:
            grown = 0
            if number is None:
                grown = runner.run(run.all())
            else:
                runner.run(run.one(number))
        except (Exception, Hung):
            failed = run.done if number is None else number
            say(f"FAILED: --seed {given.seed} --case {failed}\n{run.data_of(failed)[0].hex()}")
            logs.configure(verbosity=2)
            raise
    say(f"{run.done} cases, seed {given.seed}; grown by {grown / 1e6:.1f} MB")
    say(", ".join(f"{name} {count}" for name, count in run.violations.most_common()))
    return int(grown > MOST_GROWTH_BYTES)


async def _made(seed: int, seconds: float, folder: Path) -> Run:
    return Run(seed, seconds, folder)


if __name__ == "__main__":
    sys.exit(main())
