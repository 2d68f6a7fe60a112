"""
The discovery that reads a file; its changes are awaited in virtual time.

Reading happens in a thread, for which virtual time stands still.
"""

import asyncio
import json
import logging
import os
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import pytest

from epp.framework import (
    ConfigError,
    EndpointEvent,
    EndpointId,
    EndpointRemoved,
    EndpointUpserted,
    PluginContext,
    Registry,
    Synced,
)
from epp_plugins.discoveries.static_file import FileDiscovery
from epp_plugins.discoveries.static_file.address_book import AddressBook
from epp_plugins.discoveries.static_file.endpoints_file import EndpointsFile


def entry(**fields: Any) -> dict[str, Any]:
    return {"name": "a", "address": "10.0.0.1", "port": 8000} | fields


def document(*entries: Any) -> bytes:
    return json.dumps({"endpoints": entries}).encode()


def upserted(
    name: str = "a", address: str = "10.0.0.1", port: int = 8000, **labels: str
) -> EndpointUpserted:
    return EndpointUpserted(EndpointId("default", name), address, port, labels)


def removed(name: str) -> EndpointRemoved:
    return EndpointRemoved(EndpointId("default", name))


class Names:
    """A resolver that knows what it is told; a name that it does not know cannot be looked up."""

    def __init__(self, **known: Iterable[str]) -> None:
        self.known = dict(known)
        self.asked: list[str] = []

    async def __call__(self, host: str) -> Iterable[str]:
        self.asked.append(host)
        if host not in self.known:
            raise OSError(-2, "Name or service not known")
        return self.known[host]


class Following:
    """A discovery of a file in a folder, read one event at a time."""

    def __init__(self, folder: Path, *, names: Names | None = None, **parameters: Any) -> None:
        self.path = folder / "endpoints.yaml"
        self.discovery = FileDiscovery(
            path=str(self.path), context=PluginContext("file-discovery"), **parameters
        )
        book = AddressBook(names or Names())
        self.events: AsyncIterator[EndpointEvent] = self.discovery._follow(
            EndpointsFile(self.path), book
        )

    def write(self, *entries: Any) -> None:
        self.write_bytes(document(*entries))

    def write_bytes(self, content: bytes) -> None:
        fresh = self.path.with_suffix(".new")
        fresh.write_bytes(content)
        fresh.replace(self.path)

    async def until_synced(self) -> list[EndpointEvent]:
        found = []
        async for event in self.events:
            if isinstance(event, Synced):
                return found
            found.append(event)
        raise AssertionError

    async def next(self, count: int = 1) -> list[EndpointEvent]:
        async with asyncio.timeout(600):
            return [await anext(self.events) for _ in range(count)]


async def test_endpoints_come_first_then_synced_once_then_only_what_changed(
    tmp_path: Path,
) -> None:
    following = Following(tmp_path)
    following.write(entry(), entry(name="b", address="10.0.0.2"))
    first = await following.until_synced()
    following.write(entry(port=9000), entry(name="c"), entry(name="b", address="10.0.0.2"))
    second = await following.next(2)
    following.write(entry(port=9000, labels={"tier": "x"}), entry(name="c"))
    third = await following.next(2)

    assert first == [upserted("a"), upserted("b", "10.0.0.2")]
    assert second == [upserted("a", port=9000), upserted("c")]
    assert third == [upserted("a", port=9000, tier="x"), removed("b")]


async def test_a_file_may_become_empty_of_endpoints(tmp_path: Path) -> None:
    following = Following(tmp_path)
    following.write(entry())
    await following.until_synced()
    following.write()
    events = await following.next()

    assert events == [removed("a")]


async def test_a_change_is_seen_within_the_interval(tmp_path: Path) -> None:
    following = Following(tmp_path, poll_interval=7.0)
    following.write(entry())
    await following.until_synced()
    began = asyncio.get_running_loop().time()
    following.write(entry(port=9000))
    await following.next()

    assert asyncio.get_running_loop().time() - began == pytest.approx(7, abs=1)


async def test_a_config_map_that_is_swapped_is_seen(tmp_path: Path) -> None:
    """A ConfigMap is a folder behind a link, and the file a link through it."""
    for version, port in (("1", 8000), ("2", 9000)):
        (tmp_path / version).mkdir()
        (tmp_path / version / "endpoints.yaml").write_bytes(document(entry(port=port)))
    (tmp_path / "data").symlink_to("1")
    (tmp_path / "endpoints.yaml").symlink_to("data/endpoints.yaml")
    following = Following(tmp_path)
    first = await following.until_synced()
    (tmp_path / "data.new").symlink_to("2")
    (tmp_path / "data.new").rename(tmp_path / "data")
    second = await following.next()

    assert (first, second) == ([upserted()], [upserted(port=9000)])


async def test_a_broken_edit_changes_nothing_and_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    following = Following(tmp_path)
    following.write(entry())
    await following.until_synced()
    pending = asyncio.ensure_future(following.next())
    for content in (document(entry(port=0)), b"", document(entry(port=0))):
        following.write_bytes(content)
        await asyncio.sleep(10)
    silent = not pending.done()
    following.write(entry(port=9000))
    events = await pending
    warnings = [r.message for r in caplog.records if r.levelno == logging.WARNING]

    assert silent
    assert events == [upserted(port=9000)]
    assert len(warnings) == 3
    assert f"{following.path}: endpoints[0] (a): port: expected a number" in warnings[0]


async def test_a_file_that_vanishes_changes_nothing_and_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    following = Following(tmp_path)
    following.write(entry())
    await following.until_synced()
    pending = asyncio.ensure_future(following.next())
    following.path.unlink()
    await asyncio.sleep(10)
    following.write(entry())
    await asyncio.sleep(10)
    silent = not pending.done()
    following.write(entry(port=9000))
    events = await pending
    warnings = [r.message for r in caplog.records if r.levelno == logging.WARNING]

    assert silent
    assert events == [upserted(port=9000)]
    assert len(warnings) == 1
    assert f"{following.path}: expected a file of endpoints: No such file" in warnings[0]


@pytest.mark.parametrize("content", [document(entry()), b"endpoints: ["], ids=["good", "broken"])
async def test_a_file_that_is_only_touched_says_nothing_new(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes
) -> None:
    following = Following(tmp_path)
    following.write(entry())
    await following.until_synced()
    pending = asyncio.ensure_future(following.next())
    following.write_bytes(content)
    await asyncio.sleep(10)
    caplog.clear()
    for moment in range(3):
        os.utime(following.path, ns=(moment, moment))
        await asyncio.sleep(10)
    following.write_bytes(content)
    await asyncio.sleep(10)
    silent = not pending.done()
    pending.cancel()

    assert silent
    assert caplog.messages == []


async def test_without_watching_the_file_is_read_once(tmp_path: Path) -> None:
    following = Following(tmp_path, watch_file=False)
    following.write(entry())
    await following.until_synced()
    pending = asyncio.ensure_future(following.next())
    following.write(entry(port=9000))
    await asyncio.sleep(300)
    silent = not pending.done()
    pending.cancel()

    assert silent


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (None, "endpoints.yaml: expected a file of endpoints: No such file"),
        (b"endpoints: 1", "endpoints.yaml: expected a document"),
        (document(entry(port=0)), r"endpoints.yaml: endpoints\[0\] \(a\): port"),
    ],
    ids=["missing", "no list", "bad entry"],
)
async def test_a_first_reading_that_fails_is_an_error(
    tmp_path: Path, content: bytes | None, complaint: str
) -> None:
    following = Following(tmp_path)
    if content is not None:
        following.write_bytes(content)
    with pytest.raises(ConfigError, match=complaint):
        await following.until_synced()


async def test_a_name_becomes_its_first_address_and_follows_it(tmp_path: Path) -> None:
    names = Names(vllm=["10.0.0.9", "10.0.0.10", "fd00::1"])
    following = Following(tmp_path, names=names)
    following.write(entry(address="vllm"), entry(name="b", address="10.0.0.2"))
    first = await following.until_synced()
    began = asyncio.get_running_loop().time()
    names.known["vllm"] = ["10.0.0.10", "10.0.0.11"]
    second = await following.next()
    seconds = asyncio.get_running_loop().time() - began

    assert first == [upserted("a", "10.0.0.9"), upserted("b", "10.0.0.2")]
    assert second == [upserted("a", "10.0.0.10")]
    assert seconds == pytest.approx(30, abs=2)
    assert set(names.asked) == {"vllm"}


async def test_a_name_without_an_address_is_left_out_until_it_has_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    names = Names()
    following = Following(tmp_path, names=names)
    following.write(entry(address="vllm"), entry(name="b"))
    first = await following.until_synced()
    pending = asyncio.ensure_future(following.next())
    await asyncio.sleep(100)
    names.known["vllm"] = ["10.0.0.5"]
    second = await pending

    assert (first, second) == ([upserted("b")], [upserted("a", "10.0.0.5")])
    assert caplog.messages == [
        "cannot look up vllm (Name or service not known): its endpoints are left out"
    ]


async def test_a_file_that_names_a_new_host_has_it_looked_up_at_once(tmp_path: Path) -> None:
    following = Following(tmp_path, names=Names(vllm=["10.0.0.5"]))
    following.write(entry())
    await following.until_synced()
    began = asyncio.get_running_loop().time()
    following.write(entry(), entry(name="b", address="vllm"))
    events = await following.next()

    assert events == [upserted("b", "10.0.0.5")]
    assert asyncio.get_running_loop().time() - began < 5


@pytest.mark.looptime(False)  # noqa: FBT003 - the system's resolver takes real time
async def test_the_plugin_itself_reads_a_file_and_looks_names_up(tmp_path: Path) -> None:
    path = tmp_path / "endpoints.yaml"
    path.write_bytes(document(entry(address="localhost")))
    context = PluginContext("file-discovery")
    events = FileDiscovery(path=str(path), poll_interval=0.01, context=context).discover()
    first = [await anext(events), await anext(events)]
    path.write_bytes(document(entry(), entry(name="b")))
    second = [await anext(events), await anext(events)]
    await events.aclose()

    assert isinstance(first[0], EndpointUpserted)
    assert first[0].address in ("127.0.0.1", "::1")
    assert first[1] == Synced()
    assert second == [upserted("a"), upserted("b")]


@pytest.mark.parametrize(
    ("parameters", "complaint"),
    [
        ({}, "missing required field `path`"),
        ({"path": ""}, "path must not be empty"),
        ({"path": "x", "pollInterval": 0}, "pollInterval"),
        ({"path": "x", "watch": True}, "unknown field `watch`"),
    ],
    ids=["no path", "empty path", "no interval", "unknown"],
)
def test_parameters_that_make_no_sense_are_refused(
    parameters: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        Registry().build("file-discovery", "file-discovery", parameters)
