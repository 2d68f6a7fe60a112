"""The kit that plugin authors test with finds what breaks a promise."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pytest

from epp.framework import (
    AttributeKey,
    EndpointView,
    InferenceRequest,
    ProfileResult,
    SchedulingResult,
)
from epp.testing import assert_conforms


class Producer:
    """Conforms, and wants its own attribute back."""

    produces: AttributeKey[int] = AttributeKey("some")

    def produce(self, request: InferenceRequest, endpoints: EndpointView) -> int:
        return len(endpoints)

    def on_first_byte(self, request: InferenceRequest, result: SchedulingResult) -> None:
        assert request.attributes.get(self.produces) == len(result.profiles["default"].candidates)

    def on_response_complete(self, request: InferenceRequest, *_: Any) -> None:
        assert request.attributes.get(self.produces) is not None


class WaitingProducer:
    produces: AttributeKey[int] = AttributeKey("some")

    async def produce(self, request: InferenceRequest, endpoints: EndpointView) -> int:
        raise NotImplementedError


class Handler:
    def __init__(self, rounds: Sequence[Collection[str]], primary: str = "default") -> None:
        self._rounds = list(rounds)
        self._primary = primary

    def pick_profiles(self, *_: Any) -> Collection[str]:
        return self._rounds.pop(0) if self._rounds else ()

    def process_results(
        self, request: InferenceRequest, results: Mapping[str, ProfileResult]
    ) -> SchedulingResult:
        return SchedulingResult(results, self._primary)


class PreRequestHook:
    def __init__(self, headers: Mapping[str, Any]) -> None:
        self._headers = headers

    def pre_request(self, *_: Any) -> Mapping[str, Any]:
        return self._headers


class ResponseHook(PreRequestHook):
    def response_headers(self, *_: Any) -> Mapping[str, Any]:
        return self._headers


class ForgetfulHook:
    """Breaks where a request ends before its response began."""

    def __init__(self) -> None:
        self._begun = False

    def on_first_byte(self, *_: Any) -> None:
        self._begun = True

    def on_response_complete(self, *_: Any) -> None:
        assert self._begun, "no response has begun"
        self._begun = False


class Scorer:
    def __init__(self, *scores: float) -> None:
        self._scores = scores

    def score(self, request: InferenceRequest, endpoints: EndpointView) -> Sequence[float]:
        return self._scores[: len(endpoints)]


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(Producer, id="a-producer"),
        pytest.param(WaitingProducer, id="a-producer-that-waits"),
        pytest.param(lambda: Handler([["default"]]), id="a-handler"),
        pytest.param(lambda: PreRequestHook({"x-some": "value"}), id="a-pre-request"),
        pytest.param(lambda: Scorer(0.0, 0.5, 1.0), id="a-scorer"),
    ],
)
def test_what_keeps_its_promises_conforms(make: Any) -> None:
    assert_conforms(make)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        pytest.param(object, "has none of the verbs", id="no-plugin"),
        pytest.param(lambda: Scorer(0.0, 2.0, 0.0), r"outside \[0, 1\]", id="a-wild-scorer"),
        pytest.param(lambda: Scorer(0.0), "1 scores for 2 endpoints", id="a-short-scorer"),
        pytest.param(lambda: Handler([["what"]]), r"unknown profiles: \['what'\]", id="unknown"),
        pytest.param(lambda: Handler([["default"]] * 99), "never stops", id="an-endless-handler"),
        pytest.param(lambda: Handler([["default"]], "what"), "'what' did not run", id="primary"),
        pytest.param(
            lambda: PreRequestHook({"X-Some": "value"}), "not in lower case", id="upper-case"
        ),
        pytest.param(lambda: ResponseHook({"x-some": 1}), "is no string: 1", id="no-string"),
        pytest.param(lambda: ResponseHook({"": ""}), "has no name", id="no-name"),
        pytest.param(ForgetfulHook, "no response has begun", id="no-first-byte"),
    ],
)
def test_what_breaks_one_is_found(make: Any, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        assert_conforms(make)
