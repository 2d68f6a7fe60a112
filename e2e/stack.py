"""
What the tests with real processes share: gateways by name, running pickers, and their metrics.
"""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from epp.demo import envoy, processes
from epp.demo.processes import PickerPorts

HERE = Path(__file__).parent
MODEL = "sim-model"

GATEWAYS = sorted(path.stem for path in (HERE / "gateways").glob("*.yaml"))
REFERENCES = ["full-duplex", "lean"]


def gateway_config(name: str) -> str:
    """The text of a gateway's configuration, or of one of our references."""
    if name in REFERENCES:
        return envoy.reference(name)
    return (HERE / "gateways" / f"{name}.yaml").read_text()


@dataclass(frozen=True, slots=True)
class Picker:
    """A running picker."""

    child: processes.Child
    ports: PickerPorts

    async def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric's series that have these labels."""
        return await metric(f"http://127.0.0.1:{self.ports.metrics}", name, **labels)

    async def idle(self) -> None:
        """Wait until no request is in flight; fails after twenty seconds."""
        async with asyncio.timeout(20):
            while await self.metric("epp_endpoint_in_flight"):  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.05)


async def metric(url: str, name: str, **labels: str) -> float:
    """The sum of a metric's series on a page that have these labels."""
    async with aiohttp.ClientSession() as session, session.get(f"{url}/metrics") as response:
        page = await response.text()
    total = 0.0
    for line in page.splitlines():
        match = re.fullmatch(rf"{re.escape(name)}(?:\{{(.*)\}})? (\S+)", line)
        if match and all(f'{key}="{value}"' in (match[1] or "") for key, value in labels.items()):
            total += float(match[2])
    return total


@contextlib.asynccontextmanager
async def gateway(
    name: str, pickers: dict[bool, Picker], simulators: Sequence[int], folder: Path
) -> AsyncIterator[tuple[envoy.Envoy, Picker]]:
    """An Envoy that plays a gateway, before the picker it can speak to."""
    text = gateway_config(name)
    picker = pickers[envoy.speaks_tls(text)]
    config = envoy.adapted(
        text,
        picker_port=picker.ports.grpc,
        pool_ports=simulators,
        secure=envoy.speaks_tls(text),
    )
    async with envoy.running(config, folder) as running:
        yield running, picker
