"""The pickers: what they choose, and how often."""

import math
import random
from collections import Counter
from collections.abc import Callable, Sequence

import pytest

from epp.framework import Picker, PluginContext, ScoredEndpoint, ScoredView
from epp.testing import assert_conforms, endpoint, request
from epp_plugins.pickers.max_score import MaxScorePicker
from epp_plugins.pickers.uniform_random import RandomPicker
from epp_plugins.pickers.weighted_random import WeightedRandomPicker

PICKERS = [MaxScorePicker, RandomPicker, WeightedRandomPicker]

every_picker = pytest.mark.parametrize("make", PICKERS, ids=lambda one: one.__name__)


def context() -> PluginContext:
    """Return a context whose randomness is the same in every run."""
    return PluginContext("test", random=random.Random(7))


def scored(*scores: float) -> ScoredView:
    """Return endpoints named a, b, c and so on with these scores."""
    return ScoredView([endpoint(chr(97 + at)) for at in range(len(scores))], scores)


def names(picked: Sequence[ScoredEndpoint]) -> str:
    return "".join(one.endpoint.id.name for one in picked)


def draws(picker: Picker, candidates: ScoredView, count: int) -> Counter[str]:
    return Counter(names(picker.pick(request(), candidates)) for _ in range(count))


@every_picker
@pytest.mark.parametrize("count", [1, 2, 9])
def test_what_is_picked_are_distinct_candidates(make: Callable[..., Picker], count: int) -> None:
    assert_conforms(lambda: make(context=context(), max_num_of_endpoints=count))


@every_picker
@pytest.mark.parametrize(
    ("wanted", "candidates", "expected"),
    [(1, 3, 1), (2, 3, 2), (3, 1, 1), (2, 2, 2), (0, 3, 1), (-1, 3, 1)],
)
def test_as_many_are_picked_as_wanted_and_there(
    make: Callable[..., Picker], wanted: int, candidates: int, expected: int
) -> None:
    picker = make(context=context(), max_num_of_endpoints=wanted)

    picked = picker.pick(request(), scored(*[0.5] * candidates))

    assert expected == len(picked)


@every_picker
@pytest.mark.parametrize("wanted", [1, 2])
def test_equals_share_the_load(make: Callable[..., Picker], wanted: int) -> None:
    """In an idle pool all score alike; nobody may become hot by standing first."""
    picker = make(context=context(), max_num_of_endpoints=wanted)

    first = Counter(picker.pick(request(), scored(1, 1, 1))[0].endpoint.id.name for _ in range(300))

    assert all(70 <= first[name] <= 130 for name in "abc"), first


@every_picker
@pytest.mark.parametrize("wanted", [1, 2])
def test_scores_that_are_no_numbers_break_nothing(make: Callable[..., Picker], wanted: int) -> None:
    picker = make(context=context(), max_num_of_endpoints=wanted)

    picked = picker.pick(request(), scored(math.nan, math.nan, math.nan))

    assert wanted == len(set(names(picked)))


def test_the_highest_score_is_picked() -> None:
    picked = draws(MaxScorePicker(context=context()), scored(0.2, 1.1, 0.7), 50)

    assert picked == {"b": 50}


def test_fallbacks_follow_in_the_order_of_their_scores() -> None:
    picker = MaxScorePicker(context=context(), max_num_of_endpoints=3)

    picked = draws(picker, scored(0.2, 1.1, 0.7, -1), 50)

    assert picked == {"bca": 50}


@pytest.mark.parametrize("wanted", [1, 4])
@pytest.mark.parametrize("place", [0, 1, 2], ids=["first", "between", "last"])
def test_a_score_that_is_no_number_is_the_worst(place: int, wanted: int) -> None:
    picker = MaxScorePicker(context=context(), max_num_of_endpoints=wanted)
    scores = [0.5, 0.1]
    scores.insert(place, math.nan)

    best = picker.pick(request(), scored(*scores))[0]

    assert best.score == 0.5


def test_fallbacks_among_equals_vary() -> None:
    picker = MaxScorePicker(context=context(), max_num_of_endpoints=2)

    picked = draws(picker, scored(1, 1, 1), 200)

    assert {"ab", "ac", "ba", "bc", "ca", "cb"} == set(picked)


def test_the_random_picker_ignores_scores() -> None:
    picked = draws(RandomPicker(context=context()), scored(0, 100, math.nan), 300)

    assert all(70 <= picked[name] <= 130 for name in "abc"), picked


def test_an_endpoint_with_more_score_is_picked_more_often() -> None:
    picked = draws(WeightedRandomPicker(context=context()), scored(1, 3, 0), 4000)

    assert pytest.approx(0.75, abs=0.03) == picked["b"] / 4000
    assert picked["c"] == 0


def test_weights_far_apart_or_tiny_keep_their_shares() -> None:
    """Powers of a random number would all underflow to zero here."""
    picked = draws(WeightedRandomPicker(context=context()), scored(1e-300, 3e-300), 4000)

    assert pytest.approx(0.75, abs=0.03) == picked["b"] / 4000


def test_endpoints_without_weight_are_the_last_fallbacks() -> None:
    picker = WeightedRandomPicker(context=context(), max_num_of_endpoints=4)

    picked = draws(picker, scored(0, 0.5, -1, math.nan), 100)

    assert all(order.startswith("b") for order in picked)
    assert len(picked) == 6
