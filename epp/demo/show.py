"""
The show: start everything, send the load, show where requests go and why, stop everything.

On a terminal it draws a live table, elsewhere it writes lines. It ends by itself with `once` or
after `seconds`, else with Ctrl-C, and sums up what was seen. It exits with 1 where a process died
or a request failed, and says which.
"""

import asyncio
import contextlib
import importlib.util
import itertools
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import aiohttp

from epp.demo import load, processes, stack
from epp.demo.ledger import Ledger, View, summarize
from epp.demo.processes import ProcessFailed
from epp.demo.stack import Stack
from epp.demo.watch import EndpointState, Watch

if TYPE_CHECKING:  # rich comes with the extra `demo` alone
    from epp.demo.screen import Screen

ONCE_REQUESTS = 200
ONCE_SECONDS = 10.0
ONCE_PAUSE_SECONDS = 0.4
PAUSE_SECONDS = 1.5
"""How long a user waits between requests where somebody watches: the eye is to follow."""

LOOK_SECONDS = 0.4
"""How often the picker's pages are read: its ring of decisions must not run over meanwhile."""
LOOK_TIMEOUT_SECONDS = 5.0

_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


async def run(*, once: bool, seconds: float | None, seed: int) -> None:
    """Run the demo; raises SystemExit with what went wrong, if anything did."""
    if missing := missing_piece():
        message = f"epp demo: {missing}; pip install 'endpoint-picker[demo]' brings it"
        raise SystemExit(message)
    from epp.demo.screen import Screen

    requests = load.plan(seed, PAUSE_SECONDS)
    if once:
        requests = itertools.islice(load.plan(seed, ONCE_PAUSE_SECONDS), ONCE_REQUESTS)
        seconds = ONCE_SECONDS if seconds is None else seconds
    show = _Show(Screen.on(sys.stdout), requests, seconds)
    await show.run()
    if show.failure:
        message = f"epp demo: {show.failure}"
        raise SystemExit(message)


def missing_piece(
    find_module: Callable[[str], object | None] = importlib.util.find_spec,
    find_command: Callable[[str], str | None] = shutil.which,
) -> str:
    """Say what the demo needs and is not installed; "" where all is there."""
    if find_module("rich") is None:
        return "there is no rich here to draw tables with"
    if find_command(processes.command("envoy")) is None:
        return "there is no Envoy here"
    return ""


class _Show:
    """One run of the demo; `failure` says afterwards what went wrong, "" where nothing did."""

    def __init__(
        self, screen: "Screen", requests: Iterator[load.Planned], seconds: float | None
    ) -> None:
        self._screen = screen
        self._requests = requests
        self._seconds = seconds
        self._ledger = Ledger(stack.ENDPOINTS)
        self._elapsed = 0.0
        self.failure = ""

    async def run(self) -> None:
        """Start, show, stop, sum up."""
        screen, ledger = self._screen, self._ledger
        with tempfile.TemporaryDirectory(prefix="epp-demo-") as folder:
            try:
                with _until_signalled():
                    async with stack.running(Path(folder), screen.ready) as running:
                        await self._load(running)
            except* ProcessFailed as group:
                self.failure = str(_first(group))
        if ledger.sent:
            screen.summary(summarize(ledger, self._elapsed))
        screen.say("everything is stopped")

    async def _load(self, running: Stack) -> None:
        """Send the load and show it, for as long as every process lives."""
        ledger, loop = self._ledger, asyncio.get_running_loop()
        started = loop.time()
        try:
            async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as group:
                watch = Watch(session, running.picker_url)
                background = [
                    group.create_task(child.watch(), name=f"watch {child.name}")
                    for child in running.children
                ]
                background.append(
                    group.create_task(self._draw(watch, running.curl, started), name="draw")
                )
                await load.run(
                    session,
                    running.url,
                    self._requests,
                    on_sent=ledger.note_sent,
                    on_end=ledger.note_end,
                    seconds=self._seconds,
                )
                for task in background:
                    task.cancel()
                await self._look(watch)
        finally:
            self._elapsed = loop.time() - started
            if ledger.failed:
                self.failure = failure(ledger, running.picker.last_words())

    async def _draw(self, watch: Watch, curl: str, started: float) -> None:
        """Draw what is seen, again and again."""
        loop = asyncio.get_running_loop()
        with self._screen.showing() as draw:
            while True:
                if endpoints := await self._look(watch):
                    draw(View(self._ledger, endpoints, loop.time() - started, curl))
                await asyncio.sleep(LOOK_SECONDS)

    async def _look(self, watch: Watch) -> Sequence[EndpointState]:
        """Note the decisions and return the endpoints; none where the picker does not answer."""
        with contextlib.suppress(aiohttp.ClientError, TimeoutError):
            async with asyncio.timeout(LOOK_TIMEOUT_SECONDS):
                self._ledger.note_decisions(*await watch.decisions())
                return await watch.endpoints()
        return ()


def failure(ledger: Ledger, last_words: str) -> str:
    """Say which requests failed, and what the picker said to it."""
    errors = ", ".join(f"{error} ({count})" for error, count in ledger.errors.most_common())
    return (
        f"{ledger.failed} of {ledger.sent} requests failed: {errors};"
        f" the picker's last words:\n{last_words}"
    )


@contextlib.contextmanager
def _until_signalled() -> Iterator[None]:
    """
    Inside, a signal that asks to stop cancels what is under way; what follows goes on as usual.

    Signals after the first change nothing: the stop is under way.
    """
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    signalled = asyncio.Event()

    def on_signal() -> None:
        if not signalled.is_set():
            signalled.set()
            task.cancel()

    for number in _STOPS:
        loop.add_signal_handler(number, on_signal)
    try:
        yield
    except asyncio.CancelledError:
        if not signalled.is_set() or task.uncancel():
            raise
    finally:
        for number in _STOPS:
            loop.remove_signal_handler(number)


def _first(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
