"""The report: which figures count, against which targets, and how they are shown."""

import msgspec
import pytest

from benchmarks import report
from benchmarks.report import (
    AtRest,
    Check,
    Cost,
    Latency,
    Machine,
    Paced,
    PickResult,
    Results,
    ScenarioResult,
)

SHORT = ScenarioResult(
    "short-lean",
    Cost(1000, 500.0, 300.0, 150.0, 2.0),
    Cost(300, 150.0, 900.0, 300.0, 3.0),
    0.33,
    Cost(900, 450.0, 240.0, 160.0, 1.5),
    1.25,
    None,
    {"scorers": 100.0, "metrics": 200.0},
)
CHUNKS = ScenarioResult(
    "stream-100-duplex", Cost(64, 50.0, 900.0, 1500.0, 0.6), None, None, None, None, None
)
STREAM = ScenarioResult(
    "stream-500-lean",
    Cost(64, 50.0, 390.0, 6000.0, 0.065),
    None,
    None,
    None,
    None,
    Latency(8, 900.0, None),
)
WITH_FLOOR = msgspec.structs.replace(STREAM, floor=STREAM.picker, to_floor=1.0)
HELD = ScenarioResult("held-500-lean", Cost(64, 60.0, 300.0, 800.0, 0.375), *[None] * 5)


def results(
    scenarios: list[ScenarioResult] | None = None,
    pick: list[PickResult] | None = None,
    at_rest: AtRest | None = None,
    paced: Paced | None = None,
) -> Results:
    return Results(
        date="2026-01-01T00:00:00+00:00",
        quick=True,
        versions={"python": "3.11"},
        machine=Machine("a system", 2, 0.25, 30.4),
        scenarios=scenarios or [],
        pick=pick or [],
        at_rest=at_rest,
        paced=paced,
    )


FULL = results(
    [SHORT, STREAM, HELD, CHUNKS],
    [
        PickResult(100, "short", 149.0, 140.0, {"scorers": 60.0}),
        PickResult(100, "long", 200.0, 190.0, {"scorers": 60.0}),
        PickResult(10, "short", 50.0, 45.0, {"scorers": 20.0}),
    ],
    AtRest(3, 0.02, 91.5),
    Paced(250.0, 500, 1.5, 3.5),
)


def test_each_figure_that_counts_is_beside_its_target() -> None:
    shown = [(round(one.value, 2), one.target, one.verdict) for one in report.checks(FULL)]

    assert shown == [
        (2.0, 1.3, "over"),  # picker / Envoy
        (0.33, 1 / 3, "ok"),  # lean door / gRPC door
        (1.5, None, ""),  # floor / Envoy
        (1.25, None, ""),  # picker / floor
        (3.5, 3.0, "over"),  # p99 at half of what is borne
        (0.6, 0.5, "over"),  # 100 chunks
        (1.3, 1.2, "over"),  # stream / held
        (1.3, None, ""),  # stream / short
        (149.0, 150.0, "ok"),  # the pick
        (60.0, 40.0, "over"),  # scoring and picking among 100
        (60.0, 120.0, "ok"),  # with hashing
        (20.0, 15.0, "over"),  # among 10
        (91.5, 90.0, "over"),  # memory
        (2.0, 1.0, "over"),  # share of a core
    ]


@pytest.mark.parametrize(
    ("measured", "names"),
    [
        (results(), []),
        (results([STREAM]), []),
        (
            results([HELD, STREAM]),
            ["lean: 500 streamed chunks / one piece as late"],
        ),
        (
            results([WITH_FLOOR, msgspec.structs.replace(WITH_FLOOR, name="held-500-lean")]),
            [
                "lean: 500 streamed chunks / one piece as late",
                "the same of the floor, which sees no chunk either",
            ],
        ),
        (
            results(at_rest=AtRest(3, 0.1, 80.0)),
            ["memory at rest with 3 endpoints", "share of a core at rest with 3 endpoints"],
        ),
    ],
    ids=["nothing", "one half of a ratio", "both halves", "with the floor", "memory alone"],
)
def test_what_was_not_measured_is_left_out(measured: Results, names: list[str]) -> None:
    assert [one.name for one in report.checks(measured)] == names


@pytest.mark.parametrize(
    ("value", "target", "verdict"),
    [(3.0, 3.0, "ok"), (3.01, 3.0, "over"), (99.0, None, "")],
    ids=["at the target", "beyond it", "without one"],
)
def test_a_target_is_kept_up_to_its_value(value: float, target: float | None, verdict: str) -> None:
    assert Check("a figure", value, "", target).verdict == verdict


def test_the_document_holds_all_figures_and_the_verdicts() -> None:
    tree = msgspec.json.decode(report.document(FULL))

    assert tree["scenarios"][0] == {
        "name": "short-lean",
        "picker": {
            "requests": 1000,
            "per_second": 500.0,
            "own_us": 300.0,
            "envoy_us": 150.0,
            "ratio": 2.0,
        },
        "floor": {
            "requests": 900,
            "per_second": 450.0,
            "own_us": 240.0,
            "envoy_us": 160.0,
            "ratio": 1.5,
        },
        "grpc": {
            "requests": 300,
            "per_second": 150.0,
            "own_us": 900.0,
            "envoy_us": 300.0,
            "ratio": 3.0,
        },
        "to_grpc": 0.33,
        "added_latency": None,
        "to_floor": 1.25,
        "stages_us": {"scorers": 100.0, "metrics": 200.0},
    }
    assert [one["verdict"] for one in tree["checks"]] == [
        one.verdict for one in report.checks(FULL)
    ]
    assert tree["at_rest"] == {"endpoints": 3, "cores": 0.02, "resident_mb": 91.5}


def test_stages_are_listed_by_what_they_cost() -> None:
    [table] = [one for one in report.tables(FULL) if one.head[0] == "stage"]

    assert table.head == ["stage", "short-lean"]
    assert table.rows == [["metrics", "200"], ["scorers", "100"]]


def test_a_plain_table_is_aligned() -> None:
    table = report.Table("Title", ["name", "value"], [["short", "1.00"], ["a long one", "20"]])

    assert report.plain(table) == (
        "Title\nname        value\nshort        1.00\na long one     20\n"
    )


def test_rich_draws_every_cell() -> None:
    text = report.text(FULL)
    cells = {cell for table in report.tables(FULL) for row in table.rows for cell in row}

    assert [cell for cell in cells if cell not in text] == []


def test_a_run_without_figures_shows_its_circumstances() -> None:
    assert report.text(results()) == (
        "2026-01-01T00:00:00+00:00; python 3.11; 2 cores, load 0.2 before,"
        " 1,000 additions in 30 µs\n"
    )
