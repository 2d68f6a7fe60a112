"""
The commands `vllm-sim study …`: studies in virtual time, with tables, JSON and pictures.

What draws tables and pictures is loaded when a study runs, for `vllm-sim serve` needs none of it.
"""

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click
import msgspec

from epp.simulator.study import lora, priority, strict_order
from epp.simulator.study.pool import map_runs

if TYPE_CHECKING:
    from rich.console import RenderableType

_R = TypeVar("_R")

_PICTURES = (".png", ".svg")
_PLAIN_WIDTH = 120
"""How wide tables are where no terminal sets a limit."""


def _picture_path(
    context: click.Context,
    parameter: click.Parameter,
    path: Path | None,
) -> Path | None:
    """Refuse at once what could not be written after the study."""
    if path is None:
        return None
    if path.suffix not in _PICTURES:
        raise click.BadParameter(f"{path} must end in {' or '.join(_PICTURES)}")
    if not path.parent.is_dir():
        raise click.BadParameter(f"there is no folder {path.parent}")
    return path


_processes = click.option(
    "--processes",
    type=click.IntRange(min=1),
    default=os.cpu_count,
    show_default="one for each core",
    help="Processes that share the runs; the figures do not depend on it.",
)
_picture = click.option(
    "--picture",
    type=click.Path(dir_okay=False, writable=True, path_type=Path),
    callback=_picture_path,
    metavar="FILE.png|svg",
    help="File to draw a picture into.",
)
_json = click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")


def _seeds(default: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    return click.option(
        "--seeds",
        type=click.IntRange(min=1),
        default=default,
        help="How many times to run everything, each time with another random load.",
    )


@click.group()
def study() -> None:
    """Study the engine in virtual time: minutes of serving in seconds, and the same every time."""


@study.command("lora")
@_seeds(40)
@_processes
@_picture
@_json
def lora_command(seeds: int, processes: int, picture: Path | None, as_json: bool) -> None:  # noqa: FBT001
    """
    Run a published benchmark of vLLM with eight adapters on four slots again.

    Two rules for a waiting request whose adapter has no slot: it holds up all behind it (`stop`,
    vLLM before pull request 15422), or is passed over (`skip`, since).
    """
    from epp.simulator.study import lora_report

    trials = lora.trials(seeds)
    outcomes = map_runs(
        lora.attempt, trials, processes=processes, track=_progress("lora", len(trials))
    )
    _say(lora_report.report(outcomes), lora_report.as_json(outcomes), as_json=as_json)
    if picture is not None:
        lora_report.draw(outcomes, picture)


@study.command("priority")
@_seeds(3)
@click.option(
    "--seconds",
    type=click.FloatRange(min=1),
    default=priority.SECONDS,
    help="How long requests keep coming, in virtual time.",
)
@click.option(
    "--strict-order/--no-strict-order",
    "with_strict_order",
    default=True,
    help="Whether to measure also what the strict order of admission prevents.",
)
@_processes
@_picture
@_json
def priority_command(
    seeds: int,
    seconds: float,
    with_strict_order: bool,  # noqa: FBT001
    processes: int,
    picture: Path | None,
    as_json: bool,  # noqa: FBT001
) -> None:
    """
    Run interactive requests beside a batch load, under each scheduling policy.

    One engine with few seats and a cache that runs short: who waits, who is sent away, and what is
    computed twice for it.
    """
    from epp.simulator.study import priority_report

    trials = priority.trials(seeds, seconds)
    outcomes = map_runs(
        priority.attempt, trials, processes=processes, track=_progress("priority", len(trials))
    )
    strict = strict_order.trials(seeds) if with_strict_order else []
    absences = map_runs(
        strict_order.attempt,
        strict,
        processes=processes,
        track=_progress("strict order", len(strict)),
    )
    _say(
        priority_report.report(outcomes, absences),
        priority_report.as_json(outcomes, absences),
        as_json=as_json,
    )
    if picture is not None:
        priority_report.draw(outcomes, picture)


def _progress(title: str, total: int) -> Callable[[Iterable[_R]], Iterable[_R]]:
    """Return what shows on a terminal how many runs are done."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)

    def show(outcomes: Iterable[_R]) -> Iterable[_R]:
        return track(
            outcomes,
            title,
            total,
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )

    return show


def _say(table: "RenderableType", figures: Mapping[str, object], *, as_json: bool) -> None:
    from rich.console import Console

    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(figures)))
        return
    width = None if sys.stdout.isatty() else _PLAIN_WIDTH
    Console(highlight=False, width=width).print(table)
