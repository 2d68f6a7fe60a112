"""The requests that the benchmarks send."""

import itertools

import msgspec
import pytest

from benchmarks import upstream
from benchmarks.upstream import Wanted
from benchmarks.workloads import HELD, SCENARIOS, SHORT, WORKLOADS, Workload, http_request


@pytest.mark.parametrize("workload", [*WORKLOADS, HELD], ids=lambda one: one.name)
def test_a_body_says_what_the_workload_is(workload: Workload) -> None:
    body = msgspec.json.decode(workload.bodies(1)[0])

    assert (len(body["prompt"]), body["stream"], body["max_tokens"]) == (
        workload.prompt_bytes,
        workload.stream,
        workload.tokens,
    )


@pytest.mark.parametrize("workload", [*WORKLOADS, HELD], ids=lambda one: one.name)
def test_the_upstream_understands_a_request(workload: Workload) -> None:
    request = http_request(workload.bodies(1)[0])

    assert upstream.request_size(request) == len(request)
    assert upstream.wanted(request) == Wanted(workload.stream, workload.tokens)


def test_prompts_share_their_first_half_and_differ_in_the_second() -> None:
    prompts = [msgspec.json.decode(body)["prompt"] for body in SHORT.bodies(10)]
    half = SHORT.prompt_bytes // 2

    assert len({prompt[:half] for prompt in prompts}) == 1
    assert all(one[half:] != other[half:] for one, other in itertools.combinations(prompts, 2))


def test_two_runs_send_the_same_bodies() -> None:
    assert SHORT.bodies() == SHORT.bodies()


def test_every_scenario_has_a_name_of_its_own() -> None:
    names = [one.name for one in SCENARIOS]

    assert sorted(set(names)) == sorted(names)
