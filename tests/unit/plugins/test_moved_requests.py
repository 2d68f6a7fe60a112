"""What plugins remember of a request goes with it where the gateway takes it elsewhere."""

import inspect
from collections.abc import Iterator
from typing import Any

import pytest

from epp.framework import (
    DataProducer,
    Endpoint,
    EndpointView,
    FirstByteObserver,
    InferenceRequest,
    PluginContext,
    PreRequest,
    Registry,
    ResponseCompletionObserver,
    Scorer,
    TerminationCause,
)
from epp.testing import choice, endpoint, request
from epp_plugins.data_producers.approximate_prefix import ApproximatePrefixProducer
from epp_plugins.data_producers.inflight_load import InFlightLoadProducer
from epp_plugins.scorers.kv_cache_utilization import KVCacheUtilizationScorer
from epp_plugins.scorers.lookahead_load import LookaheadLoadScorer
from epp_plugins.scorers.lora_affinity import LoRAAffinityScorer
from epp_plugins.scorers.no_hit_lru import NoHitLRUScorer

REGISTRY = Registry()
REMEMBERING = [one for one in REGISTRY.types if hasattr(REGISTRY.load(one), "pre_request")]
PROMPT = b"tell me of the sea " * 2000


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


class Moved:
    """One request that a plugin saw go to `a`, and that the gateway took to `b`."""

    def __init__(self, *plugins: Any, clock: Clock | None = None) -> None:
        self.plugins = plugins
        self.clock = clock or Clock()
        metrics = {"max_adapters": 4, "block_size": 16, "num_blocks": 5000}
        self.pool = EndpointView([endpoint(name, **metrics) for name in "abc"])

    def ask(self) -> InferenceRequest:
        asked = request(PROMPT, model="x", stream=True)
        for plugin in self.plugins:
            if isinstance(plugin, DataProducer) and not inspect.iscoroutinefunction(plugin.produce):
                asked.attributes.put(plugin.produces, plugin.produce(asked, self.pool))
            if isinstance(plugin, Scorer):
                plugin.score(asked, self.pool)
        return asked

    def begin(self, asked: InferenceRequest, to: Endpoint) -> None:
        to.load.in_flight += 1
        for plugin in self.plugins:
            if isinstance(plugin, PreRequest):
                plugin.pre_request(asked, choice(to, self.pool))

    def end(self, asked: InferenceRequest, at: Endpoint, cause: TerminationCause) -> None:
        at.load.in_flight -= 1
        for plugin in self.plugins:
            if isinstance(plugin, ResponseCompletionObserver):
                plugin.on_response_complete(asked, choice(at, self.pool), cause, None)

    def first_byte(self, asked: InferenceRequest, at: Endpoint) -> None:
        for plugin in self.plugins:
            if isinstance(plugin, FirstByteObserver):
                plugin.on_first_byte(asked, choice(at, self.pool))

    def steps(self, cause: TerminationCause = TerminationCause.COMPLETED) -> Iterator[str]:
        """Carry the request on, step by step."""
        first, second, _ = self.pool
        asked = self.ask()
        self.begin(asked, first)
        yield "sent"
        self.clock.now += 1.0
        self.end(asked, first, TerminationCause.MOVED)
        yield "taken away"
        self.begin(asked, second)
        yield "sent again"
        self.first_byte(asked, second)
        yield "begun"
        self.end(asked, second, cause)
        yield "ended"


@pytest.mark.parametrize("plugin_type", REMEMBERING)
@pytest.mark.parametrize("cause", list(TerminationCause))
def test_every_plugin_that_remembers_bears_it(plugin_type: str, cause: TerminationCause) -> None:
    producer = InFlightLoadProducer()
    plugin = REGISTRY.build(plugin_type, "mine", {}).plugin
    others = [] if isinstance(plugin, InFlightLoadProducer) else [producer]

    steps = list(Moved(*others, plugin).steps(cause))

    assert steps[-1] == "ended"
    assert producer.dump_state() == {"endpoints": 0, "tokens": 0}


def test_a_prompt_is_expected_where_it_was_served_and_nowhere_else() -> None:
    producer = ApproximatePrefixProducer(context=PluginContext("prefix", clock=Clock()))
    moved = Moved(producer)
    held = []
    for _ in moved.steps():
        match = producer.produce(request(PROMPT, model="x"), moved.pool)
        held.append([bool(blocks) for blocks in match.matched_blocks])

    assert held == [
        [True, False, False],
        [False, False, False],
        [False, True, False],
        [False, True, False],
        [False, True, False],
    ]


def test_a_prompt_is_taken_back_even_where_the_first_byte_came_before() -> None:
    producer = ApproximatePrefixProducer(context=PluginContext("prefix", clock=Clock()))
    moved = Moved(producer)
    asked = moved.ask()
    moved.begin(asked, moved.pool[0])
    moved.first_byte(asked, moved.pool[0])

    moved.end(asked, moved.pool[0], TerminationCause.MOVED)

    assert producer.dump_state()["heldBlocks"] == 0


def test_a_prompt_that_was_refused_is_expected_nowhere() -> None:
    producer = ApproximatePrefixProducer(context=PluginContext("prefix", clock=Clock()))
    moved = Moved(producer)
    asked = moved.ask()
    moved.begin(asked, moved.pool[0])
    moved.first_byte(asked, moved.pool[0])

    moved.end(asked, moved.pool[0], TerminationCause.REFUSED)

    assert producer.dump_state()["heldBlocks"] == 0


def test_a_refusal_takes_nothing_back_that_another_request_was_answered_with() -> None:
    producer = ApproximatePrefixProducer(context=PluginContext("prefix", clock=Clock()))
    moved = Moved(producer)
    first, second = moved.ask(), moved.ask()
    moved.begin(first, moved.pool[0])
    moved.begin(second, moved.pool[0])
    moved.end(second, moved.pool[0], TerminationCause.COMPLETED)
    before = producer.dump_state()["heldBlocks"]

    moved.end(first, moved.pool[0], TerminationCause.REFUSED)

    assert producer.dump_state()["heldBlocks"] == before > 0


def test_an_adapter_is_where_the_request_was_served() -> None:
    scorer = LoRAAffinityScorer(context=PluginContext("lora", clock=Clock()))
    moved = Moved(scorer)
    seen = []
    for _ in moved.steps():
        holdings = scorer._ledger.attending
        seen.append([f"{len(one.open)}{len(one.resident)}" for one in holdings])

    assert seen == [
        ["10", "00", "00"],
        ["00", "00", "00"],
        ["00", "10", "00"],
        ["00", "10", "00"],
        ["00", "01", "00"],
    ]


def test_tokens_are_in_flight_where_the_request_is() -> None:
    producer = InFlightLoadProducer()
    moved = Moved(producer)
    tokens = len(PROMPT) // 4
    seen = []
    for _ in moved.steps():
        load = producer.produce(request(), moved.pool)
        seen.append(list(load.tokens))

    assert seen == [[tokens, 0, 0], [0, 0, 0], [0, tokens, 0], [0, 0, 0], [0, 0, 0]]


def test_the_time_of_two_attempts_is_nobodys_speed() -> None:
    clock = Clock()
    context = PluginContext("lookahead", clock=clock)
    scorer = LookaheadLoadScorer(context=context, peak_prefill_throughput=1000.0)

    list(Moved(InFlightLoadProducer(), scorer, clock=clock).steps())

    assert scorer.dump_state()["endpoints"] == 0


@pytest.mark.parametrize(
    ("cause", "known"), [(TerminationCause.COMPLETED, 1), (TerminationCause.REFUSED, 0)]
)
def test_a_refusal_is_nobodys_speed(cause: TerminationCause, known: int) -> None:
    clock = Clock()
    context = PluginContext("lookahead", clock=clock)
    scorer = LookaheadLoadScorer(context=context, peak_prefill_throughput=1000.0)
    moved = Moved(InFlightLoadProducer(), scorer)
    asked = moved.ask()
    moved.begin(asked, moved.pool[0])
    clock.now += 8.0
    moved.first_byte(asked, moved.pool[0])
    moved.end(asked, moved.pool[0], cause)

    assert scorer.dump_state()["endpoints"] == known


def test_a_cache_is_fuller_where_the_request_is() -> None:
    scorer = KVCacheUtilizationScorer()
    moved = Moved(scorer)
    seen = [[score < 1.0 for score in scorer.score(request(), moved.pool)] for _ in moved.steps()]

    assert seen == [
        [True, False, False],
        [False, False, False],
        [False, True, False],
        [False, True, False],
        [False, False, False],
    ]


def test_a_moved_prompt_is_one_sample_of_what_prompts_take() -> None:
    once, twice = KVCacheUtilizationScorer(), KVCacheUtilizationScorer()
    for scorer in (once, twice):
        scorer.pre_request(request(b"x" * 40), choice(endpoint()))
    list(Moved(twice).steps())
    plain = Moved(once)
    plain.begin(plain.ask(), plain.pool[0])

    assert once._mean_tokens == twice._mean_tokens


def test_both_who_lost_a_new_prompt_and_who_got_it_have_had_their_turn() -> None:
    """Kept first in turn, one that fails would be sent every new prompt."""
    scorer = NoHitLRUScorer()
    moved = Moved(scorer)

    list(moved.steps())

    assert scorer.score(request(), moved.pool) == [0.5, 0.0, 1.0]
