"""
The report of the study `lora`: its tables, its JSON and its picture.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from matplotlib.figure import Figure
from rich import box
from rich.console import Group, RenderableType
from rich.table import Column, Table
from rich.text import Text

from epp.simulator.study import lora
from epp.simulator.study.lora import Comparison, Outcome
from epp.simulator.study.statistics import Spread, spread

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_TITLES = {
    "requests_per_second": "requests/s",
    "mean_ttft_ms": "mean TTFT ms",
    "p99_ttft_ms": "P99 TTFT ms",
    "mean_tpot_ms": "mean TPOT ms",
    "median_ttft_ms": "median TTFT ms",
}
_EXPLAINED = {
    "stop": "stop: a waiting request without an adapter slot holds up all behind it",
    "skip": "skip: it is passed over",
}
_COLOURS = {"stop": "tab:red", "skip": "tab:blue"}
_SAMPLES = 500


def report(outcomes: Sequence[Outcome]) -> RenderableType:
    """Return everything that the study says."""
    seeds = len({one.trial.seed for one in outcomes})
    return Group(
        Text(_load(seeds)),
        Text(),
        comparison_table(outcomes),
        Text(_verdict(lora.compare(outcomes))),
        Text(),
        wave_table(outcomes),
        Text(
            "Read this honestly: each published row is one run. Under skip the adapters come in two"
            " waves; where the first four have more requests than there are seats, stragglers keep"
            " the slots while the second wave waits, and median TTFT and mean TPOT jump. A mean"
            " over seeds mixes both kinds of run, so these two figures are not held to the"
            " tolerance. The time model was fitted to these published runs: what the figures test"
            " is the scheduling."
        ),
    )


def _load(seeds: int) -> str:
    return (
        f"{lora.NUM_PROMPTS} prompts at once, {lora.INPUT_TOKENS:,} tokens in all (lognormal,"
        f" sigma {lora.SIGMA:g}, {lora.SHORTEST_PROMPT} to {lora.LONGEST_PROMPT}),"
        f" {lora.OUTPUT_TOKENS} output tokens each, {lora.NUM_ADAPTERS} adapters at random;"
        f" max_loras {lora.OPTIONS.max_loras}, max_num_seqs {lora.OPTIONS.max_num_seqs},"
        f" max_num_batched_tokens {lora.OPTIONS.max_num_batched_tokens}, timing {lora.PROFILE};"
        f" mean ± standard deviation over the seeds,"
        f" of which there are {seeds}"
    )


def comparison_table(outcomes: Sequence[Outcome]) -> Table:
    """Return published and simulated figures side by side."""
    table = Table(
        "",
        Column("published", justify="right"),
        Column("simulated", justify="right"),
        Column("difference", justify="right"),
        "",
        box=box.SIMPLE_HEAD,
        title="vLLM with more adapters than slots",
    )
    rule = ""
    for one in lora.compare(outcomes):
        if one.rule != rule:
            rule = one.rule
            table.add_row(Text(_EXPLAINED[rule], "bold"))
        table.add_row(
            f"  {_TITLES[one.figure]}",
            "-" if one.published is None else _number(one.published),
            _spread(one.simulated),
            "-" if one.difference is None else f"{one.difference:+.1%}",
            _remark(one),
        )
    gap, published = lora.gap(outcomes), lora.published_gap()
    table.add_row(Text("skip for stop", "bold"))
    table.add_row(
        f"  {_TITLES['requests_per_second']}, times",
        _number(published),
        _spread(gap),
        f"{gap.mean / published - 1:+.1%}",
        "",
    )
    return table


def _remark(one: Comparison) -> Text:
    if one.bimodal:
        return Text("bimodal", "dim")
    return Text(f"outside {lora.TOLERANCE:.0%}", "bold red") if one.outside else Text()


def _verdict(comparisons: Sequence[Comparison]) -> str:
    held = [one for one in comparisons if one.published is not None and not one.bimodal]
    outside = [f"{one.rule} {_TITLES[one.figure]}" for one in held if one.outside]
    if outside:
        return f"More than {lora.TOLERANCE:.0%} off the published figure: {', '.join(outside)}."
    return f"All {len(held)} figures held to it are within {lora.TOLERANCE:.0%} of the published."


def wave_table(outcomes: Sequence[Outcome]) -> Table:
    """Return the bimodal figures of `skip` by the kind of draw."""
    waves = lora.by_wave(outcomes)
    table = Table(
        "",
        Column("published", justify="right"),
        *[Column(f"{name}\n(seeds: {len(some)})", justify="right") for name, some in waves.items()],
        box=box.SIMPLE_HEAD,
        title="skip, by the number of requests for the first four adapters",
    )
    for figure in ("median_ttft_ms", "mean_tpot_ms"):
        table.add_row(
            _TITLES[figure],
            _number(lora.PUBLISHED["skip"][figure]),
            *[
                _spread(spread(one.figures[figure] for one in some)) if some else "-"
                for some in waves.values()
            ],
        )
    return table


def _number(value: float) -> str:
    return f"{value:,.{_decimals(value)}f}"


def _decimals(value: float) -> int:
    return 0 if value >= 1000 else 2


def _spread(figure: Spread) -> str:
    return f"{_number(figure.mean)} ± {figure.std:,.{_decimals(figure.mean)}f}"


def as_json(outcomes: Sequence[Outcome]) -> Mapping[str, object]:
    """Return all figures as plain data."""
    rows: dict[str, dict[str, object]] = {rule: {} for rule in lora.RULES}
    for one in lora.compare(outcomes):
        rows[one.rule][one.figure] = {
            "published": one.published,
            "simulated": one.simulated,
            "difference": one.difference,
            "bimodal": one.bimodal,
        }
    return {
        "seeds": len({one.trial.seed for one in outcomes}),
        **rows,
        "gap": {"published": lora.published_gap(), "simulated": lora.gap(outcomes)},
        "skip_by_first_wave": {
            name: {
                "seeds": [one.trial.seed for one in some],
                **{
                    figure: spread(one.figures[figure] for one in some)
                    for figure in ("median_ttft_ms", "mean_tpot_ms")
                    if some
                },
            }
            for name, some in lora.by_wave(outcomes).items()
        },
    }


def draw(outcomes: Sequence[Outcome], path: Path) -> None:
    """Draw when first tokens came and who ran meanwhile, as PNG or SVG by the file's name."""
    figure = Figure(figsize=(15, 4.8), layout="constrained")
    tokens, stopping, skipping = figure.subplots(1, 3)
    _draw_first_tokens(tokens, outcomes)
    for axes, rule in ((stopping, "stop"), (skipping, "skip")):
        first = next(one for one in outcomes if one.trial.rule == rule)
        _draw_running(axes, first)
    figure.legend(
        *skipping.get_legend_handles_labels(), title="adapter", loc="outside right center"
    )
    figure.suptitle(
        f"{lora.NUM_PROMPTS} prompts for {lora.NUM_ADAPTERS} adapters,"
        f" {lora.OPTIONS.max_loras} of which fit into a step"
    )
    figure.savefig(path, dpi=120)


def _draw_first_tokens(axes: "Axes", outcomes: Sequence[Outcome]) -> None:
    for rule in lora.RULES:
        times = sorted(
            life.first_token for one in outcomes if one.trial.rule == rule for life in one.lives
        )
        shares = [(at + 1) / len(times) for at in range(len(times))]
        axes.plot(times, shares, color=_COLOURS[rule], label=f"{rule}, simulated")
        published = lora.PUBLISHED[rule]
        axes.plot(
            published["p99_ttft_ms"] / 1e3,
            0.99,
            "o",
            color=_COLOURS[rule],
            label=f"{rule}, published P99",
        )
        axes.axvline(
            published["mean_ttft_ms"] / 1e3,
            linestyle=":",
            color=_COLOURS[rule],
            label=f"{rule}, published mean",
        )
    axes.set_title("Time to first token")
    axes.set_xlabel("seconds")
    axes.set_ylabel("share of the requests, all seeds")
    axes.set_ylim(0, 1.02)
    axes.legend(fontsize="small", loc="center right")


def _draw_running(axes: "Axes", outcome: Outcome) -> None:
    end = max(one.last_token for one in outcome.lives)
    times = [at * end / _SAMPLES for at in range(_SAMPLES + 1)]
    counts = [
        [
            sum(
                one.admitted <= time < one.last_token
                for one in outcome.lives
                if one.adapter == number
            )
            for time in times
        ]
        for number in range(lora.NUM_ADAPTERS)
    ]
    axes.stackplot(times, *counts, labels=[str(number) for number in range(lora.NUM_ADAPTERS)])
    axes.axhline(lora.OPTIONS.max_num_seqs, linestyle="--", linewidth=1, color="grey")
    axes.set_title(
        f"{outcome.trial.rule}: running requests by adapter ({outcome.lora_loads} adapter loads)"
    )
    axes.set_xlabel(f"seconds (seed {outcome.trial.seed}; dashed: all seats)")
    axes.set_xlim(0, end)
    axes.set_ylim(0, lora.OPTIONS.max_num_seqs * 1.05)
