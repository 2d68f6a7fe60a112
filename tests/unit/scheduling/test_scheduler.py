"""The choice: weights add up, the best wins, and several profiles take turns."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from epp.config.loader import BuiltProfile, Configuration
from epp.framework import (
    EndpointView,
    InferenceRequest,
    PluginInstance,
    ProfileResult,
    SchedulingResult,
)
from epp.observability.metrics import Metrics
from epp.scheduling.scheduler import CHEAP_PICK, Scheduler
from epp.testing import endpoint, request
from support.core import Core


class Fixed:
    """Scores by the endpoints' names."""

    def __init__(self, **scores: float) -> None:
        self._scores = scores

    def score(self, _: InferenceRequest, endpoints: EndpointView) -> Sequence[float]:
        return [self._scores[one.id.name] for one in endpoints]


class Best:
    def pick(self, _: Any, scored: Sequence[Any]) -> Sequence[Any]:
        return [max(scored, key=lambda one: one.score)]


class TwoSteps:
    """Runs profile `a`, then `b`; routes to what `b` chose."""

    def pick_profiles(
        self, _: Any, profiles: Collection[str], results: Mapping[str, ProfileResult]
    ) -> Collection[str]:
        return [name for name in sorted(profiles) if name not in results][:1]

    def process_results(self, _: Any, results: Mapping[str, ProfileResult]) -> SchedulingResult:
        return SchedulingResult(results, self.primary)

    primary = "b"


class Stranger(TwoSteps):
    primary = "c"


class AsksForAnother(TwoSteps):
    def pick_profiles(self, *_: Any) -> Collection[str]:
        return ["c"]


def plugin(one: Any) -> PluginInstance:
    return PluginInstance(type(one).__name__, type(one).__name__, one)


def scheduler(handler: Any, *profiles: BuiltProfile, rng: Any) -> Scheduler:
    configuration = Configuration(
        plugins=(),
        profiles=profiles,
        profile_handler=plugin(handler),
        parsers=(),
        source=None,
        extractor=None,
        discovery=None,
        warnings=(),
    )
    return Scheduler(configuration, Metrics(), rng)


def profile(name: str, *scorers: tuple[Any, float]) -> BuiltProfile:
    return BuiltProfile(
        name, [], [(plugin(one), weight) for one, weight in scorers], plugin(Best())
    )


POOL = EndpointView([endpoint("x"), endpoint("y")])


def test_weighted_scores_add_up(rng: Any) -> None:
    one = scheduler(
        TwoSteps(),
        profile("b", (Fixed(x=1.0, y=0.0), 1.0), (Fixed(x=0.0, y=0.6), 2.0)),
        rng=rng,
    )

    result = one.schedule(request(), POOL)

    assert result.endpoint.id.name == "y"
    assert result.profiles["b"].picked[0].score == pytest.approx(1.2)


def test_a_weight_of_zero_counts_for_nothing(rng: Any) -> None:
    one = scheduler(
        TwoSteps(),
        profile("b", (Fixed(x=1.0, y=0.0), 0.0), (Fixed(x=0.0, y=0.1), 0.5)),
        rng=rng,
    )

    assert one.schedule(request(), POOL).endpoint.id.name == "y"


def test_profiles_run_until_none_is_asked_for(rng: Any) -> None:
    one = scheduler(
        TwoSteps(),
        profile("a", (Fixed(x=1.0, y=0.0), 1.0)),
        profile("b", (Fixed(x=0.0, y=1.0), 1.0)),
        rng=rng,
    )

    result = one.schedule(request(), POOL)

    assert {name: run.picked[0].endpoint.id.name for name, run in result.profiles.items()} == {
        "a": "x",
        "b": "y",
    }
    assert result.endpoint.id.name == "y"


@pytest.mark.parametrize("handler", [Stranger(), AsksForAnother()])
def test_a_handler_that_errs_is_answered_for(handler: Any, rng: Any) -> None:
    one = scheduler(handler, profile("a"), profile("b"), rng=rng)

    assert one.schedule(request(), POOL).primary == CHEAP_PICK


def test_the_cheap_pick_is_the_shortest_queue(rng: Any) -> None:
    pool = EndpointView([endpoint("x", waiting=3), endpoint("y", waiting=1), endpoint("z")])
    one = scheduler(AsksForAnother(), profile("a"), rng=rng)

    assert one.schedule(request(), pool).endpoint.id.name == "z"


async def test_lora_requests_go_where_their_adapter_runs() -> None:
    data = Path(__file__).parents[2] / "data" / "field-config.yaml"
    core = Core(
        [{"name": "a", "loras": ["x"], "max": 2}, {"name": "b", "loras": ["y"], "max": 2}],
        config=data,
    )

    picked = {await core.pick(b'{"model":"y","prompt":"p%d"}' % at) for at in range(5)}

    assert picked == {"192.168.1.2:8000"}


async def test_a_shared_prefix_returns_to_its_endpoint() -> None:
    core = Core([{"name": name} for name in "abc"])
    body = b'{"model":"m","prompt":"%s"}' % (b"once upon a time " * 200)
    first = await core.pick(body)

    assert {await core.pick(body) for _ in range(5)} == {first}
