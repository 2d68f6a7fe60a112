from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from epp.simulator.engine import Engine, EngineLoad, EngineOptions, EngineRequest, Step
from epp.simulator.timing import StepTiming

OPTIONS = EngineOptions(
    max_num_seqs=4,
    max_num_batched_tokens=64,
    max_model_len=256,
    block_size=16,
    num_gpu_blocks=100,
    max_loras=2,
)


def engine(**options: object) -> Engine:
    return Engine(replace(OPTIONS, **options), StepTiming())


def request(
    name: str,
    prompt: Sequence[int] = range(10),
    *,
    reply: int = 3,
    adapter: str | None = None,
    stops: bool = False,
    cache_salt: str = "",
) -> EngineRequest:
    return EngineRequest(name, prompt, range(1000, 1000 + reply), adapter, cache_salt, stops)


def other_prompt(number: int, length: int) -> range:
    """Return a prompt that shares nothing with those of other numbers."""
    return range(number * 10_000, number * 10_000 + length)


def run(engine: Engine) -> list[Step]:
    steps = []
    while engine.has_work:
        steps.append(engine.step())
    return steps


def replies(steps: Sequence[Step]) -> dict[str, list[int]]:
    said: dict[str, list[int]] = {}
    for step in steps:
        for emission in step.emitted:
            said.setdefault(emission.request_id, []).append(emission.token)
    return said


def scheduled(steps: Sequence[Step]) -> list[dict[str, int]]:
    return [dict(step.scheduled) for step in steps]


def test_a_request_computes_its_prompt_and_then_a_token_a_step():
    sut = engine()
    sut.add_request(request("a", range(10), reply=3))

    steps = run(sut)

    assert scheduled(steps) == [{"a": 10}, {"a": 1}, {"a": 1}]
    assert replies(steps) == {"a": [1000, 1001, 1002]}


@pytest.mark.parametrize(
    ("stops", "prompt", "reason"),
    [
        pytest.param(True, 10, "stop", id="it ends by itself"),
        pytest.param(False, 10, "length", id="it was given no more tokens"),
        pytest.param(True, 254, "length", id="the context ends first"),
    ],
)
def test_the_last_token_carries_the_reason_of_the_end(stops: bool, prompt: int, reason: str):
    sut = engine()
    sut.add_request(request("a", range(prompt), reply=3, stops=stops))

    reasons = [emission.finish_reason for step in run(sut) for emission in step.emitted]

    assert reasons[-1] == reason
    assert set(reasons[:-1]) == {None}


def test_a_long_prompt_takes_what_the_running_requests_leave_of_the_budget():
    sut = engine()
    sut.add_request(request("a", other_prompt(1, 10)))
    sut.add_request(request("b", other_prompt(2, 100)))

    steps = run(sut)

    assert scheduled(steps)[:2] == [{"a": 10, "b": 54}, {"a": 1, "b": 46}]


def test_a_request_waits_for_a_seat():
    sut = engine(max_num_seqs=1)
    sut.add_request(request("a", reply=2))
    sut.add_request(request("b", reply=1))

    first = sut.step()

    assert list(first.scheduled) == ["a"]
    assert sut.load[:3] == (1, 1, 0)
    assert scheduled(run(sut)) == [{"a": 1}, {"b": 10}]


def test_a_repeated_prompt_is_cached_up_to_its_last_full_block():
    sut = engine()
    sut.add_request(request("a", range(40), reply=1))
    run(sut)
    sut.add_request(request("b", range(40), reply=1))

    step = sut.step()

    assert [(one.request_id, one.cached_tokens) for one in step.admitted] == [("b", 32)]
    assert step.scheduled == {"b": 8}


def test_requests_of_one_step_share_their_prefix():
    sut = engine()
    sut.add_request(request("a", range(40)))
    sut.add_request(request("b", range(40)))

    step = sut.step()

    assert [one.cached_tokens for one in step.admitted] == [0, 32]


def test_a_reply_is_cached_for_the_turn_that_follows_it():
    sut = engine()
    sut.add_request(request("a", range(30), reply=20))
    run(sut)
    sut.add_request(request("b", [*range(30), *range(1000, 1020), 1, 2, 3]))

    step = sut.step()

    assert [one.cached_tokens for one in step.admitted] == [48]


@pytest.mark.parametrize(
    "other",
    [
        pytest.param({"adapter": "x"}, id="an adapter"),
        pytest.param({"cache_salt": "s"}, id="a salt"),
    ],
)
def test_what_is_computed_differently_is_not_shared(other: dict[str, str]):
    sut = engine()
    sut.add_request(request("a", range(40)))
    sut.add_request(request("b", range(40), **other))

    step = sut.step()

    assert [one.cached_tokens for one in step.admitted] == [0, 0]


def test_a_request_whose_adapter_is_one_too_many_is_passed_over_and_keeps_its_place():
    sut = engine(max_num_seqs=8)
    for name, adapter, reply in (
        ("a", "x", 2), ("b", "y", 4), ("c", "z", 2), ("d", "x", 2), ("e", None, 2), ("f", "w", 2),
    ):  # fmt: skip
        sut.add_request(request(name, adapter=adapter, reply=reply))

    steps = [sut.step()]
    load = sut.load
    steps += run(sut)

    assert [list(step.scheduled) for step in steps[:3]] == [
        ["a", "b", "d", "e"],
        ["a", "b", "d", "e"],
        ["b", "c"],
    ]
    assert load[:3] == (4, 2, 2)
    assert sut.load.deferred == 0


def test_an_adapter_is_loaded_once_while_it_keeps_its_slot():
    sut = engine()
    timing = StepTiming()
    sut.add_request(request("a", adapter="x", reply=2))

    steps = run(sut)

    assert [step.duration for step in steps] == [
        timing.duration(tokens=10, sequences=1, lora_loads=1),
        timing.duration(tokens=1, sequences=1, lora_loads=0),
    ]


def test_a_prompt_that_does_not_fit_holds_up_those_behind_it():
    sut = engine(num_gpu_blocks=17)
    for number, (name, length) in enumerate((("a", 100), ("b", 180), ("c", 10))):
        sut.add_request(request(name, other_prompt(number, length), reply=20))

    sut.step()

    assert sut.load[:3] == (1, 2, 0)


def test_where_blocks_run_out_the_last_admitted_starts_anew_and_says_the_same():
    sut = engine(num_gpu_blocks=7)
    sut.add_request(request("a", other_prompt(1, 40), reply=20))
    sut.add_request(request("b", other_prompt(2, 40), reply=20))

    steps = run(sut)

    assert [name for step in steps for name in step.preempted] == ["b"]
    assert all(not step.admitted for step in steps if step.preempted)
    assert [one.request_id for step in steps for one in step.admitted if one.resumed] == ["b"]
    assert replies(steps) == {"a": list(range(1000, 1020)), "b": list(range(1000, 1020))}


@pytest.mark.parametrize(
    ("prompt", "reply"),
    [
        pytest.param(0, 3, id="an empty prompt"),
        pytest.param(256, 3, id="no room in the context"),
        pytest.param(10, 0, id="nothing to say"),
        pytest.param(200, 56, id="more than the cache holds"),
    ],
)
def test_what_could_never_end_is_refused(prompt: int, reply: int):
    sut = engine(num_gpu_blocks=16)

    with pytest.raises(ValueError, match="tokens"):
        sut.add_request(request("a", range(prompt), reply=reply))

    assert not sut.has_work


def test_an_aborted_request_leaves_its_seat_and_its_blocks():
    sut = engine(max_num_seqs=1)
    sut.add_request(request("a", reply=9))
    sut.add_request(request("b", reply=9))
    sut.step()

    gone = [sut.abort("a"), sut.abort("b"), sut.abort("a"), sut.abort("nobody")]

    assert gone == [True, True, False, False]
    assert sut.load == EngineLoad(running=0, waiting=0, deferred=0, kv_usage=0.0)
    assert not sut.has_work


def test_an_aborted_request_is_no_longer_deferred():
    sut = engine(max_loras=1)
    sut.add_request(request("a", adapter="x", reply=9))
    sut.add_request(request("b", adapter="y", reply=9))
    sut.step()

    sut.abort("b")

    assert sut.load.deferred == 0


requests = st.lists(
    st.tuples(
        st.integers(0, 4),  # arrives so many steps after the one before
        st.integers(0, 2),  # which prompt
        st.integers(1, 120),  # its length
        st.integers(1, 40),  # the reply's length
        st.sampled_from([None, "x", "y", "z"]),
        st.booleans(),  # is aborted three steps later
    ),
    min_size=1,
    max_size=15,
)


@given(requests)
def test_limits_hold_and_everyone_is_served_whatever_comes(
    arrivals: list[tuple[int, int, int, int, str | None, bool]],
):
    sut = engine(num_gpu_blocks=14, max_num_seqs=3)
    wanted: dict[str, int] = {}
    steps: list[Step] = []

    def step() -> None:
        adapters = {name: adapter for name, adapter in adapter_of.items() if adapter}
        done = sut.step()
        steps.append(done)
        computed = {adapters[name] for name in done.scheduled if name in adapters}

        assert 0 < sum(done.scheduled.values()) <= 64
        assert len(done.scheduled) <= 3
        assert len(computed) <= 2
        assert 0 <= sut.load.kv_usage <= 1
        assert sut.load.deferred <= sut.load.waiting

    adapter_of: dict[str, str | None] = {}
    for number, (gap, prompt, length, reply, adapter, aborted) in enumerate(arrivals):
        for _ in range(gap):
            if sut.has_work:
                step()
        name = str(number)
        adapter_of[name] = adapter
        sut.add_request(request(name, other_prompt(prompt, length), reply=reply, adapter=adapter))
        if aborted:
            step()
            sut.abort(name)
        else:
            wanted[name] = reply
    while sut.has_work:
        step()

    said = {name: len(tokens) for name, tokens in replies(steps).items() if name in wanted}

    assert said == wanted
    assert sut.cache.free_blocks == sut.cache.usable_blocks
