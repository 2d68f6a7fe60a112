"""A configuration exchanged between two requests, or not at all."""

import asyncio
from pathlib import Path

import pytest

from epp import app
from epp.app import Options
from epp.config import watch
from epp.framework import RawRequest, TerminationCause
from support.core import Core
from support.plugins import registry
from support.simulated import until

pytestmark = pytest.mark.looptime(False)  # noqa: FBT003  # threads read files in real time

HEAD = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"
NAMED = "plugins: [{{type: name-filter, parameters: {{keep: [{}]}}}}, {{type: header-hook}}]"
QUEUES = """\
plugins: [{type: queue-scorer}, {type: prefix-cache-scorer}, {type: max-score-picker}]
schedulingProfiles:
- name: default
  plugins: [{pluginRef: queue-scorer, weight: %s}, {pluginRef: prefix-cache-scorer}]
"""


def core(tmp_path: Path, text: str) -> Core:
    config = tmp_path / "config.yaml"
    config.write_text(HEAD + text)
    return Core([{"name": "a"}, {"name": "b"}], config=config, registry=registry())


async def test_the_next_request_is_decided_by_the_new_configuration(tmp_path: Path) -> None:
    picker = core(tmp_path, NAMED.format("a"))
    before = await picker.pick()

    done = await picker.app.reloader.reload((HEAD + NAMED.format("b")).encode())

    assert (before, done, await picker.pick()) == ("192.168.1.1:8000", True, "192.168.1.2:8000")
    assert picker.metric("epp_config_reloads_total", result="success") == 1


@pytest.mark.parametrize(
    ("text", "says"),
    [
        pytest.param("plugins: [{type: nope}]", "unknown plugin type 'nope'", id="wrong"),
        pytest.param(": ", "the configuration", id="no YAML"),
        pytest.param("plugins: [{type: raising.py}]", "cannot be made: KeyError", id="raises"),
        pytest.param("plugins: [{type: leaving.py}]", "SystemExit", id="exits"),
        pytest.param(
            NAMED.format("b") + "\ndataLayer: {injectDefaults: false}",
            "dataLayer.sources cannot change while the picker runs: restart it",
            id="other sources",
        ),
        pytest.param(
            "plugins: [{type: core-metrics-extractor, parameters: {defaultEngine: sglang}}]",
            "extractors cannot change",
            id="another extractor",
        ),
    ],
)
async def test_what_does_not_load_leaves_the_last_good_one(
    text: str, says: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "raising.py").write_text("class A:\n    def __init__(self):\n        {}[0]")
    (tmp_path / "leaving.py").write_text("import sys\nsys.exit(0)")
    picker = core(tmp_path, NAMED.format("a"))
    picker.app._registry._files._folder = tmp_path

    done = await picker.app.reloader.reload((HEAD + text).encode())

    assert (done, await picker.pick()) == (False, "192.168.1.1:8000")
    assert picker.metric("epp_config_reloads_total", result="failure") == 1
    assert says in caplog.text


async def test_a_plugin_that_stays_the_same_keeps_its_memory(tmp_path: Path) -> None:
    picker = core(tmp_path, QUEUES % 1)
    before = {one.name: one for one in picker.app.configuration.plugins}

    await picker.app.reloader.reload((HEAD + QUEUES % 2).encode())

    assert all(one is before[one.name] for one in picker.app.configuration.plugins)
    assert picker.app.decisions.dump()["weights"] == {
        "default": {"queue-scorer": 2, "prefix-cache-scorer": 1}
    }


async def test_a_request_ends_with_the_plugins_that_routed_it(tmp_path: Path) -> None:
    text = "plugins: [{type: response-hook, name: %s}]"
    picker = core(tmp_path, text % "old")
    director = picker.app.director
    routed = await director.handle_request(RawRequest({":path": "/v1/models"}, None))
    [old] = [one.plugin for one in picker.app.configuration.plugins if one.name == "old"]

    await picker.app.reloader.reload((HEAD + text % "new").encode())
    director.on_response_body(routed, b"x")
    director.finish(routed, TerminationCause.COMPLETED)
    [new] = [one.plugin for one in picker.app.configuration.plugins if one.name == "new"]

    assert (old.begun, new.begun, picker.in_flight) == (1, 0, 0)


async def test_a_file_is_read_again_when_its_content_changes(tmp_path: Path) -> None:
    """As a mounted ConfigMap changes: by a symbolic link that points elsewhere."""
    for name, text in (("one", "1"), ("two", "2")):
        (tmp_path / name).write_text(text)
    mounted = tmp_path / "mounted"
    mounted.symlink_to("one")
    seen = watch.changes(lambda: [mounted], {mounted: b"1"}, interval=0.01)

    async def change() -> None:
        await asyncio.sleep(0.05)
        mounted.unlink()
        await asyncio.sleep(0.05)
        mounted.symlink_to("two")

    async with asyncio.timeout(5), asyncio.TaskGroup() as group:
        group.create_task(change())
        found = await anext(seen)

    assert found == {mounted: b"2"}


async def test_a_running_picker_follows_its_file(tmp_path: Path) -> None:
    endpoints = tmp_path / "endpoints.yaml"
    endpoints.write_text("endpoints: [{name: a, address: 127.0.0.1, port: '1'}]")
    config = tmp_path / "config.yaml"
    config.write_text(HEAD + "plugins: [{type: queue-scorer}]")
    options = Options(
        bind_address="127.0.0.1", grpc_port=0, grpc_health_port=0, metrics_port=0,
        config_file=config, endpoints_file=endpoints, secure_serving=False, reload_interval=0.01,
    )  # fmt: skip

    async with asyncio.timeout(8), app.running(options) as picker:
        config.write_text(HEAD + "plugins: [{type: random-picker}]")
        await until(lambda: picker.configuration.profiles[0].picker.type == "random-picker")
        built = picker.configuration.profiles[0].picker.type

    assert built == "random-picker"


async def test_a_plugin_file_that_changes_is_taken_in(tmp_path: Path) -> None:
    """Also one that was broken before: it is read again when it is mended."""
    scorer = "class Mine:\n    def score(self, _, endpoints):\n        return [{}] * len(endpoints)"
    (tmp_path / "mine.py").write_text(scorer.format(0.0))
    (tmp_path / "endpoints.yaml").write_text(
        "endpoints: [{name: a, address: 127.0.0.1, port: '1'}]"
    )
    config = tmp_path / "config.yaml"
    config.write_text(HEAD + "plugins: [{name: mine, type: mine.py}]")
    options = Options(
        bind_address="127.0.0.1", grpc_port=0, grpc_health_port=0, metrics_port=0,
        config_file=config, endpoints_file=tmp_path / "endpoints.yaml", secure_serving=False,
        reload_interval=0.01,
    )  # fmt: skip

    async with asyncio.timeout(8), app.running(options) as picker:
        reloads = picker.metrics.registry.get_sample_value
        first = type(picker.configuration.profiles[0].scorers[0][0].plugin)
        (tmp_path / "mine.py").write_text("class:")
        await until(lambda: reloads("epp_config_reloads_total", {"result": "failure"}) == 1)
        (tmp_path / "mine.py").write_text(scorer.format(1.0))
        await until(lambda: reloads("epp_config_reloads_total", {"result": "success"}) == 1)
        mended = type(picker.configuration.profiles[0].scorers[0][0].plugin)

    assert first is not mended
