"""The levels of LoRA affinity."""

import pytest

from epp.framework import Endpoint, EndpointView
from epp.testing import endpoint, request
from epp_plugins.scorers.lora_affinity import LoRAAffinityScorer


def serving(
    running: str = "", waiting: str = "", slots: int = 0, *, stale: bool = False
) -> Endpoint:
    """Return an endpoint with these adapters, written as words."""
    return endpoint(
        running_adapters=frozenset(running.split()),
        waiting_adapters=frozenset(waiting.split()),
        max_adapters=slots,
        stale=stale,
    )


def scores_of(model: str, *pool: Endpoint) -> list[float]:
    return list(LoRAAffinityScorer().score(request(model=model), EndpointView(pool)))


@pytest.mark.parametrize(
    ("candidate", "expected"),
    [
        pytest.param(serving("x", "", 5), 1.0, id="it-runs-there"),
        pytest.param(serving("x y", "", 2), 1.0, id="it-runs-there-and-the-slots-are-taken"),
        pytest.param(serving("a", "x", 5), 0.8, id="room-beats-waiting"),
        pytest.param(serving("a", "", 2), 0.8, id="room-for-it"),
        pytest.param(serving("b", "x", 2), 0.6, id="it-waits-there-and-the-slots-are-taken"),
        pytest.param(serving("c d", "", 2), 0.0, id="the-slots-run-others"),
        pytest.param(serving("a", "b", 2), 0.0, id="the-slots-run-and-await-others"),
        pytest.param(serving("a b", "b c", 4), 0.8, id="running-and-waiting-takes-one-slot"),
        pytest.param(serving("a b", "b x", 3), 0.6, id="running-and-waiting-and-no-slot-left"),
        pytest.param(serving(), 0.0, id="no-adapters-reported"),
    ],
)
def test_the_level_follows_from_the_adapters(candidate: Endpoint, expected: float) -> None:
    score = scores_of("x", candidate)

    assert [expected] == score


def test_the_base_model_prefers_endpoints_with_room() -> None:
    scores = scores_of("base", serving("a b", "", 2), serving("a", "", 2))

    assert scores == [0.0, 0.8]


def test_without_any_adapters_in_the_pool_all_score_alike_stale_ones_too() -> None:
    scores = scores_of("base", serving(), serving(), serving(stale=True))

    assert len(set(scores)) == 1


def test_what_a_stale_endpoint_ran_once_counts_as_room() -> None:
    scores = scores_of("x", serving("x", "", 2), serving("x", "", 2, stale=True))

    assert scores == [1.0, 0.8]


def test_a_stale_endpoint_is_no_better_than_the_best_known() -> None:
    scores = scores_of("x", serving("b", "x", 1), serving("b", "", 1), serving(stale=True))

    assert scores == [0.6, 0.0, 0.6]


def test_where_all_are_stale_all_have_room() -> None:
    scores = scores_of("x", serving("x", "", 2, stale=True), serving(stale=True))

    assert scores == [0.8, 0.8]


def test_no_candidates_have_no_scores() -> None:
    scores = scores_of("x")

    assert scores == []


def test_the_levels_can_be_set() -> None:
    scorer = LoRAAffinityScorer(active_score=0.9, room_score=0.7, waiting_score=0.5, full_score=0.1)
    pool = [serving("x"), serving(slots=1), serving("a", "x", 1), serving("a", "", 1)]

    scores = scorer.score(request(model="x"), EndpointView(pool))

    assert scores == [0.9, 0.7, 0.5, 0.1]


@pytest.mark.parametrize("wrong", [-0.1, 1.1, float("nan")])
@pytest.mark.parametrize("name", ["active_score", "room_score", "waiting_score", "full_score"])
def test_a_level_outside_of_0_to_1_is_refused(name: str, wrong: float) -> None:
    with pytest.raises(ValueError, match=r"parameters\.\w+Score must be from 0 to 1, got"):
        LoRAAffinityScorer(**{name: wrong})
