"""Faults: what goes wrong when it was asked for."""

import asyncio
import json
from typing import Any

import pytest

from epp.simulator.engine import StepTiming
from epp.simulator.faults import Faults, FaultSwitch
from support.simulated import (
    CAPTURES,
    CHAT,
    COMPLETIONS,
    HELLO,
    RESPONSES,
    TINY,
    ask_once,
    client,
    events,
    options,
)

pytestmark = pytest.mark.looptime(False)  # noqa: FBT003  # the marker has no name for it

DEATH = (CAPTURES / "engine_death.txt").read_text()


def faulty(**faults: Any) -> Any:
    return options(faults=Faults(**faults))


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (500, "InternalServerError"),
        (503, "Service Unavailable"),
        (429, "Too Many Requests"),
        (599, "Error"),
    ],
)
async def test_a_request_can_be_made_to_fail(status: int, kind: str):
    served = faulty(fail_share=1, fail_status=status)

    answer = await ask_once(COMPLETIONS, TINY, served=served)

    assert (answer.status, answer.json["error"]["type"]) == (status, kind)
    assert answer.json["error"]["code"] == status


def test_the_shares_are_those_asked_for_and_the_same_each_time():
    def drawn(seed: int) -> list[str | None]:
        switch = FaultSwitch(Faults(fail_share=0.1, hang_share=0.3), seed)
        return [switch.draw() for _ in range(10_000)]

    once = drawn(0)

    assert once == drawn(0)
    assert once != drawn(1)
    assert once.count("fail") == pytest.approx(1000, abs=150)
    assert once.count("hang") == pytest.approx(3000, abs=250)


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT, RESPONSES, "/v1/embeddings"])
async def test_all_that_generates_can_fail_and_nothing_else(path: str):
    async with client(faulty(fail_share=1)) as (_, ask):
        generated = await ask(path, TINY | {"messages": HELLO, "input": "x"})
        listed = await ask("/v1/models")

    assert (generated.status, listed.status) == (500, 200)


async def test_a_hanging_request_is_never_answered_and_never_in_an_engine():
    async with client(faulty(hang_share=1)) as (simulator, ask):
        asking = asyncio.create_task(ask(COMPLETIONS, TINY))
        done, _ = await asyncio.wait([asking], timeout=0.1)
        asking.cancel()

        assert not done
        assert simulator.engines[0].requests == 0


@pytest.mark.parametrize("path", ["/health", "/ping"])
async def test_a_server_can_say_that_it_is_ill(path: str):
    answer = await ask_once(path, served=faulty(fail_health=True))

    assert answer.status == 503


async def test_faults_are_changed_while_it_runs():
    async with client() as (_, ask):
        changed = await ask("/faults", {"fail_share": 1.0, "fail_status": 503})
        failed = await ask(COMPLETIONS, TINY)
        await ask("/faults", {"fail_share": 0})
        served = await ask(COMPLETIONS, TINY)
        shown = await ask("/faults")

    assert changed.json == json.loads(
        '{"fail_share": 1.0, "fail_status": 503, "hang_share": 0.0, "slow_down": 1.0,'
        ' "die_at_step": null, "fail_health": false}'
    )
    assert (failed.status, served.status) == (503, 200)
    assert (shown.json["fail_share"], shown.json["fail_status"]) == (0.0, 503)


@pytest.mark.parametrize(
    "body",
    [
        {"fail_share": 2},
        {"fail_share": 0.5, "hang_share": 0.6},
        {"fail_status": 200},
        {"slow_down": 0},
        {"slow_down": 1e300},
        {"nonsense": 1},
        [],
        b"{",
    ],
    ids=["share", "shares", "status", "factor", "large factor", "name", "list", "JSON"],
)
async def test_faults_that_are_none_are_refused_and_change_nothing(body: Any):
    async with client() as (_, ask):
        refused = await ask("/faults", body)
        shown = await ask("/faults")

    assert refused.status == 400
    assert shown.json["fail_share"] == 0


async def test_what_is_under_way_when_the_engine_dies_ends_as_with_vllm():
    served = faulty(die_at_step=4)
    async with client(served) as (simulator, ask):
        whole, stream = await asyncio.gather(
            ask(COMPLETIONS, TINY | {"max_tokens": 99}),
            ask(COMPLETIONS, TINY | {"max_tokens": 99, "stream": True}),
        )
        late = await ask(COMPLETIONS, TINY)
        health = await ask("/health")

        assert simulator.dead.is_set()
    body = DEATH.partition("## non-stream\n")[2].partition(" HTTP ")[0]
    tail = DEATH.partition("447}}\n\n")[2].partition("## non-stream")[0].strip()
    assert (whole.status, whole.body.decode()) == (500, body)
    assert (late.status, late.body.decode()) == (500, body)
    assert stream.status == 200
    assert stream.body.decode().endswith(f"\n\n{tail}\n\n")
    assert health.status == 503


async def test_an_error_of_its_own_kills_the_engine_in_the_same_way():
    broken = options(timing=StepTiming(base_seconds="none"), data_parallel_size=2)
    async with client(broken) as (simulator, ask):
        whole = await ask(COMPLETIONS, TINY)
        late = await ask(COMPLETIONS, TINY)
        health = await ask("/health")

        assert simulator.dead.is_set()
    body = DEATH.partition("## non-stream\n")[2].partition(" HTTP ")[0]
    assert (whole.status, whole.body.decode()) == (500, body)
    assert (late.status, late.body.decode()) == (500, body)
    assert health.status == 503
    assert "TypeError in epp.simulator.engine.timing, line " in simulator.cause_of_death


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT, RESPONSES])
async def test_a_stream_that_breaks_says_so_in_its_last_event(path: str):
    body = {"prompt": "x", "messages": HELLO, "input": "x", "stream": True}

    answer = await ask_once(path, body, served=faulty(die_at_step=3))

    *_, error, done = events(answer.body)
    assert (error["error"]["code"], done) == (500, b"[DONE]")
