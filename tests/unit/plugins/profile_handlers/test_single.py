"""The handler of a single profile."""

from epp.framework import ProfileResult, SchedulingResult, ScoredEndpoint
from epp.testing import endpoint, request
from epp_plugins.profile_handlers.single import SingleProfileHandler

CHOSEN = endpoint()
RESULTS = {"default": ProfileResult([ScoredEndpoint(CHOSEN, 1.0)], [CHOSEN], {})}


def test_the_profile_runs() -> None:
    names = SingleProfileHandler().pick_profiles(request(), ["default"], {})

    assert list(names) == ["default"]


def test_the_profile_runs_once() -> None:
    names = SingleProfileHandler().pick_profiles(request(), ["default"], RESULTS)

    assert list(names) == []


def test_the_profiles_result_is_the_result() -> None:
    result = SingleProfileHandler().process_results(request(), RESULTS)

    assert SchedulingResult(RESULTS, "default") == result
    assert CHOSEN is result.endpoint
