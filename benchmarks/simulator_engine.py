"""
How fast the simulated engine schedules, in virtual time and on one core.

The unit is the request-step: one request given its tokens in one step. Each load is run twice, step
by step and with its stretches of pure decoding advanced at once, which changes nothing but speed.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import click
from rich.console import Console
from rich.table import Table

from epp.simulator.engine import Adapter, Engine, EngineOptions, EngineRequest, StepTiming

TARGET = 100_000


@dataclass(frozen=True)
class Load:
    """Requests that are there at once, and the engine that serves them."""

    name: str
    options: EngineOptions
    count: int
    prompt: int
    reply: int
    adapters: int = 0

    def engine(self, scale: int) -> Engine:
        """Return an engine with a share of the requests in it."""
        engine = Engine(self.options, StepTiming())
        for number in range(max(self.count // scale, 1)):
            adapter = f"adapter-{number % self.adapters}" if self.adapters else None
            engine.add_request(
                EngineRequest(
                    str(number),
                    range(number * 1_000, number * 1_000 + self.prompt),
                    range(self.reply),
                    None if adapter is None else Adapter(adapter),
                    priority=number % 3,
                )
            )
        return engine


LOADS = (
    Load("8 at once", EngineOptions(max_num_seqs=8), 32, 200, 400),
    Load("256 at once", EngineOptions(max_num_batched_tokens=8192), 512, 100, 300),
    Load("256 at once, KV events", EngineOptions(kv_events=True), 512, 100, 300),
    Load("8 adapters for 4 slots", EngineOptions(), 512, 100, 120, adapters=8),
    Load(
        "priorities and a short cache",
        EngineOptions(scheduling_policy="priority", num_gpu_blocks=1200, max_model_len=1024),
        256,
        100,
        300,
    ),
    Load("short replies", EngineOptions(), 4096, 50, 4),
)


def step_by_step(engine: Engine) -> int:
    """Run to the end; return the request-steps that it took."""
    done = 0
    while engine.has_work:
        done += len(engine.step().scheduled)
    return done


def at_once(engine: Engine) -> int:
    """Do the same with stretches of decoding advanced at once."""
    done = 0
    while engine.has_work:
        stretch = engine.fast_forward(0.0, float("inf"))
        if stretch is None:
            done += len(engine.step().scheduled)
        else:
            done += len(stretch.durations) * len(stretch.tokens)
    return done


def rate(load: Load, drive: Callable[[Engine], int], scale: int) -> float:
    """Return the request-steps a second of CPU time."""
    engine = load.engine(scale)
    began = time.process_time()
    done = drive(engine)
    return done / (time.process_time() - began)


def table(loads: Sequence[Load], scale: int) -> Table:
    """Measure, and return what came of it."""
    result = Table(title=f"request-steps a second of CPU time (target {TARGET:,})")
    for name in ("load", "step by step", "stretches at once", "times the target"):
        result.add_column(name, justify="left" if name == "load" else "right")
    for load in loads:
        slow, fast = rate(load, step_by_step, scale), rate(load, at_once, scale)
        result.add_row(load.name, f"{slow:,.0f}", f"{fast:,.0f}", f"{slow / TARGET:.1f}")
    return result


@click.command()
@click.option("--quick", is_flag=True, help="An eighth of the load.")
def main(quick: bool) -> None:
    """Measure how fast the simulated engine schedules in virtual time."""
    Console().print(table(LOADS, 8 if quick else 1))


if __name__ == "__main__":
    main()
