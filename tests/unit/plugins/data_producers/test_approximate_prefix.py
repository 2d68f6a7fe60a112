"""What the approximate prefix producer expects of the caches, and what it takes for the same."""

from array import array
from collections.abc import Sequence
from typing import Any

import pytest

from epp.framework import (
    PREFIX_MATCH,
    DataProducer,
    Endpoint,
    EndpointView,
    FirstByteObserver,
    InferenceRequest,
    PluginContext,
    PrefixMatch,
    PreRequest,
    ProfileResult,
    ResponseCompletionObserver,
    SchedulingResult,
    ScoredEndpoint,
    StateDumper,
    TerminationCause,
)
from epp.testing import endpoint, request
from epp_plugins.data_producers.approximate_prefix import ApproximatePrefixProducer
from epp_plugins.data_producers.approximate_prefix.index import Index

BLOCK_BYTES = 256


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Router:
    """Sends requests where a test wants them, as the director would."""

    def __init__(self, pool: Sequence[Endpoint], **parameters: Any) -> None:
        self.pool = pool
        self.clock = Clock()
        context = PluginContext("test", clock=self.clock)
        self.producer = ApproximatePrefixProducer(context=context, **parameters)

    def match(self, asked: InferenceRequest, pool: Sequence[Endpoint] | None = None) -> PrefixMatch:
        view = EndpointView(self.pool if pool is None else pool)
        match = self.producer.produce(asked, view)
        asked.attributes.put(PREFIX_MATCH, match)
        return match

    def send(self, asked: InferenceRequest, to: Endpoint) -> SchedulingResult:
        self.match(asked)
        result = SchedulingResult({"p": ProfileResult([ScoredEndpoint(to, 1.0)], [to], {})}, "p")
        self.producer.pre_request(asked, result)
        return result

    def matched(self, asked: InferenceRequest) -> list[int]:
        return list(self.match(asked).matched_blocks)


def blocks(letters: str) -> bytes:
    """Return a prompt of one block a letter."""
    return b"".join(letter.encode() * BLOCK_BYTES for letter in letters)


@pytest.fixture
def pool() -> list[Endpoint]:
    return [endpoint(name, address=f"10.0.0.{at}") for at, name in enumerate("abc")]


def test_a_prompt_nobody_was_sent_matches_nowhere(pool: list[Endpoint]) -> None:
    match = Router(pool).match(request(blocks("xy")))

    assert (
        match.matched_blocks,
        match.total_blocks,
        match.block_bytes,
    ) == ([0, 0, 0], 2, BLOCK_BYTES)


def test_the_endpoint_that_was_sent_a_prompt_holds_it(pool: list[Endpoint]) -> None:
    router = Router(pool)
    router.send(request(blocks("xyz")), pool[1])

    matched = router.matched(request(blocks("xyz")))

    assert matched == [0, 3, 0]


def test_each_endpoint_holds_as_much_as_its_own_prompts_share(pool: list[Endpoint]) -> None:
    router = Router(pool)
    router.send(request(blocks("vwxyz")), pool[0])
    router.send(request(blocks("vw..z")), pool[1])
    router.send(request(blocks("v....")), pool[2])

    matched = router.matched(request(blocks("vwxyz")))

    assert matched == [5, 2, 1]


def test_a_longer_prompt_matches_in_its_first_part(pool: list[Endpoint]) -> None:
    router = Router(pool)
    router.send(request(blocks("xy")), pool[0])

    match = router.match(request(blocks("xyzz")))

    assert (match.matched_blocks, match.total_blocks) == ([2, 0, 0], 4)


def test_a_match_ends_at_the_first_block_that_differs(pool: list[Endpoint]) -> None:
    """What comes after it was computed behind another text, and is of no use."""
    router = Router(pool)
    router.send(request(blocks("xyz")), pool[0])

    matched = router.matched(request(blocks("x!z")))

    assert matched == [1, 0, 0]


def test_only_whole_blocks_count(pool: list[Endpoint]) -> None:
    router = Router(pool)
    router.send(request(blocks("x") + b"tail"), pool[0])

    match = router.match(request(blocks("x") + b"tail"))

    assert (match.matched_blocks, match.total_blocks) == ([1, 0, 0], 1)


def test_prompts_shorter_than_a_block_never_match(pool: list[Endpoint]) -> None:
    """Or all short prompts would go to one endpoint."""
    router = Router(pool)
    router.send(request("hi", model="m"), pool[0])

    match = router.match(request("hi", model="m"))

    assert (match.matched_blocks, match.total_blocks) == ([0, 0, 0], 0)


@pytest.mark.parametrize(
    ("model", "salt", "expected"),
    [
        pytest.param("m", "s", 2, id="the-same"),
        pytest.param("other", "s", 0, id="another-model-or-adapter"),
        pytest.param("m", "t", 0, id="another-salt"),
        pytest.param("m", "", 0, id="no-salt"),
        pytest.param("ms", "", 0, id="the-same-letters-cut-elsewhere"),
    ],
)
def test_model_and_salt_separate_caches(
    pool: list[Endpoint], model: str, salt: str, expected: int
) -> None:
    router = Router(pool)
    router.send(request(blocks("xy"), model="m", cache_salt="s"), pool[0])

    matched = router.matched(request(blocks("xy"), model=model, cache_salt=salt))

    assert [expected, 0, 0] == matched


def test_the_hashes_are_the_same_in_every_process(pool: list[Endpoint]) -> None:
    match = Router(pool).match(request(blocks("xy"), model="model", cache_salt="salt"))

    assert list(match.blocks) == [0x847381729413D474, 0x52AB6C43E1821C7E]  # type: ignore[attr-defined]


def test_a_restarted_endpoint_starts_cold_under_the_same_name_and_address(
    pool: list[Endpoint],
) -> None:
    router = Router(pool)
    router.send(request(blocks("xy")), pool[0])
    reborn = endpoint("a", address="10.0.0.0")

    match = router.match(request(blocks("xy")), [reborn, *pool[1:]])

    assert match.matched_blocks == [0, 0, 0]


def test_new_metrics_and_labels_change_nothing(pool: list[Endpoint]) -> None:
    """Snapshots are replaced with every scrape; it is the same life of the endpoint."""
    router = Router(pool)
    router.send(request(blocks("xy")), pool[0])
    later = Endpoint(pool[0].id, pool[0].address, 8000, {"new": "label"}, load=pool[0].load)

    match = router.match(request(blocks("xy")), [later, *pool[1:]])

    assert match.matched_blocks == [2, 0, 0]


def test_the_order_of_candidates_does_not_matter(pool: list[Endpoint]) -> None:
    router = Router(pool)
    router.send(request(blocks("xy")), pool[0])

    match = router.match(request(blocks("xy")), [pool[2], pool[0]])

    assert match.matched_blocks == [0, 2]


def test_the_match_tells_its_candidates(pool: list[Endpoint]) -> None:
    """Scorers behind a filter need them to find their numbers again."""
    match = Router(pool).match(request(blocks("xy")))

    assert pool == list(match.candidates)  # type: ignore[attr-defined]


def test_what_a_failed_request_added_is_taken_back(pool: list[Endpoint]) -> None:
    router = Router(pool)
    router.send(request(blocks("x")), pool[0])
    failed = request(blocks("xyz"))
    result = router.send(failed, pool[0])

    router.producer.on_response_complete(failed, result, TerminationCause.MODEL_SERVER_ERROR, None)

    assert router.matched(request(blocks("xyz"))) == [1, 0, 0]


LOST_UNLESS_BEGUN = [
    TerminationCause.CLIENT_DISCONNECTED,
    TerminationCause.DRAINED,
    TerminationCause.FAILED,
]


@pytest.mark.parametrize("cause", LOST_UNLESS_BEGUN)
def test_so_is_what_ended_before_its_first_byte(
    pool: list[Endpoint], cause: TerminationCause
) -> None:
    router = Router(pool)
    asked = request(blocks("xy"))
    result = router.send(asked, pool[0])

    router.producer.on_response_complete(asked, result, cause, None)

    assert router.matched(request(blocks("xy"))) == [0, 0, 0]


@pytest.mark.parametrize("cause", [TerminationCause.COMPLETED, *LOST_UNLESS_BEGUN])
def test_what_any_other_request_added_stays(pool: list[Endpoint], cause: TerminationCause) -> None:
    router = Router(pool)
    asked = request(blocks("xy"))
    result = router.send(asked, pool[0])
    router.producer.on_first_byte(asked, result)

    router.producer.on_response_complete(asked, result, cause, None)

    assert router.matched(request(blocks("xy"))) == [2, 0, 0]


def test_it_stays_where_the_gateway_shows_no_responses(pool: list[Endpoint]) -> None:
    """Or nothing would ever be learned behind such a gateway."""
    router = Router(pool)
    asked = request(blocks("xy"))
    result = router.send(asked, pool[0])

    router.producer.on_response_complete(asked, result, TerminationCause.RESPONSE_UNSEEN, None)

    assert router.matched(request(blocks("xy"))) == [2, 0, 0]


def test_of_many_requests_that_all_fail_nothing_stays(pool: list[Endpoint]) -> None:
    """Only the first of them added anything, and which fails first is no matter."""
    router = Router(pool)
    asked = [request(blocks("xyz")) for _ in range(3)]
    results = [router.send(one, pool[0]) for one in asked]

    for one, result in reversed(list(zip(asked, results, strict=True))):
        router.producer.on_response_complete(one, result, TerminationCause.MODEL_SERVER_ERROR, None)

    assert router.matched(request(blocks("xyz"))) == [0, 0, 0]


def test_a_failure_takes_nothing_back_that_another_request_has_proven(
    pool: list[Endpoint],
) -> None:
    """A system prompt is not forgotten because the request that brought it failed."""
    router = Router(pool)
    failed, served = request(blocks("xya")), request(blocks("xyb"))
    failing, serving = router.send(failed, pool[0]), router.send(served, pool[0])

    router.producer.on_response_complete(served, serving, TerminationCause.COMPLETED, None)
    router.producer.on_response_complete(failed, failing, TerminationCause.MODEL_SERVER_ERROR, None)

    assert router.matched(request(blocks("xya")))[0] == 2
    assert router.matched(request(blocks("xyb")))[0] == 3


def test_what_was_taken_back_from_under_a_request_returns_with_its_answer(
    pool: list[Endpoint],
) -> None:
    router = Router(pool)
    failed, served = request(blocks("xy")), request(blocks("xyz"))
    failing, serving = router.send(failed, pool[0]), router.send(served, pool[0])

    router.producer.on_response_complete(failed, failing, TerminationCause.MODEL_SERVER_ERROR, None)
    meanwhile = router.matched(request(blocks("xyz")))
    router.producer.on_response_complete(served, serving, TerminationCause.COMPLETED, None)

    assert meanwhile == [0, 0, 0]
    assert router.matched(request(blocks("xyz"))) == [3, 0, 0]


@pytest.mark.parametrize("cause", [TerminationCause.COMPLETED, TerminationCause.MODEL_SERVER_ERROR])
def test_an_answer_of_an_earlier_life_changes_nothing(
    pool: list[Endpoint], cause: TerminationCause
) -> None:
    router = Router(pool)
    asked = request(blocks("x"))
    result = router.send(asked, pool[0])
    for _ in range(4):
        router.clock.now += 301
        router.match(request(blocks("z")), pool[1:])

    router.producer.on_response_complete(asked, result, cause, None)

    assert router.producer.dump_state()["heldBlocks"] == 0


def test_a_request_without_a_match_teaches_nothing(pool: list[Endpoint]) -> None:
    """The producer may have failed for it, or another one wrote the attribute."""
    router = Router(pool)
    result = router.send(request(), pool[0])
    foreign = request(blocks("xy"))
    foreign.attributes.put(PREFIX_MATCH, PrefixMatch([0, 0, 0], 2, BLOCK_BYTES))

    for asked in (request(blocks("xy")), foreign):
        headers = router.producer.pre_request(asked, result)
        router.producer.on_response_complete(
            asked, result, TerminationCause.MODEL_SERVER_ERROR, None
        )
        assert headers == {}

    assert router.matched(request(blocks("xy"))) == [0, 0, 0]


def test_the_least_recent_prompt_is_evicted_first(pool: list[Endpoint]) -> None:
    router = Router(pool, block_size_tokens=64, lru_capacity_per_server=2)
    for letter in "xyz":
        router.send(request(blocks(letter)), pool[0])

    matched = [router.matched(request(blocks(letter)))[0] for letter in "xyz"]

    assert matched == [0, 1, 1]


def test_a_prompt_that_came_again_is_recent(pool: list[Endpoint]) -> None:
    router = Router(pool, block_size_tokens=64, lru_capacity_per_server=2)
    for letter in "xyxz":
        router.send(request(blocks(letter)), pool[0])

    matched = [router.matched(request(blocks(letter)))[0] for letter in "xyz"]

    assert matched == [1, 0, 1]


def test_the_end_of_a_prompt_is_evicted_before_its_beginning(pool: list[Endpoint]) -> None:
    router = Router(pool, block_size_tokens=64, lru_capacity_per_server=4)
    router.send(request(blocks("wxyz")), pool[0])
    router.send(request(blocks("!")), pool[0])

    matched = router.matched(request(blocks("wxyz")))

    assert matched == [3, 0, 0]


def test_one_endpoints_evictions_are_no_others(pool: list[Endpoint]) -> None:
    router = Router(pool, block_size_tokens=64, lru_capacity_per_server=1)
    router.send(request(blocks("x")), pool[0])
    router.send(request(blocks("x")), pool[1])
    router.send(request(blocks("y")), pool[0])

    matched = router.matched(request(blocks("x")))

    assert matched == [0, 1, 0]


def test_an_endpoint_gone_for_long_is_forgotten(pool: list[Endpoint]) -> None:
    router = Router(pool)
    router.send(request(blocks("xy")), pool[0])
    router.send(request(blocks("xz")), pool[1])

    for _ in range(4):
        router.clock.now += 301
        router.match(request(blocks("xz")), pool[1:])

    state = router.producer.dump_state()
    assert (state["endpoints"], state["blocks"]) == (1, 2)


def test_a_quiet_night_makes_nobody_forget(pool: list[Endpoint]) -> None:
    router = Router(pool)
    router.send(request(blocks("xy")), pool[0])
    router.clock.now += 12 * 3600
    router.match(request(blocks("x")), pool[1:])

    matched = router.matched(request(blocks("xy")))

    assert matched == [2, 0, 0]


def test_a_slot_that_is_used_again_brings_nothing_along(pool: list[Endpoint]) -> None:
    router = Router(pool)
    router.send(request(blocks("xy")), pool[0])
    for _ in range(4):
        router.clock.now += 301
        router.match(request(blocks("z")), pool[1:])
    router.send(request(blocks("z")), pool[2])

    matched = router.matched(request(blocks("xy")))

    assert matched == [0, 0, 0]


def test_no_more_endpoints_are_remembered_than_the_bound() -> None:
    """The one unseen for longest makes room."""
    index = Index(max_endpoints=3)
    pool = [endpoint(name) for name in "abcde"]
    block = array("Q", [7])
    for now, one in enumerate(pool):
        index.learn(block, one, 5, float(now))

    matched = index.match(block, pool, 9.0)

    assert matched == [0, 0, 1, 1, 1]


def test_what_is_evicted_already_is_not_taken_back_again(pool: list[Endpoint]) -> None:
    router = Router(pool, block_size_tokens=64, lru_capacity_per_server=1)
    failed = request(blocks("x"))
    result = router.send(failed, pool[0])
    router.send(request(blocks("y")), pool[0])

    router.producer.on_response_complete(failed, result, TerminationCause.MODEL_SERVER_ERROR, None)

    assert router.matched(request(blocks("y"))) == [1, 0, 0]


def test_a_late_failure_at_a_forgotten_endpoint_takes_nothing_from_others(
    pool: list[Endpoint],
) -> None:
    """Its slot may serve another endpoint by then."""
    router = Router(pool)
    failed = request(blocks("x"))
    result = router.send(failed, pool[0])
    for _ in range(4):
        router.clock.now += 301
        router.match(request(blocks("z")), pool[1:])
    router.send(request(blocks("x")), pool[1])

    router.producer.on_response_complete(failed, result, TerminationCause.MODEL_SERVER_ERROR, None)

    assert router.matched(request(blocks("x"))) == [0, 1, 0]


def test_it_is_called_at_each_step_it_needs() -> None:
    producer = Router([]).producer

    assert PREFIX_MATCH is producer.produces
    for step in (
        DataProducer,
        PreRequest,
        FirstByteObserver,
        ResponseCompletionObserver,
        StateDumper,
    ):
        assert isinstance(producer, step)
