"""The plan of the load: what is asked follows from the seed alone."""

from collections import Counter
from itertools import islice

import pytest

from epp.demo.load import ADAPTERS, BASE_MODEL, GROUPS, Group, Planned, plan, system_prompt

SOME = 400


def some(seed: int = 1, pause_seconds: float = 0.4) -> list[Planned]:
    return list(islice(plan(seed, pause_seconds), SOME))


def opening(planned: Planned) -> str:
    """What a request's prompt begins with, and others of its group with it."""
    assert planned.body is not None
    if "messages" in planned.body:
        return str(planned.body["messages"][0]["content"])
    return str(planned.body["prompt"]).rpartition("\n")[0]


def test_equal_seeds_plan_equal_requests() -> None:
    assert some(3) == some(3)


def test_other_seeds_plan_other_requests() -> None:
    assert [one.body for one in some(3)] != [one.body for one in some(4)]


def test_every_request_has_an_id_of_its_own() -> None:
    assert len({one.id for one in some()}) == SOME


def test_half_of_the_load_streams_and_asks_for_its_usage() -> None:
    asking = [one for one in some() if one.group.kind != "models"]
    streams = [one for one in asking if one.stream]

    assert 0.4 < len(streams) / len(asking) < 0.6
    assert all((one.body or {})["stream_options"] == {"include_usage": True} for one in streams)


def test_every_group_and_model_gets_its_part() -> None:
    requests = some()

    assert {one.group for one in requests} == set(GROUPS)
    assert {one.group.model for one in requests} == {BASE_MODEL, *ADAPTERS, ""}


@pytest.mark.parametrize("group", [one for one in GROUPS if one.name], ids=lambda one: one.name)
def test_requests_of_a_group_share_their_system_prompt_and_differ_behind_it(group: Group) -> None:
    members = [one for one in some() if one.group == group]

    assert {opening(one) for one in members} == {system_prompt(group.name)}
    assert len({str(one.body) for one in members}) == len(members)


def test_system_prompts_differ_from_the_first_block_on() -> None:
    starts = Counter(system_prompt(one.name)[:64] for one in GROUPS if one.name)

    assert max(starts.values()) == 1


def test_pauses_are_as_long_on_average_as_asked_for() -> None:
    pauses = [one.pause_seconds for one in some(pause_seconds=2.0)]

    assert sum(pauses) / SOME == pytest.approx(2.0, rel=0.2)
    assert max(pauses) <= 8.0


def test_listing_the_models_has_no_body() -> None:
    bodies = [one.body for one in some() if one.group.kind == "models"]

    assert bodies
    assert set(bodies) == {None}
