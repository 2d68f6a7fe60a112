"""What the demo draws, as a terminal of a given size would show it."""

import io
import shlex

import msgspec
import pytest
from rich.console import Console, RenderableType

from epp.demo import tables
from epp.demo.ledger import Ledger, Routed, View, summarize
from epp.demo.load import Group, Outcome, Planned
from epp.demo.screen import Screen
from epp.demo.watch import Candidate, Decision, EndpointState, Profile

ENDPOINTS = ("sim-1", "sim-2", "sim-3")
WEIGHTS = {
    "queue-scorer": 2.0,
    "kv-cache-utilization-scorer": 2.0,
    "prefix-cache-scorer": 3.0,
    "lora-affinity-scorer": 2.0,
}
SCORES = {"sim-1": (1.0, 0.99, 0.0, 0.8), "sim-2": (0.5, 1.0, 0.94, 1.0), "sim-3": (0.0,) * 4}
TRAVEL = Group("travel", "chat", "chat-lora", 1)
CURL = (
    "curl http://127.0.0.1:12345/v1/completions -H 'content-type: application/json' -d '{\"a\":1}'"
)


def decision(request_id: str) -> Decision:
    candidates = []
    for name, scores in SCORES.items():
        by_scorer = dict(zip(WEIGHTS, scores, strict=True))
        total = sum(WEIGHTS[scorer] * score for scorer, score in by_scorer.items())
        candidates.append(Candidate(f"default/{name}", total, by_scorer))
    profile = Profile(sorted(candidates, key=lambda one: -one.total))
    return Decision(request_id, "chat-lora", "default/sim-2", "default", {"default": profile})


@pytest.fixture
def view() -> View:
    """Twenty answered requests, one of them sent by hand."""
    ledger = Ledger(ENDPOINTS)
    for at in range(19):
        request = Planned(str(at), TRAVEL, stream=True, body={}, pause_seconds=0.0)
        ledger.note_sent(request)
        ledger.note_end(Outcome(request, "", 0.3, 0.02, 1000, 900))
    ledger.note_decisions([decision(str(at)) for at in range(20)], WEIGHTS)
    states = [
        EndpointState(f"default/{name}", 1, 2, 3, 0.25, ["sql-lora", "chat-lora"])
        for name in ENDPOINTS
    ]
    return View(ledger, states, 12.3, CURL)


def drawn(renderable: RenderableType, width: int) -> list[str]:
    console = Console(record=True, width=width, file=io.StringIO(), force_terminal=True)
    console.print(renderable)
    return [line.rstrip() for line in console.export_text().splitlines()]


@pytest.mark.parametrize(
    ("width", "height"), [(80, 24), (100, 30), (120, 40), (140, 25), (200, 60)]
)
def test_a_frame_fits_its_terminal(view: View, width: int, height: int) -> None:
    lines = drawn(tables.frame(view, width, height), width)

    assert len(lines) < height
    assert not [line for line in lines if "…" in line]


def test_a_wide_frame_shows_what_every_scorer_said_of_every_endpoint(view: View) -> None:
    lines = drawn(tables.frame(view, 140, 40), 140)

    row = next(line for line in lines if line.startswith("chat stream"))
    assert row.split("  ")[0] == "chat stream"
    assert " ".join(row.split()) == (
        "chat stream chat-lora travel sim-2 1 .5 0 .99 1 0 0 .94 0 .8 1 0 5.6 7.8 0"
        " prefix cache +2.82"
    )


def test_a_narrow_frame_shows_the_totals_and_the_reason(view: View) -> None:
    lines = drawn(tables.frame(view, 80, 24), 80)

    row = next(line for line in lines if line.startswith("chat stream"))
    assert " ".join(row.split()) == (
        "chat stream chat-lora travel sim-2 5.6 7.8 0 prefix cache +2.82"
    )


def test_a_frame_shows_each_endpoint(view: View) -> None:
    lines = drawn(tables.frame(view, 80, 24), 80)

    row = next(line for line in lines if line.startswith("sim-2"))
    assert " ".join(row.split()) == "sim-2 20 1 2 3 25% 90% chat-lora sql-lora"


def test_requests_sent_by_hand_stand_first(view: View) -> None:
    lines = drawn(tables.frame(view, 80, 24), 80)

    header = next(at for at, line in enumerate(lines) if line.startswith("request "))
    kinds = [line.split()[0] for line in lines[header + 2 : header + 5]]
    assert kinds == ["yours", "chat", "chat"]


@pytest.mark.parametrize("width", [60, 200])
def test_the_command_can_be_copied_at_any_width(width: int) -> None:
    lines = drawn(tables.curl_text(CURL, width), width)

    typed = "\n".join(lines).replace("\\\n", "")  # as a shell goes on after a backslash
    assert shlex.split(typed) == shlex.split(CURL)


@pytest.mark.parametrize(
    ("score", "expected"),
    [(0.0, "0"), (1.0, "1"), (0.5, ".5"), (0.94, ".94"), (0.996, "1"), (7.25, "7.2"), (8.0, "8")],
)
def test_a_score_takes_three_characters_at_most(score: float, expected: str) -> None:
    assert tables._number(score) == expected


def test_a_decision_in_one_line_has_all_its_scores(view: View) -> None:
    line = tables.decision_line(view.ledger.recent[0], WEIGHTS)

    assert line == (
        "chat stream, chat-lora, prompt travel -> sim-2 (prefix cache +2.82):"
        " sim-1 5.58 = 2x1.00 + 2x0.99 + 3x0.00 + 2x0.80;"
        " sim-2 7.82 = 2x0.50 + 2x1.00 + 3x0.94 + 2x1.00;"
        " sim-3 0.00 = 2x0.00 + 2x0.00 + 3x0.00 + 2x0.00"
    )


def test_a_request_without_a_model_is_named_by_what_it_is() -> None:
    models = Planned("id", Group("", "models", "", 1), stream=False, body=None, pause_seconds=0.0)

    assert tables.what(Routed(decision("id"), models)) == ("models", "-", "-")


@pytest.mark.parametrize("model", ["[/] [red]", "\x1b[2J", "m" * 500], ids=ascii)
def test_what_somebody_else_calls_a_model_cannot_spoil_the_screen(model: str) -> None:
    ledger = Ledger(ENDPOINTS)
    ledger.note_decisions([msgspec.structs.replace(decision("id"), model=model)], WEIGHTS)

    lines = drawn(tables.frame(View(ledger, [], 0.0, CURL), 140, 40), 140)
    row = next(line for line in lines if line.startswith("yours"))
    assert row.isprintable()
    assert row.endswith("prefix cache +2.82")


def test_the_summary_shows_shares_times_and_findings(view: View) -> None:
    lines = drawn(tables.summary_table(summarize(view.ledger, 12.3)), 110)

    shown = [" ".join(line.split()) for line in lines if line]
    assert shown[0] == "19 requests in 12 s, 0 failed"
    assert "sim-2 20 100% 90% chat-lora 19" in shown
    assert "latency p50 300 ms p99 300 ms" in shown
    assert "- The adapter chat-lora lived on 1 of 3 endpoints." in shown


def test_where_nothing_moves_a_line_is_written_every_two_seconds(view: View) -> None:
    stream = io.StringIO()
    with Screen.on(stream).showing() as draw:
        for at in range(50):
            draw(View(view.ledger, view.endpoints, at / 10, CURL))

    lines = stream.getvalue().splitlines()
    assert lines[0] == f"try it yourself: {CURL}"
    assert [line.split()[0] for line in lines if " s  " in line] == ["0.0", "2.0", "4.0"]
    assert stream.getvalue().isascii()
