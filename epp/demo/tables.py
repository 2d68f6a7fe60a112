"""
The tables: what the demo shows on a terminal, and the lines it writes where there is none.

Pure: numbers in, renderables out. An endpoint has one colour everywhere.
"""

from collections.abc import Iterable, Mapping, Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.table import Column, Table
from rich.text import Text

from epp.demo.ledger import (
    Ledger,
    Routed,
    Summary,
    Tally,
    View,
    fraction,
    milliseconds,
    reason,
    scorer_title,
)
from epp.demo.watch import Decision, EndpointState, Weights

COLOURS = ("cyan", "magenta", "yellow")
METERS_WIDTH = 96
SCORES_WIDTH = 112
REASON_WIDTH = 132
"""From these widths on there is room for meters, for each scorer's scores, for a reason as well."""

ROWS = 10
_LINES_AROUND = 16
"""What a frame needs beside the rows of its tables."""

_METER_CELLS = 8
MAX_MODEL_CHARS = 20


def frame(view: View, width: int, height: int) -> RenderableType:
    """Return the whole live display, cut to the height it has."""
    ledger = view.ledger
    room = max(1, min(ROWS, height - _LINES_AROUND - len(view.endpoints)))
    rows = [*ledger.by_hand, *ledger.recent][:room]
    return Group(
        headline(view),
        Text(),
        endpoint_table(view.endpoints, ledger.tallies, width),
        Text(),
        decision_table(rows, ledger.weights, list(ledger.tallies), width),
        Text(
            f"scores of {', '.join(ledger.tallies)}; the endpoint that was taken in colour", "dim"
        ),
        Text(),
        Text("Your own requests show up here too (Ctrl-C ends everything):"),
        curl_text(view.curl, width),
    )


def headline(view: View) -> Text:
    """Return the line with the totals."""
    ledger = view.ledger
    line = Text.assemble(
        ("endpoint picker", "bold"),
        f"   {view.seconds:.0f} s   {ledger.sent} requests   ",
        (f"{ledger.failed} failed", "bold red" if ledger.failed else ""),
    )
    if ledger.shared_prompt_tokens:
        line.append(f"   {ledger.shared_hit_rate:.0%} of shared prompts cached")
    line.no_wrap = True
    return line


def curl_text(curl: str, width: int) -> Text:
    """Return the command in a form that can be copied at this width."""
    if len(curl) > width:
        curl = curl.replace(" -H ", " \\\n  -H ").replace(" -d ", " \\\n  -d ")
    return Text(curl, "green", no_wrap=True, overflow="ignore")


def endpoint_table(
    endpoints: Sequence[EndpointState], tallies: Mapping[str, Tally], width: int
) -> RenderableType:
    """Return the table of what happens where."""
    cells = _METER_CELLS if width >= METERS_WIDTH else 0
    table = _table(
        Column("\nendpoint"),
        Column("\nrouted", justify="right"),
        Column("in\nflight", justify="right"),
        Column("\nqueue", justify="right"),
        Column("\nrunning", justify="right"),
        Column("KV\ncache"),
        Column("prompts\ncached"),
        Column("adapters\nactive", no_wrap=True),
    )
    for state in endpoints:
        tally = tallies.get(state.name, Tally())
        table.add_row(
            Text(state.name, _colour(state.name, tallies)),
            str(tally.routed),
            str(state.in_flight),
            str(state.queue),
            str(state.running),
            _meter(state.kv_usage, cells),
            _meter(tally.hit_rate, cells),
            " ".join(sorted(state.running_adapters)) or Text("-", "dim"),
        )
    return table


def decision_table(
    rows: Iterable[Routed], weights: Weights, names: Sequence[str], width: int
) -> RenderableType:
    """Return the table of the latest requests: what, where to and why."""
    scorers = list(weights) if width >= SCORES_WIDTH else []
    reasons = [Column("\nbecause of", no_wrap=True)]
    if SCORES_WIDTH <= width < REASON_WIDTH:
        reasons = []
    scores_width = 4 * len(names) - 1
    table = _table(
        Column("\nrequest", no_wrap=True),
        Column("\nmodel", no_wrap=True),
        Column("shared\nprompt", no_wrap=True),
        Column("\nto", no_wrap=True),
        *(
            Column(f"{scorer_title(one)}\nx {weights[one]:g}", no_wrap=True, min_width=scores_width)
            for one in scorers
        ),
        Column("\ntotal", no_wrap=True, min_width=scores_width),
        *reasons,
    )
    for row in rows:
        kind, model, group = what(row)
        decision = row.decision
        table.add_row(
            Text(kind, "" if row.planned else "bold green"),
            Text(model),  # somebody else's text: no markup
            group,
            Text(decision.name, _colour(decision.name, names)),
            *(_scores(_column(decision, one), names, decision.name) for one in scorers),
            _scores({one.name: one.total for one in decision.candidates}, names, decision.name),
            *(reason(decision, weights) for _ in reasons),
        )
    return table


def what(row: Routed) -> tuple[str, str, str]:
    """Return the kind of a request, its model and its shared prompt; one sent by hand is yours."""
    planned = row.planned
    if planned is None:
        model = row.decision.model[:MAX_MODEL_CHARS]
        return "yours", (model if model.isprintable() else ascii(model)) or "-", "-"
    kind = f"{planned.group.kind}{' stream' if planned.stream else ''}"
    return kind, planned.group.model or "-", planned.group.name or "-"


def decision_line(row: Routed, weights: Weights) -> str:
    """Return one decision in a line of plain text."""
    kind, model, group = what(row)
    decision = row.decision
    why = "; ".join(
        f"{one.name} {one.total:.2f} = "
        + " + ".join(f"{weights.get(n, 1.0):g}x{s:.2f}" for n, s in one.scores.items())
        for one in sorted(decision.candidates, key=lambda one: one.name)
    )
    return (
        f"{kind}, {model}, prompt {group} -> {decision.name} ({reason(decision, weights)}): {why}"
    )


def progress_line(ledger: Ledger, seconds: float) -> str:
    """Return how far the load is in a line of plain text."""
    routed = ", ".join(f"{name} {one.routed}" for name, one in ledger.tallies.items())
    return (
        f"{seconds:5.1f} s  {ledger.sent} requests, {ledger.failed} failed; {routed};"
        f" {ledger.shared_hit_rate:.0%} of shared prompts cached"
    )


def summary_table(summary: Summary) -> RenderableType:
    """Return what the demo showed."""
    table = _table(
        Column("endpoint"),
        Column("requests", justify="right"),
        Column("share", justify="right"),
        Column("prompts cached", justify="right"),
        Column("models served"),
    )
    for name, tally in summary.tallies.items():
        served = (f"{model or 'no model'} {count}" for model, count in tally.models.most_common())
        table.add_row(
            Text(name, _colour(name, summary.tallies)),
            str(tally.routed),
            f"{fraction(tally.routed, summary.routed):.0%}",
            f"{tally.hit_rate:.0%}",
            ", ".join(served) or "-",
        )
    times = Table.grid(padding=(0, 2, 0, 0))
    for label, (median, slow) in (
        ("latency", summary.latency),
        ("time to first token", summary.first_token),
    ):
        times.add_row(label, f"p50 {milliseconds(median)}", f"p99 {milliseconds(slow)}")
    findings = Table.grid(padding=(0, 1, 0, 0))
    for finding in summary.findings:
        findings.add_row("-", finding)
    title = f"{summary.requests} requests in {summary.seconds:.0f} s, {summary.failed} failed"
    return Group(
        Text(), Text(title, "bold"), Text(), table, Text(), times, Text(), findings, Text()
    )


def _table(*columns: Column) -> Table:
    return Table(
        *columns,
        box=box.SIMPLE_HEAD,
        show_edge=False,
        padding=(0, 1, 0, 0),
        header_style="bold",
    )


def _column(decision: Decision, scorer: str) -> dict[str, float]:
    return {one.name: one.scores[scorer] for one in decision.candidates if scorer in one.scores}


def _scores(values: Mapping[str, float], names: Sequence[str], taken: str) -> Text:
    """One number an endpoint, in their order, that of the one taken in its colour."""
    line = Text(no_wrap=True)
    for name in names:
        value = values.get(name)
        text = "-" if value is None else _number(value)
        style = f"bold {_colour(name, names)}" if name == taken else "dim"
        line.append(f"{text:>3}", style).append(" ")
    line.right_crop(1)
    return line


def _number(value: float) -> str:
    """A score in three characters: 0, .35, 1, 6.4."""
    text = f"{value:.2f}" if value < 1 else f"{value:.1f}"
    if text.endswith(("0", "1.00")):
        text = text.rstrip("0").rstrip(".")
    return text.removeprefix("0") or "0"


def _meter(value: float, cells: int) -> Text:
    full = round(min(1.0, max(0.0, value)) * cells)
    return Text.assemble(("━" * full, "green"), ("─" * (cells - full), "dim"), f" {value:>4.0%}")


def _colour(name: str, names: Iterable[str]) -> str:
    known = list(names)
    return COLOURS[known.index(name) % len(COLOURS)] if name in known else "white"
