"""
The picker behind each gateway's own filter configuration, played by a real Envoy.

The files under `gateways/` hold what each gateway that supports InferencePool makes its Envoy do;
the two references of deploy/envoy are held to the same.
"""

import asyncio
import contextlib
import io
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp
import pytest
import pytest_asyncio

from epp.app import TRANSPORTS
from epp.demo.envoy import Envoy
from stack import GATEWAYS, MODEL, REFERENCES, Picker, gateway, metric

EVERYWHERE = REFERENCES + GATEWAYS

SHOWS_NO_RESPONSE = ["lean", "kubvernor-as-generated", "kubvernor-trailers-send"]
"""Their response bodies do not pass through the picker, which could put the name back."""

BUFFERS_LITTLE = ["envoy-ai-gateway-buffered"]
"""Its buffer is Envoy Gateway's default of 32 KiB: Envoy answers a larger request with a 413."""


@dataclass(frozen=True, slots=True)
class Gate:
    name: str
    envoy: Envoy
    picker: Picker
    session: aiohttp.ClientSession
    simulators: list[int]

    @property
    def url(self) -> str:
        return self.envoy.url


GATES = [(transport, name) for transport in TRANSPORTS for name in EVERYWHERE]


@pytest_asyncio.fixture(scope="module", loop_scope="session", params=GATES, ids="-".join)
async def gate(
    request: pytest.FixtureRequest,
    all_pickers: dict[str, dict[bool, Picker]],
    simulators: list[int],
    folder: Path,
) -> AsyncIterator[Gate]:
    transport, name = request.param
    async with (
        gateway(name, all_pickers[transport], simulators, folder) as (running, picker),
        aiohttp.ClientSession() as session,
    ):
        yield Gate(name, running, picker, session, simulators)


def completion(prompt: str = "hello", **fields: object) -> dict[str, object]:
    return {"model": MODEL, "prompt": prompt, "max_tokens": 4, **fields}


async def picks(gate: Gate) -> list[float]:
    """How often each endpoint was picked."""
    return [
        await gate.picker.metric("epp_endpoint_picks_total", endpoint=f"default/s{at}")
        for at in range(len(gate.simulators))
    ]


async def arrivals(gate: Gate) -> list[float]:
    """How many requests each simulator has served."""
    return [
        await metric(f"http://127.0.0.1:{port}", "vllm:request_success_total")
        for port in gate.simulators
    ]


async def test_a_get_is_answered_by_a_model_server(gate: Gate) -> None:
    async with gate.session.get(f"{gate.url}/v1/models") as response:
        models = await response.json()

    assert response.status == 200
    assert models["data"][0]["id"] == MODEL


async def test_requests_arrive_where_the_picker_sent_them(gate: Gate) -> None:
    picked, arrived = await picks(gate), await arrivals(gate)

    for at in range(6):
        async with gate.session.post(
            f"{gate.url}/v1/completions", json=completion(f"question {at}")
        ) as response:
            answer = await response.json()
            assert response.status == 200, answer
            assert answer["usage"]["completion_tokens"] == 4

    sent = [after - before for before, after in zip(picked, await picks(gate), strict=True)]
    came = [after - before for before, after in zip(arrived, await arrivals(gate), strict=True)]
    assert sum(sent) == 6
    assert sent == came
    await gate.picker.idle()


async def test_a_body_of_two_megabytes_arrives_whole(gate: Gate) -> None:
    prompt = "0123456789abcdef" * (2 * 65536)

    body = io.BytesIO(json.dumps(completion(prompt)).encode())

    async with gate.session.post(
        f"{gate.url}/v1/completions", data=body, headers={"content-type": "application/json"}
    ) as response:
        text = await response.text()

    if gate.name in BUFFERS_LITTLE:
        assert response.status == 413
        return
    assert response.status == 200, text[:500]
    assert json.loads(text)["usage"]["prompt_tokens"] >= len(prompt) // 8
    await gate.picker.idle()


async def test_a_stream_arrives_piece_by_piece_to_its_end(gate: Gate) -> None:
    body = completion(max_tokens=50, stream=True, stream_options={"include_usage": True})

    async with gate.session.post(f"{gate.url}/v1/completions", json=body) as response:
        lines = [line.strip() async for line in response.content if line.strip()]

    assert response.status == 200
    assert lines[-1] == b"data: [DONE]"
    assert len(lines) == 52
    await gate.picker.idle()


async def test_a_client_that_leaves_takes_nothing_with_it(gate: Gate) -> None:
    body = completion(max_tokens=100 if gate.name in BUFFERS_LITTLE else 2000, stream=True)
    async with gate.session.post(f"{gate.url}/v1/completions", json=body) as response:
        assert response.status == 200
        await response.content.readany()
        response.close()

    await gate.picker.idle()

    assert await gate.picker.metric("epp_requests_running") == 0


async def test_a_forged_destination_is_not_followed(gate: Gate) -> None:
    touched = []

    async def note(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        touched.append(True)
        writer.close()

    decoy = await asyncio.start_server(note, "127.0.0.1", 0)
    async with decoy:
        address = f"127.0.0.1:{decoy.sockets[0].getsockname()[1]}"
        headers = {"x-gateway-destination-endpoint": address}
        post = gate.session.post(f"{gate.url}/v1/completions", json=completion(), headers=headers)
        get = gate.session.get(f"{gate.url}/v1/models", headers=headers)
        async with post as posted, get as got:
            statuses = posted.status, got.status

    assert statuses == (200, 200)
    assert touched == []


@pytest.mark.parametrize("name", EVERYWHERE)
async def test_a_refusal_reaches_the_client(
    name: str, refusing_pickers: dict[bool, Picker], simulators: list[int], folder: Path
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        running, _ = await stack.enter_async_context(
            gateway(name, refusing_pickers, simulators, folder)
        )
        session = await stack.enter_async_context(aiohttp.ClientSession())
        async with session.post(f"{running.url}/v1/completions", json=completion()) as response:
            answer = await response.json()

    assert response.status == 429
    assert response.headers["x-llm-d-request-dropped-reason"] == "rejected-saturated"
    assert answer["error"]["code"] == 429


async def test_a_renamed_model_reaches_the_model_server_and_the_client_sees_its_own(
    gate: Gate,
) -> None:
    async with gate.session.post(
        f"{gate.url}/v1/completions",
        json=completion(model="a-name-of-another-length"),
        headers={"x-llm-d-model-name-rewrite": MODEL},
    ) as response:
        answer = await response.json()

    assert response.status == 200, answer
    shown = MODEL if gate.name in SHOWS_NO_RESPONSE else "a-name-of-another-length"
    assert answer["model"] == shown
    await gate.picker.idle()


async def test_malformed_json_gets_a_400_and_nothing_else(gate: Gate) -> None:
    async with gate.session.post(
        f"{gate.url}/v1/completions",
        data=b'{"model":',
        headers={"content-type": "application/json"},
    ) as response:
        answer = await response.json()

    assert response.status == 400
    assert answer["error"]["type"] == "BadRequest"
    assert await gate.picker.metric("epp_endpoint_in_flight") == 0
