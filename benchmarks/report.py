"""
The report: the figures of a run, what they are compared with, and how they are shown.

A target is shown as kept or not, and never fails a run: a machine that others share has bad days.
"""

import importlib.util
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import msgspec

WIDTH = 160
"""Of a table that rich draws: the widest needs most of it."""


class Cost(msgspec.Struct, frozen=True):
    """
    What a request cost: CPU microseconds of the picker (or the floor) and of Envoy.

    `ratio` is that of the two; of several rounds each figure is the median for itself.
    """

    requests: int
    per_second: float
    own_us: float
    envoy_us: float
    ratio: float


class Latency(msgspec.Struct, frozen=True):
    """How much later responses begin than without the filter; no p99 of too few samples."""

    samples: int
    p50_us: float
    p99_us: float | None


class ScenarioResult(msgspec.Struct, frozen=True):
    """
    What a scenario cost with the picker and, where they were measured, with its gRPC door and with
    the floor.

    `to_grpc` and `to_floor` are the picker's CPU as a multiple of theirs in the round beside it.
    `stages_us` says where the picker's CPU went, if it was watched.
    """

    name: str
    picker: Cost
    grpc: Cost | None
    to_grpc: float | None
    floor: Cost | None
    to_floor: float | None
    added_latency: Latency | None
    stages_us: Mapping[str, float] = {}


class PickResult(msgspec.Struct, frozen=True):
    """
    What one decision took, in CPU microseconds: the median of some batches, and the best of them.

    `stages_us` says how much of it each kind of plugin took, on average.
    """

    endpoints: int
    prompt: str
    median_us: float
    best_us: float
    stages_us: Mapping[str, float]


class Paced(msgspec.Struct, frozen=True):
    """What short requests wait for their first byte where they come at half of what is borne."""

    per_second: float
    samples: int
    p50_ms: float
    p99_ms: float


class AtRest(msgspec.Struct, frozen=True):
    """What the picker uses without requests."""

    endpoints: int
    cores: float
    resident_mb: float


class Machine(msgspec.Struct, frozen=True):
    """
    Where it was measured: the load of others before, and the microseconds of a plain Python loop.

    The loop makes 1,000 additions: where it takes twice as long, so does everything else.
    """

    system: str
    cores: int
    load_before: float
    loop_us: float


class Results(msgspec.Struct, kw_only=True):
    """All figures of one run; what was not measured is empty."""

    date: str
    quick: bool
    versions: Mapping[str, str]
    machine: Machine
    pick: list[PickResult] = []
    scenarios: list[ScenarioResult] = []
    paced: Paced | None = None
    at_rest: AtRest | None = None


class Check(msgspec.Struct, frozen=True):
    """A figure beside its target; without a target it is there to compare with."""

    name: str
    value: float
    unit: str
    target: float | None = None

    @property
    def verdict(self) -> str:
        """`ok`, `over`, or nothing where there is no target."""
        if self.target is None:
            return ""
        return "ok" if self.value <= self.target else "over"


def checks(results: Results) -> Iterator[Check]:
    """Yield the figures that count, as far as they were measured."""
    costs = {one.name: one for one in results.scenarios}
    if (short := costs.get("short-lean")) is not None:
        yield from _short_checks(short)
    if results.paced is not None:
        name = f"p99 at {results.paced.per_second:.0f} a second, half of what is borne"
        yield Check(name, results.paced.p99_ms, "ms", 3.0)
    if (chunks := costs.get("stream-100-duplex")) is not None:
        yield Check("100 chunks, full duplex: picker / Envoy", chunks.picker.ratio, "", 0.5)
    yield from _streaming_checks(costs)
    for one in results.pick:
        yield from _pick_checks(one)
    if results.at_rest is not None:
        name = f"at rest with {results.at_rest.endpoints} endpoints"
        yield Check(f"memory {name}", results.at_rest.resident_mb, "MB", 90.0)
        yield Check(f"share of a core {name}", results.at_rest.cores * 100, "%", 1.0)


CHOOSING = ("scorers", "picker", "handler")
HASHING_TOO = (*CHOOSING, "producers", "pre-request")
CHOICE_TARGETS = {10: 15.0, 100: 40.0}
WITH_HASHING_TARGETS = {100: 120.0, 1000: 250.0}


def _pick_checks(one: PickResult) -> Iterator[Check]:
    if (one.endpoints, one.prompt) == (100, "short"):
        yield Check("the pick alone at 100 endpoints", one.median_us, "µs", 150.0)
    stages = one.stages_us
    if one.prompt == "short" and one.endpoints in CHOICE_TARGETS:
        name = f"scoring and picking among {one.endpoints} endpoints"
        total = sum(stages.get(stage, 0.0) for stage in CHOOSING)
        yield Check(name, total, "µs", CHOICE_TARGETS[one.endpoints])
    if one.prompt == "long" and one.endpoints in WITH_HASHING_TARGETS:
        name = f"the same with 7,200 tokens hashed, among {one.endpoints}"
        total = sum(stages.get(stage, 0.0) for stage in HASHING_TOO)
        yield Check(name, total, "µs", WITH_HASHING_TARGETS[one.endpoints])


def _short_checks(short: ScenarioResult) -> Iterator[Check]:
    yield Check("short request, lean: picker / Envoy", short.picker.ratio, "", 1.3)
    if short.to_grpc is not None:
        yield Check("short request, lean: lean door / gRPC door", short.to_grpc, "", 1 / 3)
    if short.floor is not None:
        yield Check("short request, lean: floor / Envoy", short.floor.ratio, "")
    if short.to_floor is not None:
        yield Check("short request, lean: picker / floor", short.to_floor, "")


def _streaming_checks(costs: Mapping[str, ScenarioResult]) -> Iterator[Check]:
    streamed = costs.get("stream-500-lean")
    if streamed is None:
        return
    if (held := costs.get("held-500-lean")) is not None:
        name = "lean: 500 streamed chunks / one piece as late"
        yield Check(name, streamed.picker.own_us / held.picker.own_us, "", 1.2)
        if streamed.floor is not None and held.floor is not None:
            ratio = streamed.floor.own_us / held.floor.own_us
            yield Check("the same of the floor, which sees no chunk either", ratio, "")
    if (short := costs.get("short-lean")) is not None:
        ratio = streamed.picker.own_us / short.picker.own_us
        yield Check("lean: 500 streamed chunks / short request", ratio, "")


def document(results: Results) -> bytes:
    """Return everything as JSON."""
    tree = msgspec.to_builtins(results)
    tree["checks"] = [
        {**msgspec.to_builtins(one), "verdict": one.verdict} for one in checks(results)
    ]
    return msgspec.json.format(msgspec.json.encode(tree), indent=2) + b"\n"


class Table(msgspec.Struct, frozen=True):
    """A table of text; the first column is names, the others are figures."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


def tables(results: Results) -> Iterator[Table]:
    """Yield the tables of a run, empty ones left out."""
    if results.scenarios:
        head = ["scenario", "requests", "picker µs", "Envoy µs", "picker / Envoy"]
        head += ["gRPC door µs", "lean / gRPC door", "floor µs", "picker / floor"]
        head += ["added p50 µs", "added p99 µs"]
        rows = [_scenario_row(one) for one in results.scenarios]
        yield Table("A request through Envoy: CPU, and added latency", head, rows)
    profiled = [one for one in results.scenarios if one.stages_us]
    if profiled:
        yield _stages(profiled)
    if results.pick:
        stages = list(results.pick[0].stages_us)
        rows = [
            [f"{one.endpoints} endpoints, {one.prompt} prompt"]
            + [_number(one.median_us), _number(one.best_us)]
            + [_number(one.stages_us[stage]) for stage in stages]
            for one in results.pick
        ]
        yield Table("The pick alone: µs of CPU", ["pick", "median", "best", *stages], rows)
    found = [
        [one.name, f"{_number(one.value)} {one.unit}".strip(), _target(one), one.verdict]
        for one in checks(results)
    ]
    if found:
        yield Table("What counts", ["figure", "value", "target", "verdict"], found)


def _stages(profiled: Sequence[ScenarioResult]) -> Table:
    totals: Counter[str] = Counter()
    for one in profiled:
        totals.update(one.stages_us)
    rows = [
        [stage, *(_number(one.stages_us.get(stage, 0.0)) for one in profiled)]
        for stage, _ in totals.most_common()
    ]
    head = ["stage", *(one.name for one in profiled)]
    return Table("Where the picker's CPU goes: µs a request", head, rows)


def text(results: Results) -> str:
    """Return the run's circumstances and its tables, drawn by rich where it is installed."""
    draw = _drawn if importlib.util.find_spec("rich") else plain
    return "\n".join([caption(results), *(draw(one) for one in tables(results))])


def caption(results: Results) -> str:
    """Return when, with what and on which machine the figures were measured, on one line."""
    machine = results.machine
    versions = ", ".join(f"{name} {version}" for name, version in results.versions.items())
    return (
        f"{results.date}; {versions}; {machine.cores} cores, load {machine.load_before:.1f} before,"
        f" 1,000 additions in {machine.loop_us:.0f} µs\n"
    )


def plain(table: Table) -> str:
    """Return a table in aligned columns."""
    lines = [table.head, *table.rows]
    widths = [max(len(line[at]) for line in lines) for at in range(len(table.head))]
    shown = [
        "  ".join(
            [line[0].ljust(widths[0])]
            + [cell.rjust(width) for cell, width in zip(line[1:], widths[1:], strict=True)]
        ).rstrip()
        for line in lines
    ]
    return "\n".join([table.title, *shown]) + "\n"


def _drawn(table: Table) -> str:
    from rich import box
    from rich.console import Console
    from rich.table import Table as RichTable

    drawn = RichTable(title=table.title, title_justify="left", box=box.SIMPLE_HEAD)
    drawn.add_column(table.head[0], no_wrap=True)
    for name in table.head[1:]:
        drawn.add_column(name, justify="right")
    for row in table.rows:
        drawn.add_row(*row)
    console = Console(width=WIDTH)
    with console.capture() as capture:
        console.print(drawn)
    return capture.get()


def _scenario_row(one: ScenarioResult) -> list[str]:
    grpc, floor, latency = one.grpc, one.floor, one.added_latency
    return [
        one.name,
        str(one.picker.requests),
        _number(one.picker.own_us),
        _number(one.picker.envoy_us),
        _number(one.picker.ratio),
        _number(grpc.own_us if grpc else None),
        _number(one.to_grpc),
        _number(floor.own_us if floor else None),
        _number(one.to_floor),
        _number(latency.p50_us if latency else None),
        _number(latency.p99_us if latency else None),
    ]


def _target(check: Check) -> str:
    return f"≤ {_number(check.target)}" if check.target is not None else ""


def _number(value: float | None) -> str:
    """Return three digits that mean something."""
    if value is None:
        return "-"
    return f"{value:.2f}" if abs(value) < 10 else f"{value:,.0f}"
