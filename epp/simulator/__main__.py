"""
The command `vllm-sim`: a simulated model server for whoever has no GPU at hand.
"""

import asyncio
import dataclasses
import signal
from typing import Any

import click
import uvloop

from epp.simulator.engine import EngineOptions
from epp.simulator.server import SimulatorOptions, serve
from epp.simulator.timing import StepTiming

_ENGINE = EngineOptions()
_TIMING = StepTiming()

_COUNT = click.IntRange(min=1)
_DURATION = click.FloatRange(min=0)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
def main() -> None:
    """
    Serve an OpenAI API like vLLM does, without a model and without a GPU.

    Replies are words without sense, but tokens, batches, cache blocks, waiting queues, adapters,
    metrics and errors behave like those of a real server, and each step of the engine takes as long
    as it would on the accelerator that the timing describes.
    """


@main.command("serve")
@click.option("--host", default="127.0.0.1", help="Address to listen on.")
@click.option("--port", default=8000, help="Port to listen on; 0 takes one that is free.")
@click.option("--model", default="simulated", help="Name of the base model.")
@click.option(
    "--lora-module",
    "lora_modules",
    metavar="NAME",
    multiple=True,
    help="Name of a LoRA adapter, requested by its name as the model; may be given repeatedly.",
)
@click.option(
    "--max-loras",
    type=_COUNT,
    default=_ENGINE.max_loras,
    help="Adapters that one step can compute, and that stay loaded.",
)
@click.option(
    "--max-num-seqs",
    type=_COUNT,
    default=_ENGINE.max_num_seqs,
    help="Requests that can run at once; others wait.",
)
@click.option(
    "--max-num-batched-tokens",
    type=_COUNT,
    default=_ENGINE.max_num_batched_tokens,
    help="Tokens that one step can compute; longer prompts take several.",
)
@click.option(
    "--max-model-len",
    type=_COUNT,
    default=_ENGINE.max_model_len,
    help="Tokens of a prompt and its reply together.",
)
@click.option(
    "--block-size", type=_COUNT, default=_ENGINE.block_size, help="Tokens in a cache block."
)
@click.option(
    "--num-gpu-blocks",
    type=click.IntRange(min=2),
    default=_ENGINE.num_gpu_blocks,
    help="Blocks in the cache; one of them is kept back.",
)
@click.option(
    "--base-ms",
    type=_DURATION,
    default=_TIMING.base_seconds * 1e3,
    help="Milliseconds that any step takes.",
)
@click.option(
    "--token-us",
    type=_DURATION,
    default=_TIMING.token_seconds * 1e6,
    help="Microseconds more for each token in a step.",
)
@click.option(
    "--seq-ms",
    type=_DURATION,
    default=_TIMING.sequence_seconds * 1e3,
    help="Milliseconds more for each request in a step.",
)
@click.option(
    "--lora-load-ms",
    type=_DURATION,
    default=_TIMING.lora_load_seconds * 1e3,
    help="Milliseconds more for each adapter that a step must load.",
)
@click.option(
    "--time-scale",
    type=_DURATION,
    default=1.0,
    help="Real time for simulated time: 0.1 is ten times as fast, 0 does not wait at all.",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, help="Other seeds, other replies.")
def serve_command(**given: Any) -> None:
    """
    Run one model server until SIGTERM or SIGINT.

    Prints `listening on http://HOST:PORT` once it is ready.
    """
    try:
        uvloop.run(_serve(_options(**given)))
    except OSError as error:
        raise click.ClickException(error.strerror or str(error)) from error
    except ValueError as error:
        raise click.ClickException(str(error)) from error


def _options(
    *, base_ms: float, token_us: float, seq_ms: float, lora_load_ms: float, **given: Any
) -> SimulatorOptions:
    names = {one.name for one in dataclasses.fields(EngineOptions)} & given.keys()
    engine = {name: given.pop(name) for name in names}
    return SimulatorOptions(
        engine=EngineOptions(**engine),
        timing=StepTiming(
            base_seconds=base_ms / 1e3,
            token_seconds=token_us / 1e6,
            sequence_seconds=seq_ms / 1e3,
            lora_load_seconds=lora_load_ms / 1e3,
        ),
        **given,
    )


async def _serve(options: SimulatorOptions) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with serve(options) as simulator:
        click.echo(f"listening on {simulator.url}")
        await stop.wait()


if __name__ == "__main__":
    main()
