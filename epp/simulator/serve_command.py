"""
The command `vllm-sim serve`: one simulated model server in a process of its own.
"""

import asyncio
import dataclasses
import signal
from typing import Any

import click
import uvloop

from epp.simulator import idle_options
from epp.simulator.engine import PROFILES, EngineOptions, StepTiming
from epp.simulator.faults import Faults
from epp.simulator.kv_events import KVEventsConfig
from epp.simulator.serve_options import GROUPS
from epp.simulator.server import SimulatorOptions, serve

_TIMING_UNITS = {
    "base_ms": ("base_seconds", 1e-3),
    "token_us": ("token_seconds", 1e-6),
    "seq_ms": ("sequence_seconds", 1e-3),
    "context_token_us": ("context_token_seconds", 1e-6),
    "lora_load_ms": ("lora_load_seconds", 1e-3),
    "lora_fetch_ms": ("lora_fetch_seconds", 1e-3),
    "swap_block_ms": ("swap_block_seconds", 1e-3),
}


class _GroupedCommand(click.Command):
    """A command whose help shows its options in groups, and which has no use for idle ones."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        rest = super().parse_args(ctx, args)
        if not ctx.resilient_parsing:
            idle_options.refuse(ctx)
        return rest

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, options in GROUPS.items():
            with formatter.section(title):
                records = [option.get_help_record(ctx) for option in options]
                formatter.write_dl([record for record in records if record is not None])


def _serve(**given: Any) -> None:
    """
    Run one model server until SIGTERM or SIGINT.

    Prints `listening on http://HOST:PORT` once it is ready.
    """
    try:
        options = options_of(given)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    try:
        died_of = uvloop.run(_until_stopped(options))
    except OSError as error:
        raise click.ClickException(error.strerror or str(error)) from error
    except ValueError as error:
        raise click.ClickException(str(error)) from error
    if died_of:
        raise click.ClickException(f"the engine died: {died_of}")


serve_command = _GroupedCommand(
    "serve",
    callback=_serve,
    help=_serve.__doc__,
    params=[option for options in GROUPS.values() for option in options],
)


def options_of(given: dict[str, Any]) -> SimulatorOptions:
    """Return the options that the command line stands for; ValueError where they are no good."""
    given = dict(given)
    if given["max_cpu_loras"] is None:
        given["max_cpu_loras"] = max(EngineOptions().max_cpu_loras, given["max_loras"])
    timing = _timing(given)
    kv_events = given.pop("kv_events")
    int_hashes = given.pop("kv_events_int_hashes")
    engine = _taken(given, [one.name for one in dataclasses.fields(EngineOptions)])
    return SimulatorOptions(
        engine=EngineOptions(**engine),
        timing=timing,
        faults=Faults(**_taken(given, list(Faults.__struct_fields__))),
        kv_events=kv_events or KVEventsConfig(),
        kv_events_hashes="int" if int_hashes else "bytes",
        **given,
    )


def _timing(given: dict[str, Any]) -> StepTiming:
    """Take the timing out of the options."""
    profile = PROFILES[given.pop("profile")]
    changes = {}
    for name, (field, unit) in _TIMING_UNITS.items():
        value = given.pop(name)
        if value is not None:
            changes[field] = value * unit
    return dataclasses.replace(profile, **changes)


def _taken(given: dict[str, Any], names: list[str]) -> dict[str, Any]:
    return {name: given.pop(name) for name in names if name in given}


async def _until_stopped(options: SimulatorOptions) -> str:
    """Serve until a signal comes or an engine dies; return what it died of, if it did."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with serve(options) as simulator:
        click.echo(f"listening on {simulator.url}")
        ends = [asyncio.create_task(stop.wait()), asyncio.create_task(simulator.dead.wait())]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        for end in ends:
            end.cancel()
        return simulator.cause_of_death
