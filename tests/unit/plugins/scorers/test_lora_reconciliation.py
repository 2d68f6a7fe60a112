"""Own counts against reports: both habits of vLLM, other pickers, restarts, and bounds."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from epp.framework import (
    Endpoint,
    EndpointId,
    EndpointMetrics,
    EndpointView,
    InferenceRequest,
    PluginContext,
    ProfileResult,
    SchedulingResult,
    ScoredEndpoint,
    TerminationCause,
)
from epp.testing import request
from epp_plugins.scorers.lora_affinity import LoRAAffinityScorer, ledger

SLOTS = 2


class Pool:
    """A scorer with its endpoints, scrapes and time."""

    def __init__(self, *names: str, spread_requests: int = 0) -> None:
        self.now = 0.0
        self.scorer = LoRAAffinityScorer(
            context=PluginContext("lora", clock=lambda: self.now),
            tie_score=0.0,
            spread_requests=spread_requests,
        )
        self.rows: list[Endpoint] = []
        for name in names:
            self.start(name)
        self.scores("any")

    def start(self, name: str) -> None:
        metrics = EndpointMetrics(max_adapters=SLOTS)
        one = Endpoint(EndpointId("default", name), name, 8000, metrics=metrics, stale=False)
        self.rows.append(one)

    def stop(self, name: str) -> None:
        self.rows = [one for one in self.rows if one.id.name != name]

    def report(self, name: str, running: str = "", waiting: str | None = None) -> None:
        """Scrape an endpoint, a second later; without `waiting` both lists are the same."""
        self.now += ledger.RECONCILE_SECONDS
        [at] = [at for at, one in enumerate(self.rows) if one.id.name == name]
        metrics = replace(
            self.rows[at].metrics,
            running_adapters=frozenset(running.split()),
            waiting_adapters=frozenset((running if waiting is None else waiting).split()),
        )
        self.rows[at] = replace(self.rows[at], metrics=metrics)
        self.scores("any")

    def scores(self, adapter: str) -> Sequence[float]:
        return self.scorer.score(request(model=adapter), EndpointView(self.rows))

    def send(self, adapter: str, to: str = "a") -> Callable[..., None]:
        """Route a request; return its end."""
        [chosen] = [one for one in self.rows if one.id.name == to]
        asked = request(model=adapter)
        result = routed_to(chosen)
        self.scorer.pre_request(asked, result)

        def end(cause: TerminationCause = TerminationCause.COMPLETED) -> None:
            self.scorer.on_response_complete(asked, result, cause, None)

        return end

    def state(self, key: str) -> int:
        return self.scorer.dump_state()[key]


def routed_to(endpoint: Endpoint) -> SchedulingResult:
    picked = ProfileResult([ScoredEndpoint(endpoint, 1.0)], [endpoint], {})
    return SchedulingResult({"default": picked}, "default")


def test_what_others_sent_counts_beside_our_own() -> None:
    """A second picker's traffic is seen in the reports alone."""
    pool = Pool("a", "b")
    pool.send("ours")

    pool.report("a", "ours theirs")

    assert pool.scores("theirs") == [1.0, 0.75]
    assert pool.scores("new") == [pytest.approx(0.025), 0.75]
    assert pool.scorer.discrepancies == {"absent": 0, "foreign": 1}


def test_what_others_sent_is_gone_when_it_is_reported_no_more() -> None:
    pool = Pool("a", "b")
    pool.report("a", "theirs")

    pool.report("a")

    assert pool.scores("theirs") == [0.75, 0.75]
    assert pool.state("othersAdapters") == 0


def test_an_adapter_of_others_that_stays_is_one_discrepancy_and_not_one_a_report() -> None:
    pool = Pool("a")
    for _ in range(5):
        pool.report("a", "theirs")

    assert pool.scorer.discrepancies == {"absent": 0, "foreign": 1}


def test_an_adapter_that_only_ours_ran_is_gone_with_its_last_request() -> None:
    pool = Pool("a", "b")
    first, second = pool.send("x"), pool.send("x")
    pool.report("a", "x")

    first()
    one_left = pool.scores("x")
    second()

    assert one_left == [1.0, 0.75]
    assert pool.scores("x") == [0.75, 0.75]


def test_a_report_of_what_ended_meanwhile_is_not_the_traffic_of_others() -> None:
    """It may have been made before the end."""
    pool = Pool("a", "b")
    pool.send("x")()

    pool.report("a", "x")
    once = pool.scores("x")
    pool.report("a", "x")

    assert once == [0.75, 0.75]
    assert pool.scores("x") == [1.0, 0.75]
    assert pool.scorer.discrepancies["foreign"] == 1


def test_own_counts_stand_where_reports_lack_them() -> None:
    """Since 0.10 vLLM reports no adapter whose requests all wait."""
    pool = Pool("a", "b")
    pool.send("x")

    for _ in range(ledger.PATIENCE_SCRAPES):
        pool.report("a", "y")
    patient = dict(pool.scorer.discrepancies)
    for _ in range(3):
        pool.report("a", "y")

    assert pool.scores("x") == [1.0, 0.75]
    assert patient["absent"] == 0
    assert pool.scorer.discrepancies["absent"] == 1


def test_reports_that_are_older_than_a_second_are_read_once() -> None:
    pool = Pool("a")
    pool.send("x")
    for _ in range(10):
        pool.now += 1.0
        pool.scores("x")

    assert pool.scorer.discrepancies["absent"] == 0


def test_within_a_second_no_report_is_read() -> None:
    pool = Pool("a", "b")
    pool.report("a")
    pool.now += 0.5

    pool.rows[0] = replace(
        pool.rows[0], metrics=replace(pool.rows[0].metrics, running_adapters=frozenset("t"))
    )
    early = pool.scores("t")
    pool.now += 0.5

    assert early == [0.75, 0.75]
    assert pool.scores("t") == [1.0, 0.75]


def test_different_lists_tell_what_waits_then_and_later() -> None:
    """Up to vLLM 0.10.2; equal lists mean there that requests wait for all that runs."""
    pool = Pool("a")
    pool.report("a", "x y", "z")
    waits_for_another = pool.scores("x")

    pool.report("a", "x y", "x y")

    assert waits_for_another == [1.0]
    assert pool.scores("x") == [0.5]
    assert pool.scores("z") == [pytest.approx(0.025)]


def test_equal_lists_alone_tell_nothing_of_waiting() -> None:
    pool = Pool("a")
    pool.report("a", "x y", "x y")

    assert pool.scores("x") == [1.0]


def test_an_endpoint_that_restarts_under_its_address_runs_what_it_then_reports() -> None:
    """Its requests fail at the gateway, which ends them here."""
    pool = Pool("a")
    ends = [pool.send(adapter) for adapter in "xy"]
    pool.report("a", "x y theirs")
    for end in ends:
        end(TerminationCause.MODEL_SERVER_ERROR)

    pool.report("a")

    assert pool.scores("x") == [0.75]
    assert (pool.state("openRequests"), pool.state("othersAdapters")) == (0, 0)


def test_an_endpoint_that_leaves_and_returns_starts_empty() -> None:
    pool = Pool("a", "b")
    end = pool.send("x")
    pool.report("a", "x theirs")
    pool.stop("a")
    pool.scores("x")

    pool.start("a")
    returned = pool.scores("x")
    end()

    assert returned == [0.75, 0.75]
    assert pool.scores("theirs") == [0.75, 0.75]
    assert pool.state("openRequests") == 0


def test_an_end_that_is_told_twice_counts_once() -> None:
    pool = Pool("a")
    end = pool.send("x")
    pool.send("x")

    end()
    end()

    assert pool.state("openRequests") == 1


def test_an_end_without_a_beginning_changes_nothing() -> None:
    pool = Pool("a")
    stranger = request(model="x")

    pool.scorer.on_response_complete(
        stranger, routed_to(pool.rows[0]), TerminationCause.DRAINED, None
    )

    assert pool.state("openRequests") == 0


def test_requests_with_one_id_are_two_requests() -> None:
    pool = Pool("a")
    first = pool.send("x")
    pool.send("y")

    first()

    assert (pool.state("openRequests"), pool.state("openAdapters")) == (1, 1)


def test_ten_thousand_adapters_that_come_and_go_leave_what_the_slots_hold() -> None:
    pool = Pool("a", "b")
    for at in range(10_000):
        end = pool.send(f"adapter-{at}", "ab"[at % 2])
        if at % 100 == 0:
            pool.report("a", f"others-{at}")
        end()
    pool.report("a")

    assert pool.scorer.dump_state() == {
        "endpoints": 2,
        "adapters": 2 * SLOTS,
        "openRequests": 0,
        "openAdapters": 0,
        "othersAdapters": 0,
        "residentAdapters": 2 * SLOTS,
        "discrepancies": {"absent": 0, "foreign": 100},
    }


def test_endpoints_that_are_gone_are_forgotten() -> None:
    pool = Pool("a")
    left_open = pool.send("x")
    for at in range(20):
        pool.start(f"passing-{at}")
        pool.scores("x")
        pool.send("y", f"passing-{at}")()
        pool.stop(f"passing-{at}")
    for _ in range(3):
        pool.now += ledger.FORGET_SECONDS + 1
        pool.scores("x")

    assert pool.state("endpoints") == 1
    assert pool.state("openRequests") == 1

    left_open()
    pool.now += 1_000
    pool.scores("x")

    assert pool.state("adapters") == 0


def test_more_endpoints_than_can_be_remembered_push_out_the_longest_unseen() -> None:
    book = ledger.Ledger(residency_seconds=60, changed=lambda _: None, max_endpoints=3)
    ended_late = None
    for number in range(5):
        name = str(number)
        one = Endpoint(EndpointId("default", name), name, 8000, metrics=EndpointMetrics())
        book.attend([one], float(number))
        held = book.begin(one, f"adapter-{number}", float(number))
        ended_late = ended_late or held

    book.end(ended_late, "adapter-0", 9.0)

    assert {"endpoints": 3, "adapters": 3, "openRequests": 3}.items() <= book.sizes().items()


def test_nothing_is_counted_for_the_base_model_or_without_adapters() -> None:
    pool = Pool("a")
    base = replace(pool.rows[0].metrics, base_models=frozenset({"llama"}))
    pool.rows[0] = replace(pool.rows[0], metrics=base)
    pool.scores("llama")
    pool.send("llama")
    pool.send("")

    pool.rows[0] = replace(pool.rows[0], metrics=EndpointMetrics())
    pool.scores("x")
    pool.send("x")

    assert pool.state("openRequests") == 0


def test_a_large_pool_is_read_in_portions() -> None:
    """No request pays for reading a thousand reports."""
    names = [str(at) for at in range(3 * ledger.RECONCILED_AT_ONCE)]
    pool = Pool(*names)
    pool.now += 1
    pool.rows = [
        replace(one, metrics=replace(one.metrics, running_adapters=frozenset("t")))
        for one in pool.rows
    ]

    found = [pool.scores("t").count(1.0) for _ in range(4)]

    portion = ledger.RECONCILED_AT_ONCE
    assert [portion, 2 * portion, 3 * portion, 3 * portion] == found


@pytest.mark.parametrize("model", ["x", "\udce9", "a,b"])
def test_names_that_clients_choose_are_no_danger(model: str) -> None:
    pool = Pool("a")
    asked: InferenceRequest = request(model=model)

    scores = pool.scorer.score(asked, EndpointView(pool.rows))

    assert scores == [0.75]


def test_what_ran_for_others_before_ours_came_still_does_when_ours_ends() -> None:
    pool = Pool("a", "b")
    pool.report("a", "x")

    pool.send("x")()
    after_ours = pool.scores("x")
    pool.report("a", "x")
    reported_again = pool.scores("x")
    pool.report("a", "")

    assert after_ours[0] > after_ours[1]
    assert reported_again[0] > reported_again[1]
    assert pool.state("othersAdapters") == 0


def test_discrepancies_are_counted_as_events_of_the_plugin() -> None:
    counted: list[str] = []
    scorer = LoRAAffinityScorer(
        context=PluginContext("lora", clock=lambda: 0.0, count=counted.append)
    )
    metrics = EndpointMetrics(max_adapters=2, running_adapters=frozenset("xy"))
    one = Endpoint(EndpointId("default", "a"), "a", 8000, metrics=metrics, stale=False)

    scorer.score(request(model="x"), EndpointView([one]))

    assert counted == ["lora-foreign", "lora-foreign"]
