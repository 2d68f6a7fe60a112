"""
Plugins that fail: never silence, never another request's harm, and nothing of what they raised
told.

Constraints fail closed (a filter, a parser); everything else fails open.
"""

import io
import json
from pathlib import Path

import pytest

from epp.observability import logs
from support import wire
from support.core import Core
from support.plugins import SECRET, registry

TWO = [{"name": "a"}, {"name": "b"}]


def core(
    tmp_path: Path, *plugins: str, timeout: float = 1.0, log: io.BytesIO | None = None
) -> Core:
    config = tmp_path / "config.yaml"
    listed = "\n".join(f"  - {plugin}" for plugin in plugins)
    config.write_text(
        f"apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\nplugins:\n{listed}\n"
    )
    return Core(
        TWO,
        config=config,
        registry=registry(),
        answer_timeout=timeout,
        log=logs.configure(verbosity=4, stream=log) if log is not None else None,
    )


@pytest.mark.parametrize(
    "plugin",
    [
        "{type: failing-scorer}",
        "{type: short-scorer}",
        "{type: failing-picker}",
        "{type: empty-picker}",
        "{type: failing-handler}",
        "{type: endless-handler}",
        "{type: failing-producer}",
        "{type: failing-hooks}",
        "{type: refusing-scorer}",
        "{type: refusing-picker}",
        "{type: refusing-hooks}",
        "{type: nonsense-picker}",
        "{type: rude-hook}",
        "{type: rude-hook, parameters: {name: x-gateway-destination-endpoint, value: '1.2.3.4:5'}}",
        "{type: rude-hook, parameters: {name: ':path', value: x}}",
        '{type: rude-hook, parameters: {name: x-a, value: "a\\nb"}}',
        "{type: exiting-scorer}",
    ],
)
async def test_a_preference_that_fails_leaves_a_pick(tmp_path: Path, plugin: str) -> None:
    picker = core(tmp_path, plugin)

    assert await picker.pick() in ("192.168.1.1:8000", "192.168.1.2:8000")
    assert picker.in_flight == 0
    assert picker.total("epp_requests_running") == 0


async def test_a_filter_that_fails_fails_the_request(tmp_path: Path) -> None:
    replies = await core(tmp_path, "{type: failing-filter}").play([wire.headers(), wire.body()])

    answer = replies[0].immediate_response
    assert answer.status.code == 500
    assert SECRET.encode() not in answer.body


async def test_a_parser_that_fails_fails_the_request(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text(
        "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"
        "plugins: [{type: failing-parser}]\n"
        "requestHandler: {parsers: [{pluginRef: failing-parser}]}\n"
    )
    replies = await Core(TWO, config=config, registry=registry()).play(
        [wire.headers(), wire.body()]
    )

    assert replies[0].immediate_response.status.code == 500


@pytest.mark.parametrize("plugin", ["failing-picker", "failing-handler"])
async def test_the_fallback_stays_within_the_filters(tmp_path: Path, plugin: str) -> None:
    picker = core(tmp_path, "{type: name-filter, parameters: {keep: [b]}}", f"{{type: {plugin}}}")

    assert {await picker.pick() for _ in range(10)} == {"192.168.1.2:8000"}


async def test_scores_beyond_the_range_are_clamped(tmp_path: Path) -> None:
    picker = core(tmp_path, "{type: wild-scorer}")

    assert {await picker.pick() for _ in range(10)} == {"192.168.1.1:8000"}


async def test_a_producer_that_waits_too_long_is_done_without(tmp_path: Path) -> None:
    picker = core(tmp_path, "{type: slow-producer, parameters: {seconds: 3600}}", timeout=0.5)

    assert await picker.pick() is not None
    assert picker.total("epp_decision_duration_seconds_count") == 1


async def test_failures_are_counted_and_logged_without_what_was_raised(tmp_path: Path) -> None:
    log = io.BytesIO()
    picker = core(tmp_path, "{type: failing-scorer}", "{type: failing-hooks}", log=log)

    await picker.pick()

    assert picker.total("epp_plugin_errors_total") == 3
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    assert any(line["level"] == "error" for line in lines)
    assert SECRET.encode() not in log.getvalue()


async def test_headers_of_a_pre_request_plugin_go_to_the_model_server(tmp_path: Path) -> None:
    picker = core(tmp_path, "{type: header-hook}", "{type: name-filter, parameters: {keep: [b]}}")

    replies = await picker.play([wire.headers(), wire.body()])

    assert wire.set_headers(replies[0])["x-picked"] == "b"


async def test_a_filter_that_returns_an_endpoint_twice_has_failed(tmp_path: Path) -> None:
    picker = core(tmp_path, "{type: doubling-filter}")

    assert await picker.pick() is None
    assert picker.total("epp_plugin_errors_total") == 1


async def test_a_scorer_that_changes_what_it_returned_is_looked_at_anew(tmp_path: Path) -> None:
    picker = core(tmp_path, "{type: reusing-scorer}")

    picks = [await picker.pick() for _ in range(4)]
    totals = [
        one["total"]
        for one in picker.app.decisions.dump()["decisions"][-1]["profiles"]["default"]["candidates"]
    ]

    assert picks[1:] == ["192.168.1.2:8000"] * 3
    assert max(totals) == 1.0


async def test_a_plugin_that_takes_too_long_is_counted_by_name(tmp_path: Path) -> None:
    picker = core(tmp_path, "{type: slow-scorer, parameters: {seconds: 0.06}}")

    await picker.pick()

    assert picker.total("epp_plugin_overruns_total") == 1


async def test_a_plugin_that_cannot_tell_its_state_leaves_the_others_theirs(tmp_path: Path) -> None:
    picker = core(tmp_path, "{type: silent-dumper}", "{type: prefix-cache-scorer}")

    plugins = picker.app.state()["plugins"]

    assert plugins["silent-dumper"] == {"error": "the plugin failed to tell"}
    assert "approx-prefix-cache-producer" in plugins
