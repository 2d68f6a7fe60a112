"""
The oldest Envoy that PyPI has in a wheel, 1.36.2, before both doors of the picker.

`make oldest-envoy` puts it beside the current one; CI does that. Gateways that are released, and
still run, bring Envoys as old as this.
"""

from pathlib import Path

import aiohttp
import pytest

from epp.demo import envoy
from stack import MODEL, REFERENCES, Picker, gateway_config

BINARY = Path(__file__).parents[1] / ".cache/envoy-1.36.2/envoy/_bin/envoy"

pytestmark = pytest.mark.skipif(
    not BINARY.exists(), reason="the old Envoy is not here: make oldest-envoy"
)


@pytest.mark.parametrize("name", REFERENCES)
async def test_requests_are_routed_through_it(
    name: str, pickers: dict[bool, Picker], simulators: list[int], folder: Path
) -> None:
    text = gateway_config(name)
    secure = envoy.speaks_tls(text)
    picker = pickers[secure]
    config = envoy.adapted(
        text, picker_port=picker.ports.grpc, pool_ports=simulators, secure=secure
    )
    picked = await picker.metric("epp_endpoint_picks_total")
    body = {"model": MODEL, "prompt": "hello", "max_tokens": 4}

    async with (
        envoy.running(config, folder, binary=str(BINARY)) as running,
        aiohttp.ClientSession() as session,
    ):
        statuses, tokens = [], []
        for _ in range(5):
            async with session.post(f"{running.url}/v1/completions", json=body) as response:
                statuses.append(response.status)
                tokens.append((await response.json())["usage"]["completion_tokens"])
        async with session.post(
            f"{running.url}/v1/completions", json=body | {"stream": True}
        ) as response:
            lines = [line.strip() async for line in response.content if line.strip()]
        await picker.idle()

    assert (statuses, tokens) == ([200] * 5, [4] * 5)
    assert lines[-1] == b"data: [DONE]"
    assert await picker.metric("epp_endpoint_picks_total") == picked + 6
