"""
The command `vllm-sim replay`: a scenario in, its trace out.
"""

from typing import BinaryIO

import click

from epp.simulator import replay


@click.command("replay")
@click.argument("scenario", type=click.File("rb"))
@click.option(
    "--output", "-o", type=click.File("wb"), default="-", help="Where the trace goes; - is stdout."
)
@click.option(
    "--indent", type=click.IntRange(min=0), default=0, help="Spaces to indent by; 0: one line."
)
def replay_command(scenario: BinaryIO, output: BinaryIO, indent: int) -> None:
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
        trace = replay.trace(scenario.read())
    except ValueError as error:
        raise click.ClickException(f"the scenario cannot be replayed: {error}") from error
    output.write(replay.encode(trace, indent=indent) + b"\n")
