"""
The screen: where the demo is shown; a terminal gets one that moves, anything else plain lines.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from epp.demo import tables
from epp.demo.ledger import Summary, View

PLAIN_WIDTH = 110
PLAIN_SECONDS = 2.0
"""How often a line of progress is written where nothing moves."""


class Screen:
    """Shows the start, the load and the summary, one after the other."""

    def __init__(self, console: Console, *, moving: bool) -> None:
        self._console = console
        self._moving = moving

    @classmethod
    def on(cls, stream: TextIO) -> "Screen":
        """Return the screen that fits what a stream is."""
        moving = stream.isatty()
        console = Console(
            file=stream,
            highlight=False,
            force_terminal=moving,
            width=None if moving else PLAIN_WIDTH,
        )
        return cls(console, moving=moving and not console.is_dumb_terminal)

    def ready(self, name: str, text: str) -> None:
        """Say that a process is ready."""
        mark = "✓" if self._moving else "ready:"
        self._console.print(Text.assemble((f"{mark} {name:<7}", "green"), text), soft_wrap=True)

    def say(self, text: str) -> None:
        """Write one line."""
        self._console.print(Text(text), soft_wrap=True)

    @contextlib.contextmanager
    def showing(self) -> Iterator[Callable[[View], None]]:
        """Show the load: while inside, call what is given with each new view."""
        if not self._moving:
            yield self._lines()
            return
        console = self._console
        console.print()
        with Live(console=console, auto_refresh=False, transient=True) as live:

            def draw(view: View) -> None:
                live.update(tables.frame(view, console.width, console.height), refresh=True)

            yield draw

    def _lines(self) -> Callable[[View], None]:
        written: list[float] = []

        def write(view: View) -> None:
            if not written:
                self.say(f"try it yourself: {view.curl}")
            if written and view.seconds < written[-1] + PLAIN_SECONDS:
                return
            written[:] = [view.seconds]
            self.say(tables.progress_line(view.ledger, view.seconds))
            if view.ledger.recent:
                self.say(
                    f"         {tables.decision_line(view.ledger.recent[0], view.ledger.weights)}"
                )

        return write

    def summary(self, summary: Summary) -> None:
        """Show what was seen."""
        self._console.print(tables.summary_table(summary))
