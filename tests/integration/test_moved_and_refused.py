"""A request that another endpoint serves, and one that the model server refuses."""

import json
from pathlib import Path

import pytest

from epp.framework import RawRequest, TerminationCause
from epp.requestcontrol.director import RoutedRequest
from support import wire
from support.core import Core
from support.plugins import registry

PROMPT = json.dumps({"model": "m", "prompt": "tell me of the sea " * 200}).encode()


async def send(core: Core, body: bytes = PROMPT) -> RoutedRequest:
    return await core.app.director.handle_request(RawRequest(wire.POST, body))


def answer(core: Core, routed: RoutedRequest, status: int, served: str | None = None) -> None:
    director = core.app.director
    director.on_response_headers(
        routed, status=status, media="json", served=served, body_follows=True
    )
    director.on_response_body(routed, b"{}")
    director.on_response_end(routed)
    director.finish(routed, TerminationCause.COMPLETED)


async def test_what_another_endpoint_served_is_known_there() -> None:
    core = Core([{}] * 4)
    first = await send(core)
    [other] = [one for one in core.app.datastore.endpoints() if one.id.name == "pod-2"]
    chosen = first.endpoint.destination
    if chosen == other.destination:
        other = next(one for one in core.app.datastore.endpoints() if one.destination != chosen)

    answer(core, first, 200, served=other.destination)
    picks = set()
    for _ in range(5):
        routed = await send(core)
        picks.add(routed.endpoint.destination)
        answer(core, routed, 200)

    assert picks == {other.destination}
    assert core.in_flight == 0


@pytest.mark.parametrize("status", [400, 404, 429])
async def test_a_refused_prompt_is_cached_nowhere(status: int) -> None:
    core = Core([{}] * 4)

    answer(core, await send(core), status)
    [state] = [
        dumped
        for name, dumped in core.app.state()["plugins"].items()
        if name == "approx-prefix-cache-producer"
    ]

    assert state["heldBlocks"] == 0
    assert core.in_flight == 0


@pytest.mark.parametrize("status", [200, 404])
async def test_only_what_was_not_refused_is_a_completion(status: int) -> None:
    core = Core([{}])

    answer(core, await send(core), status)

    cause = "completed" if status == 200 else "refused"
    assert core.metric("epp_requests_finished_total", model="m", cause=cause) == 1


async def test_a_picker_that_picks_nonsense_leaks_nothing(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(
        "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"
        "plugins: [{type: nonsense-picker}, {type: lora-affinity-scorer},"
        " {type: token-load-scorer}]"
    )
    core = Core([{}] * 2, config=config, registry=registry())

    for _ in range(3):
        answer(core, await send(core), 200)

    assert core.total("epp_plugin_errors_total") == 3
    assert core.in_flight == 0
