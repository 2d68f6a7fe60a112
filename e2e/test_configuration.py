"""A plugin that is a file, a configuration that changes, and a picker that says why."""

import asyncio
import contextlib
import json
from collections.abc import Callable
from pathlib import Path

import aiohttp

from epp.demo import processes
from epp.demo.envoy import Envoy
from stack import MODEL, Picker, gateway

LaunchPicker = Callable[..., contextlib.AbstractAsyncContextManager[Picker]]

FIVE_LINES = """\
class ChosenScorer:
    def __init__(self, *, name: str) -> None:
        self.name = name
    def score(self, request, endpoints):
        return [float(one.id.name == self.name) for one in endpoints]
"""
CONFIG = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins: [{{name: chosen, type: chosen.py, parameters: {{name: {name}}}}}]
"""


async def ask(envoy: Envoy, session: aiohttp.ClientSession, **headers: str) -> dict[str, str]:
    """The headers of a response."""
    body = {"model": MODEL, "prompt": "hello", "max_tokens": 1}
    async with session.post(f"{envoy.url}/v1/completions", json=body, headers=headers) as response:
        assert response.status == 200, await response.text()
        return dict(response.headers)


async def epp(*arguments: str) -> str:
    """What a command of ours prints."""
    child = await asyncio.create_subprocess_exec(
        processes.command("epp"), *arguments, stdout=asyncio.subprocess.PIPE
    )
    output, _ = await child.communicate()
    assert child.returncode == 0
    return output.decode()


async def test_a_scorer_of_five_lines_in_a_file_changes_the_routing(
    simulators: list[int], launch_picker: LaunchPicker, tmp_path: Path
) -> None:
    """And where it sends requests changes with the file, without a restart."""
    (tmp_path / "chosen.py").write_text(FIVE_LINES)
    config = tmp_path / "config.yaml"
    config.write_text(CONFIG.format(name="s1"))
    options = ["--config-file", str(config), "--explain-header"]

    async with (
        launch_picker(simulators, *options) as picker,
        gateway("lean", {True: picker}, simulators, tmp_path) as (envoy, _),
        aiohttp.ClientSession() as session,
    ):
        for _ in range(5):
            await ask(envoy, session)
        first = await picker.metric("epp_endpoint_picks_total", endpoint="default/s1")
        config.write_text(CONFIG.format(name="s2"))
        async with asyncio.timeout(20):
            while not await picker.metric("epp_config_reloads_total", result="success"):  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.05)
        headers = await ask(envoy, session, **{"x-epp-explain": "1", "x-request-id": "why-there"})
        address = f"127.0.0.1:{picker.ports.metrics}"
        decision = json.loads(await epp("explain", "why-there", "--address", address, "--json"))
        table = await epp("explain", "--address", address)

    told = json.loads(headers["x-epp-explain"])
    assert first == 5
    assert decision["endpoint"] == "default/s2"
    assert told["profiles"]["default"]["picked"] == ["default/s2"]
    assert "profile default, 3 candidates" in table
