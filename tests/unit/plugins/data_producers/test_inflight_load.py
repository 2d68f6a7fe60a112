"""The load in flight: what each request adds, when it is let go of, and that nothing stays."""

import random
from typing import Any

import pytest

from epp.framework import (
    INFLIGHT_LOAD,
    PREFIX_MATCH,
    PROMPT_TOKENS,
    Endpoint,
    EndpointView,
    InferenceRequest,
    InFlightLoad,
    PrefixMatch,
    ProfileResult,
    SchedulingResult,
    ScoredEndpoint,
    TerminationCause,
)
from epp.testing import assert_conforms, choice, endpoint, request
from epp_plugins.data_producers.inflight_load import InFlightLoadProducer

NOTHING = {"endpoints": 0, "tokens": 0}


def pool(count: int = 3) -> EndpointView:
    return EndpointView([endpoint(str(at)) for at in range(count)])


def produced(
    producer: InFlightLoadProducer,
    endpoints: EndpointView,
    tokens: int = 100,
    match: PrefixMatch | None = None,
    **fields: Any,
) -> tuple[InferenceRequest, InFlightLoad]:
    """A request of so many tokens, and what was in flight when it came."""
    asked = request(b"xxxx" * tokens, **fields)
    asked.attributes.put(PROMPT_TOKENS, tokens)
    if match is not None:
        asked.attributes.put(PREFIX_MATCH, match)
    load = producer.produce(asked, endpoints)
    asked.attributes.put(INFLIGHT_LOAD, load)
    return asked, load


def end(
    producer: InFlightLoadProducer,
    asked: InferenceRequest,
    result: SchedulingResult,
    cause: TerminationCause = TerminationCause.COMPLETED,
) -> None:
    producer.on_response_complete(asked, result, cause, None)


def test_it_keeps_the_promises_of_its_extension_points() -> None:
    assert_conforms(InFlightLoadProducer)


def test_tokens_count_from_the_choice_to_the_first_byte() -> None:
    producer, endpoints = InFlightLoadProducer(), pool(2)
    asked, _ = produced(producer, endpoints)
    result = choice(endpoints[1], endpoints)
    producer.pre_request(asked, result)
    before = list(produced(producer, endpoints)[1].tokens)
    producer.on_first_byte(asked, result)

    assert before == [0, 100]
    assert produced(producer, endpoints)[1].tokens == [0, 0]
    assert producer.dump_state() == NOTHING


def test_requests_are_those_the_framework_counts() -> None:
    endpoints = EndpointView([endpoint("a", in_flight=3), endpoint("b")])

    load = InFlightLoadProducer().produce(request(), endpoints)

    assert load.requests == [3, 0]


@pytest.mark.parametrize(
    ("match", "expected"),
    [
        pytest.param(None, [100, 100, 100], id="nothing-is-known"),
        pytest.param([0, 0, 0], [100, 100, 100], id="nothing-is-cached"),
        pytest.param([6, 3, 0], [4, 52, 100], id="whole-blocks-are"),
    ],
)
def test_what_is_cached_is_not_computed(match: list[int] | None, expected: list[int]) -> None:
    endpoints = pool()
    matched = None if match is None else PrefixMatch(match, 6, 64, endpoints)

    _, load = produced(InFlightLoadProducer(), endpoints, match=matched)

    assert load.uncached_tokens == expected


def test_a_wholly_cached_prompt_still_takes_a_token() -> None:
    endpoints = pool(1)

    _, load = produced(
        InFlightLoadProducer(), endpoints, 16, match=PrefixMatch([1], 1, 64, endpoints)
    )

    assert load.uncached_tokens == [1]


def test_a_tokenizers_count_is_shared_out_over_the_blocks() -> None:
    endpoints = pool(1)
    asked = request(b"x" * 640)
    asked.attributes.put(PROMPT_TOKENS, 100)
    asked.attributes.put(PREFIX_MATCH, PrefixMatch([5], 10, 64, endpoints))

    load = InFlightLoadProducer().produce(asked, endpoints)

    assert (load.prompt_tokens, load.uncached_tokens) == (100, [50])


def test_without_a_producer_a_token_is_four_bytes() -> None:
    load = InFlightLoadProducer().produce(request("x" * 401), pool(1))

    assert (load.prompt_tokens, load.uncached_tokens) == (101, [101])


@pytest.mark.parametrize(
    ("tokens", "limit", "parameters", "expected"),
    [
        pytest.param(1, None, {}, 3, id="one-and-two"),
        pytest.param(4, None, {}, 10, id="half-as-much-again"),
        pytest.param(10, None, {}, 25, id="rounded"),
        pytest.param(10, 3, {}, 13, id="the-clients-limit"),
        pytest.param(10, None, {"max_estimated_output_tokens": 5}, 15, id="the-configured-limit"),
        pytest.param(10, None, {"output_ratio": 0.25}, 13, id="half-a-token-is-one"),
        pytest.param(10, None, {"output_ratio": 0.0}, 10, id="no-output"),
    ],
)
def test_output_is_estimated_and_held_to_the_end(
    tokens: int, limit: int | None, parameters: dict[str, Any], expected: int
) -> None:
    producer = InFlightLoadProducer(add_estimated_output_tokens=True, **parameters)
    endpoints = pool(1)
    asked, _ = produced(producer, endpoints, tokens, max_output_tokens=limit)
    result = choice(endpoints[0])
    producer.pre_request(asked, result)
    producer.on_first_byte(asked, result)
    held = producer.dump_state()
    end(producer, asked, result)

    assert held == {"endpoints": 1, "tokens": expected}
    assert producer.dump_state() == NOTHING


@pytest.mark.parametrize(("estimates", "left"), [(False, 0), (True, 250)])
def test_other_profiles_endpoints_are_let_go_of_at_the_first_byte(
    *, estimates: bool, left: int
) -> None:
    producer = InFlightLoadProducer(add_estimated_output_tokens=estimates)
    endpoints = pool()
    asked, _ = produced(producer, endpoints)
    profiles = {
        name: ProfileResult([ScoredEndpoint(endpoints[at], 1.0)], endpoints, {})
        for name, at in (("decode", 0), ("one", 1), ("two", 0))
    }
    result = SchedulingResult(profiles, "decode")
    producer.pre_request(asked, result)
    before = list(produced(producer, endpoints)[1].tokens)
    producer.on_first_byte(asked, result)
    after = list(produced(producer, endpoints)[1].tokens)
    end(producer, asked, result)

    assert before == [250 if estimates else 100, 100, 0]
    assert after == [left, 0, 0]
    assert producer.dump_state() == NOTHING


def test_a_request_that_nothing_was_produced_for_holds_nothing() -> None:
    producer, one = InFlightLoadProducer(), endpoint()
    producer.pre_request(request("hello"), choice(one))

    assert producer.dump_state() == NOTHING


def test_two_producers_do_not_count_each_others_requests() -> None:
    ours, theirs, endpoints = InFlightLoadProducer(), InFlightLoadProducer(), pool(1)
    asked, _ = produced(ours, endpoints)
    for producer in (ours, theirs):
        producer.pre_request(asked, choice(endpoints[0]))

    assert theirs.dump_state() == NOTHING
    assert ours.dump_state() == {"endpoints": 1, "tokens": 100}


def test_a_new_snapshot_of_the_same_endpoints_keeps_the_counts() -> None:
    producer, endpoints = InFlightLoadProducer(), pool(2)
    asked, first = produced(producer, endpoints)
    producer.pre_request(asked, choice(endpoints[1]))

    _, again = produced(producer, EndpointView(list(endpoints)))

    assert again.tokens == [0, 100]
    assert first.tokens is again.tokens


def test_a_part_of_the_pool_and_the_whole_see_the_same() -> None:
    producer, endpoints = InFlightLoadProducer(), pool()
    asked, _ = produced(producer, endpoints)
    producer.pre_request(asked, choice(endpoints[2]))

    _, part = produced(producer, EndpointView([endpoints[2], endpoints[0]]))
    _, whole = produced(producer, endpoints)

    assert (part.tokens, whole.tokens) == ([100, 0], [0, 0, 100])


def test_a_late_end_leaves_a_returned_endpoint_alone() -> None:
    producer, before = InFlightLoadProducer(), pool(1)
    asked, _ = produced(producer, before)
    producer.pre_request(asked, choice(before[0]))
    again = pool(1)
    returned = list(produced(producer, again)[1].tokens)
    end(producer, asked, choice(before[0]), TerminationCause.CLIENT_DISCONNECTED)

    assert returned == [0]
    assert produced(producer, again)[1].tokens == [0]
    assert producer.dump_state() == NOTHING


@pytest.mark.parametrize("estimates", [False, True])
def test_requests_ended_in_every_way_leave_nothing(*, estimates: bool) -> None:
    producer = InFlightLoadProducer(add_estimated_output_tokens=estimates)
    rng = random.Random(7)
    endpoints = list(pool(8))
    open_requests: list[tuple[InferenceRequest, Endpoint]] = []
    for _ in range(2000):
        if rng.random() < 0.05:
            # It restarts, while requests to it are open.
            at = rng.randrange(8)
            endpoints[at] = endpoint(str(at))
        view = EndpointView(endpoints if rng.random() < 0.8 else endpoints[:3])
        asked, load = produced(producer, view, rng.randrange(1, 5000))
        assert min(load.tokens) >= 0
        chosen = rng.choice(view)
        producer.pre_request(asked, choice(chosen, view))
        open_requests.append((asked, chosen))
        while open_requests and rng.random() < 0.49:
            ending, at_endpoint = open_requests.pop(rng.randrange(len(open_requests)))
            _pass_by(producer, ending, at_endpoint, rng)
    for ending, at_endpoint in open_requests:
        _pass_by(producer, ending, at_endpoint, rng)

    assert producer.dump_state() == NOTHING
    assert set(produced(producer, EndpointView(endpoints))[1].tokens) == {0}


def _pass_by(
    producer: InFlightLoadProducer, ending: InferenceRequest, chosen: Endpoint, rng: random.Random
) -> None:
    result = choice(chosen)
    if rng.random() < 0.6:
        producer.on_first_byte(ending, result)
    end(producer, ending, result, rng.choice(list(TerminationCause)))
    if rng.random() < 0.1:
        # The framework promises one end; a second one must do no harm all the same.
        end(producer, ending, result)


@pytest.mark.parametrize(
    "parameters",
    [{"sync_cross_replica_state": True}, {"sync_cross_replica_state": False}],
    ids=["on", "off"],
)
def test_there_is_no_other_replica_to_exchange_with(parameters: dict[str, Any]) -> None:
    assert InFlightLoadProducer(**parameters).dump_state() == NOTHING


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"output_ratio": -0.1}, r"outputRatio must be from 0 to 1e\+06, got -0\.1"),
        ({"max_estimated_output_tokens": -1}, r"maxEstimatedOutputTokens must be from 0 to"),
    ],
)
def test_a_parameter_that_makes_no_sense_is_refused(
    parameters: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        InFlightLoadProducer(**parameters)
