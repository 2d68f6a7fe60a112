import pytest

from epp.simulator.engine import EngineLoad
from support.engines import engine, other_prompt, replies, request, run, scheduled


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
    assert sut.load == EngineLoad(
        running=0, waiting=0, deferred=0, swapped=0, kv_usage=0.0, cpu_usage=0.0
    )
    assert not sut.has_work


def test_a_request_aborted_while_its_step_is_under_way_says_nothing():
    sut = engine()
    sut.add_request(request("a", reply=9))
    sut.add_request(request("b", other_prompt(2, 10), reply=9))
    batch = sut.schedule()

    sut.abort("a")
    step = sut.complete(batch)

    assert [one.request_id for one in step.emitted] == ["b"]
    assert sut.running_ids() == ["b"]


def test_an_id_that_is_in_the_engine_is_refused():
    sut = engine()
    sut.add_request(request("a"))

    with pytest.raises(ValueError, match="'a' already"):
        sut.add_request(request("a"))


def test_the_prefix_cache_is_reset_only_while_nobody_holds_blocks():
    sut = engine(kv_events=True)
    sut.add_request(request("a", range(40), reply=2))
    sut.step()

    refused = sut.reset_prefix_cache()
    run(sut)
    done = sut.reset_prefix_cache()
    sut.add_request(request("b", range(40), reply=1))
    step = sut.step()

    assert (refused, done) == (False, True)
    assert [one.cached_tokens for one in step.admitted] == [0]
    assert type(step.events[0]).__name__ == "AllBlocksCleared"


def test_a_prompt_is_computed_in_pieces_where_others_wait_too():
    sut = engine(long_prefill_token_threshold=20)
    sut.add_request(request("a", other_prompt(1, 50)))
    alone = sut.step().scheduled
    sut.add_request(request("b", other_prompt(2, 50)))
    sut.add_request(request("c", other_prompt(3, 50)))
    together = sut.step().scheduled

    assert (alone, together) == ({"a": 50}, {"a": 1, "b": 20, "c": 20})


def test_without_reserving_the_prompt_a_request_is_admitted_for_its_first_piece():
    sut = engine(num_gpu_blocks=12, reserve_full_prompt=False)
    sut.add_request(request("a", other_prompt(1, 100), reply=2))
    sut.step()
    sut.step()
    sut.add_request(request("b", other_prompt(2, 120), reply=2))

    step = sut.step()

    assert step.admitted[0].request_id == "b"


def test_the_watermark_keeps_blocks_free_while_anybody_runs():
    sut = engine(num_gpu_blocks=12, watermark=0.5)
    sut.add_request(request("a", other_prompt(1, 60), reply=9))
    sut.step()
    sut.add_request(request("b", other_prompt(2, 60), reply=9))

    assert sut.step().admitted == []


def test_an_aborted_request_is_no_longer_deferred():
    sut = engine(max_loras=1)
    sut.add_request(request("a", adapter="x", reply=9))
    sut.add_request(request("b", adapter="y", reply=9))
    sut.step()

    sut.abort("b")

    assert sut.load.deferred == 0
