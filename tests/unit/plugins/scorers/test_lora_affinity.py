"""The levels of LoRA affinity, and what decides among equals."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from epp.framework import (
    Endpoint,
    EndpointView,
    PluginContext,
    ProfileResult,
    SchedulingResult,
    ScoredEndpoint,
    TerminationCause,
)
from epp.testing import endpoint, request
from epp_plugins.scorers.lora_affinity import LoRAAffinityScorer
from epp_plugins.scorers.lora_affinity.ledger import MAX_NAMES

FIELD = {
    "room_score": 0.8,
    "waiting_score": 0.6,
    "graded": False,
    "tie_score": 0.0,
    "spread_requests": 0,
}
"""The field's rule."""


def serving(
    running: str = "", waiting: str = "", slots: int = 0, *, name: str = "a", **more: Any
) -> Endpoint:
    """Return an endpoint with these adapters, written as words."""
    return endpoint(
        name,
        address=f"10.0.0.{ord(name[-1])}",
        running_adapters=frozenset(running.split()),
        waiting_adapters=frozenset(waiting.split()),
        max_adapters=slots,
        **more,
    )


def scorer(**parameters: Any) -> LoRAAffinityScorer:
    return LoRAAffinityScorer(
        context=PluginContext("lora", clock=lambda: 0.0), **({"tie_score": 0.0} | parameters)
    )


def scores_of(model: str, *pool: Endpoint, **parameters: Any) -> list[float]:
    return list(scorer(**parameters).score(request(model=model), EndpointView(pool)))


def send(one: LoRAAffinityScorer, model: str, to: Endpoint) -> Mapping[str, Any]:
    """Route a request; return what its end takes."""
    asked = request(model=model)
    picked = ProfileResult([ScoredEndpoint(to, 1.0)], [to], {})
    result = SchedulingResult({"default": picked}, "default")
    one.pre_request(asked, result)
    return {
        "request": asked,
        "result": result,
        "cause": TerminationCause.COMPLETED,
        "usage": None,
    }


@pytest.mark.parametrize(
    ("candidate", "expected"),
    [
        pytest.param(serving("x", "", 5), 1.0, id="it-runs-there"),
        pytest.param(serving("x y", "", 2), 1.0, id="it-runs-there-and-the-slots-are-taken"),
        pytest.param(serving("x y", "x", 2), 0.5, id="it-runs-and-requests-wait-for-it"),
        pytest.param(serving("x y", "x", 3), 0.75, id="requests-wait-for-it-beside-room"),
        pytest.param(serving("x y", "x y", 2), 1.0, id="equal-lists-say-nothing-of-waiting"),
        pytest.param(serving("a", "x", 5), 0.75, id="room-beats-waiting"),
        pytest.param(serving("a", "", 2), 0.75, id="room-for-it"),
        pytest.param(serving("", "", 2), 0.75, id="idle"),
        pytest.param(serving("a b", "b c", 4), 0.75, id="running-and-waiting-takes-one-slot"),
        pytest.param(serving("b", "x", 2), 0.5, id="it-waits-there-and-the-slots-are-taken"),
        pytest.param(serving("b c", "x", 2), 0.025, id="it-is-the-one-too-many"),
        pytest.param(serving("c d", "", 2), 0.025, id="it-would-be-the-one-too-many"),
        pytest.param(serving("c d", "e", 2), 0.00125, id="one-more-waits-for-a-slot"),
        pytest.param(serving("c d", "e f", 2), 0.0000625, id="two-more-wait-for-a-slot"),
    ],
)
def test_the_level_follows_from_the_adapters(candidate: Endpoint, expected: float) -> None:
    score = scores_of("x", candidate)

    assert [pytest.approx(expected)] == score


@pytest.mark.parametrize(
    ("candidate", "expected"),
    [
        pytest.param(serving("x", "", 5), 1.0, id="it-runs-there"),
        pytest.param(serving("x", "x", 1), 1.0, id="it-runs-and-waits"),
        pytest.param(serving("a", "x", 5), 0.8, id="room-beats-waiting"),
        pytest.param(serving("a", "", 2), 0.8, id="room-for-it"),
        pytest.param(serving("b", "x", 2), 0.6, id="it-waits-there"),
        pytest.param(serving("b c", "x d", 2), 0.6, id="it-waits-there-among-others"),
        pytest.param(serving("c d", "", 2), 0.0, id="the-slots-run-others"),
        pytest.param(serving("b", "c", 2), 0.0, id="the-slots-run-and-await-others"),
        pytest.param(serving(), 0.0, id="no-adapters-reported"),
        pytest.param(serving("a b", "b c", 4), 0.8, id="running-and-waiting-takes-one-slot"),
    ],
)
def test_the_rule_of_the_field_can_be_had_exactly(candidate: Endpoint, expected: float) -> None:
    score = scores_of("x", candidate, serving("z", slots=1, name="z"), **FIELD)

    assert expected == score[0]


def test_the_levels_can_be_set() -> None:
    levels = {"active_score": 0.9, "room_score": 0.7, "waiting_score": 0.5, "full_score": 0.1}
    pool = [serving("x"), serving(slots=1), serving("a", "x", 1), serving("a", "", 1)]

    graded = scores_of("x", *pool, **levels)
    plain = scores_of("x", *pool, **levels, graded=False)

    assert pytest.approx([0.9, 0.7, 0.12, 0.12]) == graded
    assert plain == [0.9, 0.7, 0.5, 0.1]


# Who is asked for no adapter, or does not say


@pytest.mark.parametrize("model", ["llama", ""])
def test_requests_for_the_base_model_see_no_difference(model: str) -> None:
    base = frozenset({"llama"})
    pool = [
        serving("llama x", "", 2, base_models=base),
        serving("", "", 2, base_models=base),
        serving(stale=True),
    ]

    scores = scores_of(model, *pool)

    assert len(set(scores)) == 1


def test_without_any_adapters_in_the_pool_all_score_alike_stale_ones_too() -> None:
    scores = scores_of("x", serving(), serving(), serving(stale=True), tie_score=0.2)

    assert len(set(scores)) == 1


def test_an_endpoint_that_reports_no_adapters_is_the_last_resort_for_one() -> None:
    scores = scores_of("x", serving(), serving("a b", "", 2))

    assert scores == [0.0, pytest.approx(0.025)]


def test_an_adapter_sent_to_an_endpoint_that_reports_none_does_not_make_it_one_that_does() -> None:
    plain, lora = serving(name="a"), serving("", "", 2, name="b")
    one = scorer(spread_requests=0)
    view = EndpointView([plain, lora])
    one.score(request(model="x"), view)
    send(one, "x", plain)

    scores = one.score(request(model="x"), view)

    assert scores == [0.0, 0.75]


def test_what_a_stale_endpoint_ran_once_counts_as_room() -> None:
    scores = scores_of("x", serving("x", "", 2), serving("x", "", 2, stale=True))

    assert scores == [1.0, 0.75]


def test_a_stale_endpoint_is_no_better_than_the_best_known() -> None:
    scores = scores_of("x", serving("b", "x", 2), serving("b", "", 1), serving(stale=True))

    assert pytest.approx([0.5, 0.025, 0.5]) == scores


def test_where_all_are_stale_all_have_room() -> None:
    scores = scores_of("x", serving("x", "", 2, stale=True), serving(stale=True), tie_score=0.2)

    assert scores == [0.75, 0.75]


def test_no_candidates_have_no_scores() -> None:
    assert scores_of("x") == []


# Own requests


def test_an_adapter_runs_from_the_moment_a_request_for_it_is_sent() -> None:
    here, there = serving("", "", 2, name="a"), serving("", "", 2, name="b")
    one = scorer(spread_requests=0)
    view = EndpointView([here, there])
    one.score(request(model="x"), view)

    ending = send(one, "x", here)
    during = one.score(request(model="x"), view)
    one.on_response_complete(**ending)
    after = one.score(request(model="x"), view)

    assert during == [1.0, 0.75]
    assert after == [0.75, 0.75]


def test_own_adapters_take_slots_between_two_scrapes() -> None:
    here = serving("", "", 2)
    one = scorer()
    view = EndpointView([here])
    one.score(request(model="x"), view)
    for adapter in "ab":
        send(one, adapter, here)

    assert one.score(request(model="x"), view) == [pytest.approx(0.025)]


def test_an_adapter_goes_nowhere_else_while_those_that_run_it_have_few_requests() -> None:
    here, room = serving("", "", 2, name="a"), serving("", "", 2, name="b")
    full = serving("c d", "", 2, name="c")
    one = scorer(spread_requests=3)
    view = EndpointView([here, room, full])
    one.score(request(model="x"), view)
    for adapter in "xxy":
        scores = one.score(request(model="x"), view)
        send(one, adapter, here)

    assert scores == [1.0, pytest.approx(0.075), 0.0]
    assert one.score(request(model="x"), view) == [1.0, 0.75, pytest.approx(0.025)]


def test_requests_that_wait_where_it_runs_let_it_go_elsewhere() -> None:
    here, there = serving("", "", 2, name="a"), serving("", "", 2, name="b")
    one = scorer(spread_requests=20)
    busy = replace(here, metrics=replace(here.metrics, waiting=1))
    view = EndpointView([busy, there])
    one.score(request(model="x"), view)
    send(one, "x", here)

    assert one.score(request(model="x"), view) == [1.0, 0.75]


def test_where_it_runs_only_on_a_stale_endpoint_it_may_go_anywhere() -> None:
    here, there = serving("", "", 2, name="a"), serving("", "", 2, name="b")
    one = scorer(spread_requests=20)
    one.score(request(model="x"), EndpointView([here, there]))
    send(one, "x", here)
    view = EndpointView([replace(here, stale=True), there])

    assert one.score(request(model="x"), view) == [0.75, 0.75]


# Among equals


def test_an_adapter_that_ran_lately_is_likely_to_be_in_memory() -> None:
    """Engines report use and not residency (an idle adapter looks absent)."""
    pool = [serving("", "", 2, name=name) for name in "abc"]
    one = scorer(tie_score=0.2)
    view = EndpointView(pool)
    one.score(request(model="x"), view)

    one.on_response_complete(**send(one, "x", pool[1]))

    assert one.score(request(model="x"), view) == [0.75, 0.95, 0.75]


def test_residency_ends_with_time_and_with_the_slots() -> None:
    now = 0.0
    one = LoRAAffinityScorer(
        context=PluginContext("lora", clock=lambda: now), residency_seconds=60, tie_score=0.2
    )
    pool = [serving("", "", 2, name=name) for name in "abc"]
    view = EndpointView(pool)
    one.score(request(model="x"), view)
    for adapter in "xyz":
        one.on_response_complete(**send(one, adapter, pool[1]))
    pushed_out = one.dump_state()["residentAdapters"]

    now = 61.0
    one.score(request(model="x"), view)

    assert pushed_out == 2
    assert one.dump_state()["residentAdapters"] == 0
    assert one.dump_state()["adapters"] == 0


def test_an_adapter_without_history_has_one_home_in_every_picker_and_any_order() -> None:
    pool = [serving("", "", 4, name=name) for name in "abcdefgh"]
    homes = []
    for rows in (pool, pool[::-1], [*pool[3:], *pool[:3]]):
        scores = scores_of("some-adapter", *rows, tie_score=0.2)
        homes.append(rows[scores.index(max(scores))].id.name)

    assert len(set(homes)) == 1
    assert sorted(set(scores)) == [0.75, 0.95]


def test_homes_spread_and_move_only_from_an_endpoint_that_goes() -> None:
    pool = [serving("", "", 4, name=name) for name in "abcdefgh"]

    def home(adapter: str, rows: list[Endpoint]) -> str:
        scores = scores_of(adapter, *rows, tie_score=0.2)
        return rows[scores.index(max(scores))].id.name

    before = {str(at): home(str(at), pool) for at in range(200)}
    after = {adapter: home(adapter, pool[1:]) for adapter in before}

    assert min([*before.values()].count(name) for name in "abcdefgh") > 10
    assert all(after[one] == name for one, name in before.items() if name != "a")


def test_an_endpoint_with_more_than_its_share_is_nobodys_home() -> None:
    crowded = serving("p q r", "", 8, name="a")
    pool = [crowded, *[serving("", "", 8, name=name) for name in "bcd"]]

    homes = set()
    for at in range(50):
        scores = scores_of(str(at), *pool, tie_score=0.2)
        homes.add(scores.index(max(scores)))

    assert homes == {1, 2, 3}


def test_where_it_runs_on_several_one_that_is_not_crowded_is_better() -> None:
    scores = scores_of("x", serving("x a b", "", 2), serving("x a", "", 2), tie_score=0.2)

    assert scores == [pytest.approx(0.9), 1.0]


@pytest.mark.parametrize("wrong", [-0.1, 1.1, float("nan")])
@pytest.mark.parametrize(
    "name", ["active_score", "room_score", "waiting_score", "full_score", "tie_score"]
)
def test_a_level_outside_of_0_to_1_is_refused(name: str, wrong: float) -> None:
    with pytest.raises(ValueError, match=r"parameters\.\w+Score must be from 0 to 1, got"):
        scorer(**{name: wrong})


@pytest.mark.parametrize("wrong", [-1, 10**10])
@pytest.mark.parametrize("name", ["spread_requests", "residency_seconds"])
def test_a_bound_out_of_range_is_refused(name: str, wrong: int) -> None:
    with pytest.raises(ValueError, match=r"parameters\.\w+ must be from 0 to \S+, got"):
        scorer(**{name: wrong})


# What was never loaded

NEVER_LOADED = [
    TerminationCause.REFUSED,
    TerminationCause.MODEL_SERVER_ERROR,
    TerminationCause.MOVED,
]


@pytest.mark.parametrize("cause", NEVER_LOADED)
def test_a_request_that_was_not_served_leaves_no_adapter_in_memory(cause: TerminationCause) -> None:
    view = EndpointView([serving("", "", 2, name=name) for name in "abc"])
    one = scorer(tie_score=0.2)
    one.score(request(model="x"), view)

    one.on_response_complete(**(send(one, "x", view[1]) | {"cause": cause}))

    assert one.dump_state()["residentAdapters"] == one.dump_state()["adapters"] == 0


@pytest.mark.parametrize("cause", NEVER_LOADED)
def test_names_that_are_refused_push_no_adapter_out(cause: TerminationCause) -> None:
    view = EndpointView([serving("", "", 4, name=name) for name in "abc"])
    one = scorer(tie_score=0.2)
    one.score(request(model="real"), view)
    one.on_response_complete(**send(one, "real", view[1]))
    before = one.score(request(model="real"), view)

    for at in range(50):
        ends = [send(one, f"nonsense-{at}-{more}", view[1]) for more in range(6)]
        crowded = one.score(request(model="real"), view)
        for end in ends:
            one.on_response_complete(**(end | {"cause": cause}))

    assert before == [0.75, 0.95, 0.75] == one.score(request(model="real"), view)
    assert crowded[1] < 0.1
    assert one.dump_state()["adapters"] == 1


def test_what_runs_takes_the_slots_of_what_ran_longest_ago() -> None:
    view = EndpointView([serving("", "", 2, name=name) for name in "ab"])
    one = scorer(tie_score=0.2)
    one.score(request(model="x"), view)
    for adapter in "xy":
        one.on_response_complete(**send(one, adapter, view[0]))
    send(one, "z", view[0])

    assert one.score(request(model="x"), view)[0] < 0.95
    assert one.score(request(model="y"), view)[0] == 0.95
    assert one.dump_state()["residentAdapters"] == 1


def test_names_of_ended_requests_are_bounded_while_no_report_is_read() -> None:
    view = EndpointView([serving("", "", 10**9, name=name) for name in "ab"])
    one = scorer()
    one.score(request(model="x"), view)
    for at in range(5000):
        one.on_response_complete(**send(one, f"n{at}", view[0]))
    [holding, _] = one._ledger.attending

    assert list(holding.ended) == [f"n{at}" for at in range(5000 - MAX_NAMES, 5000)]
    assert len(holding.resident) == MAX_NAMES
    assert one.dump_state()["adapters"] == MAX_NAMES


@pytest.mark.parametrize(("length", "remembered"), [(512, 1), (513, 0)])
def test_a_name_too_long_for_an_adapter_is_nobodys(length: int, remembered: int) -> None:
    view = EndpointView([serving("", "", 4, name="a"), serving("p q", "", 2, name="b")])
    one = scorer(tie_score=0.2)
    scores = one.score(request(model="n" * length), view)
    send(one, "n" * length, view[0])

    assert one.dump_state()["openRequests"] == remembered
    assert len(set(scores)) == 1 + remembered
