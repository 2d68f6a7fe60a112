"""The ledger: decisions and outcomes find each other, and the summary adds up."""

from collections.abc import Mapping, Sequence

import pytest

from epp.demo.ledger import Ledger, percentile, reason, summarize
from epp.demo.load import Group, Outcome, Planned
from epp.demo.watch import Candidate, Decision, Profile

ENDPOINTS = ("sim-1", "sim-2", "sim-3")
WEIGHTS = {"queue-scorer": 2.0, "prefix-cache-scorer": 3.0}
TRAVEL = Group("travel", "chat", "chat-lora", 1)
UNSHARED = Group("", "text", "sql-lora", 1)


def planned(request_id: str = "id", group: Group = TRAVEL) -> Planned:
    return Planned(request_id, group, stream=True, body={}, pause_seconds=0.0)


def outcome(request: Planned, error: str = "", *, cached: int = 0, seconds: float = 1.0) -> Outcome:
    first_token = None if error else seconds / 2
    return Outcome(request, error, seconds, first_token, 0 if error else 1000, cached)


def decision(
    request_id: str = "id",
    to: str = "sim-1",
    scores: Mapping[str, tuple[float, float]] | None = None,
) -> Decision:
    """A decision, with the scores of each candidate: queue and prefix cache."""
    rows = scores or dict.fromkeys(ENDPOINTS, (1.0, 0.0))
    candidates = [
        Candidate(
            f"default/{name}",
            2.0 * queue + 3.0 * prefix,
            {"queue-scorer": queue, "prefix-cache-scorer": prefix},
        )
        for name, (queue, prefix) in rows.items()
    ]
    candidates.sort(key=lambda one: -one.total)
    return Decision(request_id, "m", f"default/{to}", "default", {"default": Profile(candidates)})


def ledger_of(story: Sequence[tuple[Planned, str, Outcome]]) -> Ledger:
    """A ledger of requests, each with where it went and what came of it."""
    ledger = Ledger(ENDPOINTS)
    for request, to, result in story:
        ledger.note_sent(request)
        ledger.note_decisions([decision(request.id, to)], WEIGHTS)
        ledger.note_end(result)
    return ledger


@pytest.mark.parametrize("decided_first", [True, False], ids=["decision first", "outcome first"])
def test_an_outcome_is_counted_where_its_request_went(decided_first: bool) -> None:
    ledger, request = Ledger(ENDPOINTS), planned()
    ledger.note_sent(request)
    steps = [
        lambda: ledger.note_decisions([decision("id", "sim-2")], WEIGHTS),
        lambda: ledger.note_end(outcome(request, cached=600)),
    ]
    for step in steps if decided_first else reversed(steps):
        step()

    tally = ledger.tallies["sim-2"]
    assert (tally.routed, tally.answered, tally.hit_rate) == (1, 1, 0.6)
    assert tally.models == {"chat-lora": 1}


def test_a_request_sent_by_hand_is_counted_and_kept_apart() -> None:
    ledger = Ledger(ENDPOINTS)
    ledger.note_decisions([decision("another", "sim-3")], WEIGHTS)

    assert ledger.tallies["sim-3"].routed == 1
    assert [one.decision.request_id for one in ledger.by_hand] == ["another"]
    assert not ledger.recent


def test_the_latest_decisions_come_first_and_the_old_ones_go() -> None:
    ledger = Ledger(ENDPOINTS, recent=2)
    for name in ("a", "b", "c"):
        ledger.note_sent(planned(name))
    ledger.note_decisions([decision("a"), decision("b"), decision("c")], WEIGHTS)

    assert [one.decision.request_id for one in ledger.recent] == ["c", "b"]


def test_a_failure_is_counted_by_its_name_and_in_no_time() -> None:
    one, two = planned("1"), planned("2")
    ledger = ledger_of(
        [(one, "sim-1", outcome(one, "HTTP 503")), (two, "sim-1", outcome(two, "HTTP 503"))]
    )

    assert (ledger.failed, ledger.errors) == (2, {"HTTP 503": 2})
    assert not ledger.latencies
    assert ledger.tallies["sim-1"].answered == 0


def test_only_shared_prompts_count_for_the_shared_hit_rate() -> None:
    shared, alone = planned("1"), planned("2", UNSHARED)
    ledger = ledger_of(
        [
            (shared, "sim-1", outcome(shared, cached=800)),
            (alone, "sim-1", outcome(alone, cached=0)),
        ]
    )

    assert ledger.shared_hit_rate == 0.8
    assert ledger.tallies["sim-1"].hit_rate == 0.4


def test_nothing_is_remembered_of_requests_that_are_done() -> None:
    requests = [planned(str(at)) for at in range(100)]
    ledger = ledger_of([(one, "sim-1", outcome(one)) for one in requests])

    assert not ledger._open


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        pytest.param(
            {"sim-1": (0.5, 1.0), "sim-2": (1.0, 0.0)}, "prefix cache +3.00", id="most gained"
        ),
        pytest.param({"sim-1": (1.0, 0.0), "sim-2": (0.25, 0.0)}, "queue +1.50", id="weighted"),
        pytest.param(
            {"sim-1": (1.0, 0.5), "sim-2": (0.0, 0.0), "sim-3": (0.5, 0.5)},
            "queue +1.00",
            id="against the best of the others",
        ),
        pytest.param({"sim-1": (1.0, 0.5), "sim-2": (1.0, 0.5)}, "a tie", id="all alike"),
        pytest.param({"sim-1": (1.0, 0.5)}, "no other choice", id="alone"),
        pytest.param({"sim-2": (1.0, 0.5)}, "no other choice", id="not among those shown"),
    ],
)
def test_the_reason_is_what_spoke_most_for_the_endpoint(
    scores: Mapping[str, tuple[float, float]], expected: str
) -> None:
    assert reason(decision(scores=scores), WEIGHTS) == expected


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [
        pytest.param([], 50, None, id="of none"),
        pytest.param([3.0], 99, 3.0, id="of one"),
        pytest.param([4.0, 1.0, 3.0, 2.0], 50, 2.0, id="median"),
        pytest.param([float(one) for one in range(1, 101)], 99, 99.0, id="99 of 100"),
        pytest.param([1.0, 2.0], 99, 2.0, id="the largest of few"),
    ],
)
def test_percentiles(values: list[float], percent: float, expected: float | None) -> None:
    assert percentile(values, percent) == expected


def test_the_summary_says_what_was_seen() -> None:
    requests = [planned(str(at)) for at in range(4)]
    alone = planned("alone", UNSHARED)
    ledger = ledger_of(
        [
            (requests[0], "sim-1", outcome(requests[0], seconds=0.4)),
            *((one, "sim-1", outcome(one, cached=900, seconds=0.1)) for one in requests[1:]),
            (alone, "sim-2", outcome(alone, seconds=0.2)),
        ]
    )

    summary = summarize(ledger, seconds=5.0)
    assert (summary.requests, summary.failed, summary.routed) == (5, 0, 5)
    assert summary.latency == (0.1, 0.4)
    assert summary.first_token == (0.05, 0.2)
    assert summary.findings == [
        "68% of the prompt tokens of requests with a shared prompt were served from a cache.",
        (
            "With a shared prompt, the first token of a stream took 50 ms where it was cached and"
            " 200 ms where it was not (medians)."
        ),
        "The adapter sql-lora lived on 1 of 3 endpoints.",
        "The adapter chat-lora lived on 1 of 3 endpoints.",
    ]


def test_an_adapter_on_several_endpoints_has_a_home() -> None:
    requests = [planned(str(at)) for at in range(4)]
    places = ("sim-2", "sim-2", "sim-3", "sim-2")
    ledger = ledger_of([(one, to, outcome(one)) for one, to in zip(requests, places, strict=True)])

    assert summarize(ledger, seconds=1.0).findings[-1] == (
        "The adapter chat-lora lived on 2 of 3 endpoints; 75% of its requests went to sim-2."
    )


def test_the_summary_of_nothing_finds_nothing() -> None:
    summary = summarize(Ledger(ENDPOINTS), seconds=0.0)

    assert (summary.requests, summary.latency, summary.findings) == (0, (None, None), [])
