"""
The command `vllm-sim replay`: a scenario in, its trace out.
"""

import os
import sys
from pathlib import Path
from typing import BinaryIO

import click

from epp.simulator import replay


@click.command("replay")
@click.argument("scenario", type=click.File("rb"))
@click.option(
    "--output",
    "-o",
    type=click.Path(dir_okay=False, allow_dash=True),
    default="-",
    help="Where the trace goes; - is stdout.",
)
@click.option(
    "--indent", type=click.IntRange(min=0), default=0, help="Spaces to indent by; 0: one line."
)
def replay_command(scenario: BinaryIO, output: str, indent: int) -> None:
    """
    Print the trace of the JSON file SCENARIO (- is stdin), as JSON.

    A scenario is an object with "requests" and, if wanted, "config" and "full_events". A request
    has id, prompt (a list of tokens), max_tokens and, if wanted, priority (lower first), lora (a
    name), arrive_step, abort_step and cache_salt. "config" may have policy (fcfs or priority),
    max_num_seqs, max_num_batched_tokens, block_size, num_blocks, max_model_len, max_loras,
    enable_prefix_caching, reserve_full_isl, watermark and long_prefill_token_threshold.

    \b
    Example:
      {"config": {"max_num_seqs": 2},
       "requests": [{"id": "a", "prompt": [1, 2, 3], "max_tokens": 4, "arrive_step": 1}]}
    """
    try:
        trace = replay.encode(replay.trace(scenario.read()), indent=indent) + b"\n"
    except (OSError, ValueError) as error:
        raise click.ClickException(f"the scenario cannot be replayed: {error}") from error
    try:
        _write(output, trace)
    except OSError as error:
        raise click.ClickException(
            f"the trace cannot be written to {_named(output)}: {error.strerror}"
        ) from error


def _named(output: str) -> str:
    return "stdout" if output == "-" else output


def _write(output: str, trace: bytes) -> None:
    """Write the trace; OSError where there is no room for it, or nobody who reads."""
    if output != "-":
        Path(output).write_bytes(trace)
        return
    try:
        sys.stdout.buffer.write(trace)
        sys.stdout.buffer.flush()
    except OSError:
        # What is left in the buffer would fail once more when the interpreter ends.
        with Path(os.devnull).open("wb") as nowhere:
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
        raise
