"""The lookahead scorer: expected seconds to the first token, with speeds learned from responses."""

from collections.abc import Sequence

import pytest

from epp.framework import (
    INFLIGHT_LOAD,
    Endpoint,
    EndpointLoad,
    EndpointView,
    InferenceRequest,
    InFlightLoad,
    PluginContext,
    TerminationCause,
)
from epp.testing import assert_conforms, choice, endpoint, request
from epp_plugins.scorers.lookahead_load import LookaheadLoadScorer, _Speeds


class Bench:
    """A scorer with a clock in its hand, over endpoints `a` and `b`."""

    def __init__(self, *, peak: float = 1000.0, scale: float = 1.0) -> None:
        self.now = 1000.0
        self.scorer = LookaheadLoadScorer(
            context=PluginContext("lookahead", clock=lambda: self.now),
            peak_prefill_throughput=peak,
            scale_seconds=scale,
        )
        self.pool: Sequence[Endpoint] = EndpointView([endpoint("a"), endpoint("b")])

    def asked(self, tokens: Sequence[int], own: Sequence[int]) -> InferenceRequest:
        asked = request(stream=True)
        load = InFlightLoad([0] * len(tokens), tokens, own, max(own), self.pool)
        asked.attributes.put(INFLIGHT_LOAD, load)
        return asked

    def score(self, tokens: Sequence[int], own: Sequence[int]) -> Sequence[float]:
        return self.scorer.score(self.asked(tokens, own), EndpointView(self.pool))

    def serve(
        self,
        seconds: float,
        *,
        at: int = 0,
        tokens: int = 4000,
        cause: TerminationCause = TerminationCause.COMPLETED,
        stream: bool = True,
    ) -> None:
        """One request from its choice to its end, its first byte after so many seconds."""
        asked = request(stream=stream)
        load = InFlightLoad([0, 0], [0, 0], [tokens, tokens], tokens, self.pool)
        asked.attributes.put(INFLIGHT_LOAD, load)
        self.scorer.score(asked, EndpointView(self.pool))
        result = choice(self.pool[at], self.pool)
        self.scorer.pre_request(asked, result)
        self.now += seconds
        self.scorer.on_first_byte(asked, result)
        self.now += 60.0
        self.scorer.on_response_complete(asked, result, cause, None)

    @property
    def speed(self) -> float:
        return self.scorer.dump_state()["tokensPerSecond"]


def test_it_keeps_the_promises_of_its_extension_points() -> None:
    assert_conforms(lambda: LookaheadLoadScorer(context=PluginContext("lookahead")))


@pytest.mark.parametrize(
    ("tokens", "own", "expected"),
    [
        pytest.param([0, 1000], [0, 0], [1.0, 0.5], id="a-second-later-is-half-as-good"),
        pytest.param([0, 1000], [1000, 0], [1.0, 1.0], id="a-cached-prompt-is-worth-its-time"),
        pytest.param([500, 3000], [500, 1000], [1.0, 0.25], id="both-count"),
    ],
)
def test_the_sooner_the_first_token_the_better(
    tokens: list[int], own: list[int], expected: list[float]
) -> None:
    assert Bench(peak=1000.0).score(tokens, own) == expected


def test_the_scale_says_how_much_a_second_matters() -> None:
    assert Bench(peak=1000.0, scale=3.0).score([0, 1000], [0, 0]) == [1.0, 0.75]


def test_without_a_count_everybody_scores_alike() -> None:
    bench = Bench()

    assert bench.scorer.score(request(), EndpointView(bench.pool)) == [1.0, 1.0]


def test_a_slow_endpoint_is_learned_from_its_responses() -> None:
    bench = Bench(peak=1000.0)
    for _ in range(30):
        bench.serve(8.0, at=0)
        bench.serve(4.0, at=1)

    slow, fast = bench.score([1000, 1000], [0, 0])

    assert (slow, fast) == (pytest.approx(0.5, abs=0.01), 1.0)


def test_an_endpoint_of_which_nothing_is_known_is_taken_for_the_mean_of_the_others() -> None:
    bench = Bench(peak=1000.0)
    for _ in range(40):
        bench.serve(16.0, at=0)

    assert bench.score([1000, 1000], [0, 0]) == [1.0, 1.0]


@pytest.mark.parametrize(
    ("seconds", "options"),
    [
        pytest.param(9.0, {"cause": TerminationCause.MODEL_SERVER_ERROR}, id="a-failed-response"),
        pytest.param(9.0, {"cause": TerminationCause.FAILED}, id="one-that-failed-here"),
        pytest.param(9.0, {"tokens": 100}, id="a-short-prompt"),
        pytest.param(9.0, {"stream": False}, id="a-response-in-one-piece"),
        pytest.param(0.01, {}, id="one-too-fast-to-have-been-computed"),
    ],
)
def test_what_tells_nothing_of_the_speed_is_not_learned_from(
    seconds: float, options: dict[str, object]
) -> None:
    bench = Bench()
    bench.serve(seconds, **options)  # type: ignore[arg-type]

    assert bench.scorer.dump_state() == {"endpoints": 0, "tokensPerSecond": 1000}


def test_a_request_without_a_first_byte_teaches_nothing() -> None:
    bench = Bench()
    asked, result = bench.asked([0, 0], [4000, 4000]), choice(bench.pool[0])
    bench.scorer.score(asked, EndpointView(bench.pool))
    bench.scorer.pre_request(asked, result)
    bench.scorer.on_response_complete(asked, result, TerminationCause.CLIENT_DISCONNECTED, None)

    assert bench.scorer.dump_state()["endpoints"] == 0


def test_one_outlier_moves_the_speed_little() -> None:
    bench = Bench(peak=1000.0)
    bench.serve(4000.0)
    bench.score([0, 0], [0, 0])

    assert bench.speed == 625


def test_speeds_are_forgotten_when_nothing_confirms_them() -> None:
    bench = Bench(peak=1000.0)
    bench.serve(16.0, at=0)
    bench.now += 301.0
    bench.score([0, 0], [0, 0])

    assert bench.scorer.dump_state() == {"endpoints": 0, "tokensPerSecond": 1000}


def test_a_returning_endpoint_is_as_unknown_as_a_new_one() -> None:
    bench = Bench(peak=1000.0)
    for _ in range(9):
        bench.serve(16.0, at=0)
        bench.serve(4.0, at=1)
    bench.pool = EndpointView([endpoint("a"), bench.pool[1], endpoint("new")])

    again, known, new = bench.score([1000, 1000, 1000], [0, 0, 0])

    assert again == new < known


def test_speeds_are_bounded_in_number() -> None:
    speeds = _Speeds(0.001, max_endpoints=8)
    for _ in range(40):
        speeds.learn(EndpointLoad(), 0.001, 0.0)

    assert speeds.known == 8


@pytest.mark.parametrize("wrong", [0.0, -1.0, float("nan"), float("inf"), 5e-324])
@pytest.mark.parametrize("name", ["scale_seconds", "peak_prefill_throughput"])
def test_a_parameter_that_makes_no_sense_is_refused(name: str, wrong: float) -> None:
    with pytest.raises(ValueError, match=r"parameters\.\w+ must be from 1e-06 to 1e\+09, got"):
        LookaheadLoadScorer(context=PluginContext("lookahead"), **{name: wrong})
