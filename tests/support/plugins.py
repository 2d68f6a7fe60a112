"""Plugins that misbehave, or wait, and a registry that knows them beside the in-tree ones."""

import asyncio
import time
from collections.abc import Collection, Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from epp.framework import (
    AttributeKey,
    BadRequest,
    Endpoint,
    EndpointView,
    InferenceRequest,
    Registry,
    ScoredEndpoint,
    ScoredView,
)
from epp.framework.registry import ENTRY_POINT_GROUP

SECRET = "CANARY-of-a-plugin"


def registry() -> Registry:
    """The in-tree plugins and those of this module."""
    ours = {
        "failing-scorer": FailingScorer,
        "short-scorer": ShortScorer,
        "wild-scorer": WildScorer,
        "failing-filter": FailingFilter,
        "name-filter": NameFilter,
        "failing-picker": FailingPicker,
        "empty-picker": EmptyPicker,
        "failing-handler": FailingHandler,
        "endless-handler": EndlessHandler,
        "failing-producer": FailingProducer,
        "slow-producer": SlowProducer,
        "failing-parser": FailingParser,
        "failing-hooks": FailingHooks,
        "refusing-scorer": RefusingScorer,
        "refusing-picker": RefusingPicker,
        "refusing-hooks": RefusingHooks,
        "header-hook": HeaderHook,
        "needy-scorer": NeedyScorer,
        "facts": Facts,
        "reads-facts": ReadsFacts,
        "facts-of-facts": FactsOfFacts,
        "response-hook": ResponseHook,
        "nonsense-picker": NonsensePicker,
        "rude-hook": RudeHook,
        "doubling-filter": DoublingFilter,
        "reusing-scorer": ReusingScorer,
        "slow-scorer": SlowScorer,
        "exiting-scorer": ExitingScorer,
        "silent-dumper": SilentDumper,
    }
    points = [
        EntryPoint(name, f"{__name__}:{one.__name__}", ENTRY_POINT_GROUP)
        for name, one in ours.items()
    ]
    return Registry([*entry_points(group=ENTRY_POINT_GROUP), *points])


class FailingScorer:
    def score(self, request: InferenceRequest, endpoints: EndpointView) -> Sequence[float]:
        raise RuntimeError(SECRET)


class ShortScorer:
    def score(self, request: InferenceRequest, endpoints: EndpointView) -> Sequence[float]:
        return []


class WildScorer:
    """Scores outside [0, 1], and none at all."""

    def score(self, request: InferenceRequest, endpoints: EndpointView) -> Sequence[float]:
        return [7.0, -3.0, float("nan")][: len(endpoints)]


class FailingFilter:
    def filter(self, request: InferenceRequest, endpoints: EndpointView) -> Sequence[Endpoint]:
        raise RuntimeError(SECRET)


class NameFilter:
    """Keeps endpoints by name, so that tests can see who was asked for what."""

    def __init__(self, *, keep: list[str]) -> None:
        self._keep = keep

    def filter(self, request: InferenceRequest, endpoints: EndpointView) -> Sequence[Endpoint]:
        return [endpoint for endpoint in endpoints if endpoint.id.name in self._keep]


class FailingPicker:
    def pick(self, request: InferenceRequest, scored: ScoredView) -> Sequence[ScoredEndpoint]:
        raise RuntimeError(SECRET)


class EmptyPicker:
    def pick(self, request: InferenceRequest, scored: ScoredView) -> Sequence[ScoredEndpoint]:
        return []


class FailingHandler:
    def pick_profiles(self, *_: Any) -> Collection[str]:
        raise RuntimeError(SECRET)

    def process_results(self, *_: Any) -> Any:
        raise RuntimeError(SECRET)


class EndlessHandler:
    """Asks for the same profile for ever."""

    def pick_profiles(self, _: Any, profiles: Collection[str], __: Any) -> Collection[str]:
        return profiles

    def process_results(self, *_: Any) -> Any:
        raise RuntimeError(SECRET)


class FailingProducer:
    produces: AttributeKey[int] = AttributeKey("failing")

    def produce(self, request: InferenceRequest, endpoints: EndpointView) -> int:
        raise RuntimeError(SECRET)


class SlowProducer:
    """Waits for something that takes its time."""

    produces: AttributeKey[str] = AttributeKey("slow")

    def __init__(self, *, seconds: float) -> None:
        self._seconds = seconds

    async def produce(self, request: InferenceRequest, endpoints: EndpointView) -> str:
        await asyncio.sleep(self._seconds)
        return "in time"


class FailingParser:
    claims = ("v1/completions",)

    def parse_request(self, *_: Any) -> Any:
        raise RuntimeError(SECRET)

    def parse_usage(self, document: bytes) -> Any:
        raise RuntimeError(SECRET)

    def rewrite_model(self, body: bytes, model: str) -> bytes:
        raise RuntimeError(SECRET)


class FailingHooks:
    def pre_request(self, *_: Any) -> Mapping[str, str]:
        raise RuntimeError(SECRET)

    def on_response_complete(self, *_: Any) -> None:
        raise RuntimeError(SECRET)


class RefusingScorer:
    """Takes a preference for a place to refuse requests in."""

    def score(self, request: InferenceRequest, endpoints: EndpointView) -> Sequence[float]:
        raise BadRequest(SECRET)


class RefusingPicker:
    def pick(self, request: InferenceRequest, scored: ScoredView) -> Sequence[ScoredEndpoint]:
        raise BadRequest(SECRET)


class RefusingHooks:
    def pre_request(self, *_: Any) -> Mapping[str, str]:
        raise BadRequest(SECRET)

    def on_response_complete(self, *_: Any) -> None:
        raise BadRequest(SECRET)


class HeaderHook:
    def pre_request(self, request: InferenceRequest, result: Any) -> Mapping[str, str]:
        return {"x-picked": result.endpoint.id.name}


class ResponseHook:
    """Tells the client which endpoint was chosen, and counts responses that began."""

    def __init__(self) -> None:
        self.begun = 0

    def response_headers(self, request: InferenceRequest, result: Any) -> Mapping[str, str]:
        return {"x-chosen": result.endpoint.id.name}

    def on_first_byte(self, request: InferenceRequest, result: Any) -> None:
        self.begun += 1


FACTS: AttributeKey[int] = AttributeKey("facts")
MORE: AttributeKey[int] = AttributeKey("more-facts")


class Facts:
    produces = FACTS

    def produce(self, request: InferenceRequest, endpoints: EndpointView) -> int:
        return 1


class ReadsFacts:
    produces = MORE
    consumes = (FACTS,)

    def produce(self, request: InferenceRequest, endpoints: EndpointView) -> int:
        return 1 + (request.attributes.get(FACTS) or 0)


class FactsOfFacts(Facts):
    consumes = (MORE,)


class NonsensePicker:
    def pick(self, request: InferenceRequest, scored: ScoredView) -> Any:
        return [scored[0], "x"]


class RudeHook:
    """Sets what is no header's value, or not its to set."""

    def __init__(self, *, name: str = "x-a", value: Any = 1) -> None:
        self._headers = {name: value}

    def pre_request(self, request: InferenceRequest, result: Any) -> Mapping[str, Any]:
        return self._headers


class DoublingFilter:
    def filter(self, request: InferenceRequest, endpoints: EndpointView) -> Sequence[Endpoint]:
        return [endpoints[0], endpoints[0]]


class ReusingScorer:
    """Returns one list again and again, each time with other numbers in it."""

    def __init__(self) -> None:
        self._scores: list[float] = []
        self._calls = 0

    def score(self, request: InferenceRequest, endpoints: EndpointView) -> Sequence[float]:
        self._calls += 1
        self._scores[:] = [0.0] * len(endpoints)
        if self._calls > 1:
            self._scores[-1] = 99.0
        return self._scores


class SlowScorer:
    """Takes its time, by the clock that it is given."""

    def __init__(self, *, seconds: float) -> None:
        self._seconds = seconds

    def score(self, request: InferenceRequest, endpoints: EndpointView) -> Sequence[float]:
        until = time.perf_counter() + self._seconds
        while time.perf_counter() < until:
            pass
        return [0.0] * len(endpoints)


class ExitingScorer:
    def score(self, request: InferenceRequest, endpoints: EndpointView) -> Sequence[float]:
        raise SystemExit(3)


class SilentDumper(SlowScorer):
    def __init__(self) -> None:
        super().__init__(seconds=0.0)

    def dump_state(self) -> Mapping[str, Any]:
        raise RuntimeError(SECRET)


class NeedyScorer:
    """Reads an attribute that nobody produces."""

    consumes = (AttributeKey[int]("unheard-of"),)

    def score(self, request: InferenceRequest, endpoints: EndpointView) -> Sequence[float]:
        return [0.0] * len(endpoints)
