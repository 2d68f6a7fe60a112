"""
The report of the study `priority`: its tables, what one reads from them, its JSON and its picture.

Every sentence under a table is made from the figures in it: the names as well as the numbers.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from matplotlib.figure import Figure
from rich import box
from rich.console import Group, RenderableType
from rich.table import Column, Table
from rich.text import Text

from epp.simulator.study import priority, strict_order
from epp.simulator.study.priority import ClassName, Outcome, Summary
from epp.simulator.study.strict_order import Absence
from epp.simulator.study.strict_order import Outcome as StrictOutcome

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_Format = Callable[[float], str]


def _seconds(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.1f}"


def _whole(value: float) -> str:
    return f"{value:,.0f}"


_COLUMNS: Mapping[str, tuple[str, _Format]] = {
    "mean_ttft_seconds": ("TTFT s\nmean", _seconds),
    "p50_ttft_seconds": ("\nP50", _seconds),
    "p99_ttft_seconds": ("\nP99", _seconds),
    "max_ttft_seconds": ("\nmax", _seconds),
    "mean_itl_ms": ("ITL ms\nmean", _whole),
    "p99_itl_ms": ("\nP99", _whole),
    "max_itl_ms": ("\nmax", _whole),
    "tokens_per_second": ("tokens/s\n", _whole),
    "finished": ("finished\nin time", _whole),
    "preemptions": ("pre-\nempted", _whole),
    "recomputed_tokens": ("tokens re-\ncomputed", _whole),
}

_READ: Sequence[tuple[str, ClassName, str, _Format]] = (
    ("P99 TTFT, s", "interactive", "p99_ttft_seconds", _seconds),
    ("P99 ITL, ms", "interactive", "p99_itl_ms", _whole),
    ("tokens/s", "batch", "tokens_per_second", _whole),
    ("longest TTFT, s", "batch", "max_ttft_seconds", _seconds),
)
"""What decides between the variants."""


def report(outcomes: Sequence[Outcome], strict: Sequence[StrictOutcome]) -> RenderableType:
    """Return everything that the study says."""
    summaries = priority.summarise(outcomes)
    parts: list[RenderableType] = [Text(_load(outcomes)), Text()]
    parts += [class_table(name, summaries) for name in priority.CLASSES]
    parts += [cost_table(summaries)]
    parts += [Text(f"* {line}") for line in readings(summaries)]
    if strict:
        absences = strict_order.summarise(strict)
        parts += [Text(), strict_table(absences)]
        parts += [Text(f"* {line}") for line in strict_readings(absences)]
    return Group(*parts)


def _load(outcomes: Sequence[Outcome]) -> str:
    options = priority.OPTIONS
    classes = "; ".join(
        f"{name}: priority {load.priority}, {load.rate:g} requests/s,"
        f" {load.prompt_tokens[0]} to {load.prompt_tokens[1]} prompt and"
        f" {load.reply_tokens[0]} to {load.reply_tokens[1]} reply tokens"
        for name, load in priority.LOADS.items()
    )
    seeds = len({one.trial.seed for one in outcomes})
    return (
        f"{classes}. Poisson arrivals for {outcomes[0].trial.seconds:g} s, then all that is left is"
        f" served. Engine: {options.max_num_seqs} seats, {options.num_gpu_blocks} blocks of"
        f" {options.block_size} tokens, {options.max_num_batched_tokens} tokens a step, ageing"
        f" {options.ageing_seconds:g} s a level, timing {priority.PROFILE}. Tokens/s and finished"
        f" count until arrivals end. Means over seeds, of which there are {seeds}."
    )


def class_table(name: ClassName, summaries: Mapping[str, Summary]) -> Table:
    """Return the figures of one class under each variant."""
    requests = next(iter(summaries.values())).classes[name]["requests"].mean
    table = Table(
        "",
        *[Column(title, justify="right") for title, _ in _COLUMNS.values()],
        box=box.SIMPLE_HEAD,
        title=f"{name} ({requests:,.0f} requests)",
        padding=(0, 1, 0, 0),
    )
    for variant, summary in summaries.items():
        figures = summary.classes[name]
        table.add_row(
            variant, *[form(figures[figure].mean) for figure, (_, form) in _COLUMNS.items()]
        )
    return table


def readings(summaries: Mapping[str, Summary]) -> Sequence[str]:
    """Return what one reads from the tables."""

    def of(name: ClassName, figure: str) -> Mapping[str, float]:
        return {
            variant: summary.classes[name][figure].mean for variant, summary in summaries.items()
        }

    lines = [
        _extremes(f"{name} {what}", of(name, figure), form) for what, name, figure, form in _READ
    ]
    lines += [
        f"Under {variant} batch requests were swapped out"
        f" {summary.classes['batch']['swap_outs'].mean:,.0f} times, and"
        f" {summary.swapped_blocks.mean:,.0f} blocks were copied, there or back."
        for variant, summary in summaries.items()
        if summary.swapped_blocks.mean
    ]
    return lines


def _extremes(what: str, values: Mapping[str, float], form: _Format) -> str:
    least, most = min(values, key=values.__getitem__), max(values, key=values.__getitem__)
    return (
        f"{what}: least under {least} ({form(values[least])}),"
        f" most under {most} ({form(values[most])})."
    )


def cost_table(summaries: Mapping[str, Summary]) -> Table:
    """Return what each variant changes, beside the first of them."""
    table = Table(
        "",
        *[Column(f"{name}\n{what}", justify="right") for what, name, _, _ in _READ],
        box=box.SIMPLE_HEAD,
        title=f"beside {priority.REFERENCE}",
    )
    before = summaries[priority.REFERENCE]
    for variant, after in summaries.items():
        if variant != priority.REFERENCE:
            table.add_row(
                variant,
                *[
                    _change(before.classes[name][figure].mean, after.classes[name][figure].mean)
                    for _, name, figure, _ in _READ
                ],
            )
    return table


def _change(before: float, after: float) -> str:
    return f"{after / before - 1:+.0%}" if before else "-"


def strict_table(absences: Sequence[Absence]) -> Table:
    """Return how long the swapped request stayed outside, by the newcomers' rate."""
    table = Table(
        Column("newcomers/s", justify="right"),
        Column("outside s\nstrict order", justify="right"),
        Column("\nwithout", justify="right"),
        Column("newcomers' P99 TTFT s\nstrict order", justify="right"),
        Column("\nwithout", justify="right"),
        box=box.SIMPLE_HEAD,
        title=f"a swapped-out request, and newcomers for {strict_order.SECONDS:g} s",
    )
    for one in absences:
        table.add_row(
            f"{one.rate:g}",
            *[
                f"{figure.mean:.2f} ± {figure.std:.2f}"
                for figure in (
                    one.strict,
                    one.loose,
                    one.strict_newcomers_p99_ttft,
                    one.loose_newcomers_p99_ttft,
                )
            ],
        )
    return table


def strict_readings(absences: Sequence[Absence]) -> Sequence[str]:
    """Return what one reads from the table of absences."""
    first, last = absences[0], absences[-1]
    outside = (
        f"From {first.rate:g} to {last.rate:g} newcomers/s the time outside goes from"
        f" {first.strict.mean:.1f} to {last.strict.mean:.1f} s with the strict order, and from"
        f" {first.loose.mean:.1f} to {last.loose.mean:.1f} s without it."
    )
    price = (
        f"At {last.rate:g} newcomers/s their P99 TTFT is"
        f" {last.strict_newcomers_p99_ttft.mean:.1f} s with it and"
        f" {last.loose_newcomers_p99_ttft.mean:.1f} s without it."
    )
    return [outside, price]


def as_json(outcomes: Sequence[Outcome], strict: Sequence[StrictOutcome]) -> Mapping[str, object]:
    """Return all figures as plain data."""
    return {
        "seeds": len({one.trial.seed for one in outcomes}),
        "seconds": outcomes[0].trial.seconds,
        "load": {name: load._asdict() for name, load in priority.LOADS.items()},
        "variants": priority.summarise(outcomes),
        "strict_order": strict_order.summarise(strict),
    }


def draw(outcomes: Sequence[Outcome], path: Path) -> None:
    """Draw who waits how long and what it costs, as PNG or SVG by the file's name."""
    figure = Figure(figsize=(15, 5.6), layout="constrained")
    interactive, batch, cost = figure.subplots(1, 3)
    summaries = priority.summarise(outcomes)
    for name, axes in zip(priority.CLASSES, (interactive, batch), strict=True):
        _draw_first_tokens(axes, name, outcomes, summaries)
    _draw_cost(cost, summaries)
    figure.legend(*interactive.get_legend_handles_labels(), loc="outside lower center", ncols=4)
    figure.suptitle("Interactive requests beside a batch load")
    figure.savefig(path, dpi=120)


def _draw_first_tokens(
    axes: "Axes", name: ClassName, outcomes: Sequence[Outcome], variants: Mapping[str, Summary]
) -> None:
    for number, variant in enumerate(variants):
        times = sorted(
            time for one in outcomes if one.trial.variant == variant for time in one.ttfts[name]
        )
        shares = [(at + 1) / len(times) for at in range(len(times))]
        axes.step(times, shares, where="post", color=f"C{number}", label=variant)
    axes.set_xscale("log")
    axes.set_title(f"{name}: time to first token")
    axes.set_xlabel("seconds (logarithmic)")
    axes.set_ylabel("share of the requests")
    axes.set_ylim(0, 1.02)
    axes.grid(alpha=0.3)


def _draw_cost(axes: "Axes", summaries: Mapping[str, Summary]) -> None:
    for number, summary in enumerate(summaries.values()):
        axes.plot(
            summary.classes["interactive"]["p99_ttft_seconds"].mean,
            summary.classes["batch"]["tokens_per_second"].mean,
            "o",
            markersize=11,
            color=f"C{number}",
        )
    axes.set_xscale("log")
    axes.set_title("What it costs (better: up and to the left)")
    axes.set_xlabel("interactive P99 TTFT in seconds (logarithmic)")
    axes.set_ylabel("batch tokens/s")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
