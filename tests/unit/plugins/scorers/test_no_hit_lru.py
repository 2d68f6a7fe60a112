"""New prompts go to whoever was seeded longest ago."""

from collections.abc import Sequence

import pytest

from epp.framework import (
    PREFIX_MATCH,
    Endpoint,
    EndpointView,
    InferenceRequest,
    PrefixMatch,
    ProfileResult,
    SchedulingResult,
    ScoredEndpoint,
)
from epp.testing import assert_conforms, choice, endpoint, request
from epp_plugins.scorers.no_hit_lru import NoHitLRUScorer


def pool(names: str = "abc") -> EndpointView:
    return EndpointView([endpoint(name) for name in names])


def matching(*blocks: int, candidates: Sequence[Endpoint] = ()) -> InferenceRequest:
    asked = request()
    asked.attributes.put(PREFIX_MATCH, PrefixMatch(blocks, 10, 64, candidates))
    return asked


def test_it_keeps_the_promises_of_its_extension_points() -> None:
    assert_conforms(NoHitLRUScorer)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        pytest.param("a", [1.0], id="one-candidate"),
        pytest.param("", [], id="no-candidates"),
        pytest.param("abc", [1.0, 0.5, 0.0], id="none-was-ever-seeded"),
    ],
)
def test_a_new_prompt_ranks_the_candidates(names: str, expected: list[float]) -> None:
    assert NoHitLRUScorer().score(request(), pool(names)) == expected


def test_cold_requests_go_round() -> None:
    scorer, endpoints = NoHitLRUScorer(), pool()
    best = []
    for _ in range(4):
        scores = scorer.score(request(), endpoints)
        chosen = endpoints[list(scores).index(1.0)]
        best.append(chosen.id.name)
        scorer.pre_request(request(), choice(chosen))

    assert best == ["a", "b", "c", "a"]


def test_after_the_first_its_endpoint_is_last_in_turn() -> None:
    scorer, endpoints = NoHitLRUScorer(), pool()
    scorer.pre_request(request(), choice(endpoints[0]))

    assert scorer.score(request(), endpoints) == [0.0, 1.0, 0.5]


def test_a_prompt_that_someone_holds_is_neutral_and_seeds_nobody() -> None:
    scorer, endpoints = NoHitLRUScorer(), pool()
    asked = matching(0, 3, 0, candidates=endpoints)
    scores = scorer.score(asked, endpoints)
    scorer.pre_request(asked, choice(endpoints[1], endpoints))

    assert scores == [0.5, 0.5, 0.5]
    assert scorer.dump_state() == {"endpoints": 0, "seeds": 0}


def test_a_prompt_that_only_a_removed_endpoint_holds_is_new() -> None:
    endpoints = pool()
    asked = matching(0, 3, 0, candidates=endpoints)

    scores = NoHitLRUScorer().score(asked, EndpointView([endpoints[0], endpoints[2]]))

    assert scores == [1.0, 0.0]


def test_endpoints_that_are_no_candidates_do_not_count() -> None:
    """The field ranks behind them too, so that the best candidate scores less than 1."""
    scorer, endpoints = NoHitLRUScorer(), pool()
    for one in endpoints:
        scorer.pre_request(request(), choice(one))

    assert scorer.score(request(), EndpointView(endpoints[1:])) == [1.0, 0.0]


def test_every_profiles_endpoint_is_seeded() -> None:
    scorer, endpoints = NoHitLRUScorer(), pool()
    profiles = {
        name: ProfileResult([ScoredEndpoint(endpoints[at], 1.0)], endpoints, {})
        for at, name in enumerate(("decode", "stage-before"))
    }
    scorer.pre_request(request(), SchedulingResult(profiles, "decode"))

    assert scorer.score(request(), endpoints) == [0.5, 0.0, 1.0]


def test_a_returning_endpoint_was_never_seeded() -> None:
    scorer, endpoints = NoHitLRUScorer(), pool("ab")
    for one in endpoints:
        scorer.pre_request(request(), choice(one))

    assert scorer.score(request(), EndpointView([endpoints[0], endpoint("b")])) == [0.0, 1.0]


def test_only_so_many_are_remembered() -> None:
    scorer = NoHitLRUScorer(lru_size=2)
    endpoints = pool()
    for one in endpoints:
        scorer.pre_request(request(), choice(one))

    assert scorer.dump_state() == {"endpoints": 2, "seeds": 3}
    assert scorer.score(request(), endpoints) == [1.0, 0.5, 0.0]


def test_the_fields_legacy_parameters_are_accepted() -> None:
    NoHitLRUScorer(prefix_plugin_type="prefix-cache-scorer", prefix_plugin_name="mine")


@pytest.mark.parametrize("size", [0, 2**31 + 1])
def test_a_size_that_makes_no_sense_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match=r"parameters\.lruSize must be from 1 to 2147483648, got"):
        NoHitLRUScorer(lru_size=size)
