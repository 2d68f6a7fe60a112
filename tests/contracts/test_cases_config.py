"""
The field's acceptance cases of the area config, from their data: what loads, what is filled in,
and what is refused.
"""

import asyncio
import inspect
import json
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from click.testing import CliRunner

from epp import cli
from epp.config import loader, schema
from epp.config.loader import Configuration
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
from support import cases

Case = dict[str, Any]

CASES = cases.load("config")
REGISTRY = Registry()

FLOW_CONTROL = "flow control comes with its own issue: refused by name"

DIFFERING = {
    "cfg-012-flow-control-values": FLOW_CONTROL,
    "cfg-013-ttl-inheritance": FLOW_CONTROL,
    "cfg-014-band-limits": FLOW_CONTROL,
    "cfg-015-negative-band-template": FLOW_CONTROL,
    "cfg-016-policy-refs": FLOW_CONTROL,
    "cfg-018-saturation-detector": "saturation detection comes with flow control: refused by name",
    "cfg-023-well-known-configs": "the nine files configure prefill/decode disaggregation, which"
    " comes later and is refused by name; the field's documented files without it load, see below",
    "cfg-024-flags": "--config-text and --endpoint-target-ports come with Kubernetes, where a pool"
    " has ports; --drain-timeout is tested below",
}

DIFFERING_ROWS = {
    "cfg-019-data-layer": {
        "dataLayer with another source only": "one source is polled, which is the one configured;"
        " the default extractor is added to it",
    },
    "cfg-022-auto-created-producers": {
        "profile uses prefix-cache-scorer only": "the prefix producer hashes bytes of the prompt"
        " and reads no tokens, so that no token-producer is needed, and none is added",
    },
    "cfg-027-file-discovery": {
        "address not-an-ip": "it may be a DNS name",
        "address ::1": "IPv6 is served",
    },
}
"""Rows of tested cases where this picker differs, or has no room for them yet."""

CHECKS = cases.Checks()
case = CHECKS.register


def test_every_binding_case_is_tested_or_has_a_reason() -> None:
    assert cases.unaccounted(CASES, CHECKS, DIFFERING) == set()
    assert set(CHECKS) | set(DIFFERING) <= set(CASES)
    assert not set(CHECKS) & set(DIFFERING)
    for name, rows in DIFFERING_ROWS.items():
        assert rows.keys() <= set(CASES[name]["when"]["table"])


def load(*types: str, api_version: str = schema.API_VERSION, **sections: Any) -> Configuration:
    """Load a document with plugins of these types, and further sections."""
    document = {
        "apiVersion": api_version,
        "kind": schema.KIND,
        "plugins": [{"type": one} for one in types],
        **sections,
    }
    return loader.load(yaml.safe_dump(document).encode(), REGISTRY)


def types_of(built: Configuration) -> list[str]:
    return [one.type for one in built.plugins]


def refusal(*types: str, **sections: Any) -> str:
    """What is said about a document that does not load."""
    with pytest.raises(ConfigError) as refused:
        load(*types, **sections)
    return str(refused.value)


def rows_of(data: Case) -> Iterable[tuple[str, Any]]:
    return zip(data["when"]["table"], data["then"]["table"], strict=True)


# What loads


@case("cfg-003-old-api-group")
def old_api_group(data: Case) -> None:
    sent, then = data["when"][0], data["then"]
    assert sent["kind"] == schema.KIND

    built = load("queue-scorer", api_version=sent["config_apiVersion"])

    assert (built.profiles[0].name == "default") is then["loads"]
    assert len(built.warnings) == 1
    assert all(word in built.warnings[0] for word in then["warning"].split())


def with_name(name: str, plugin_type: str) -> dict[str, str]:
    return {"name": name, "type": plugin_type}


@case("cfg-004-default-weight")
def default_weight(data: Case) -> None:
    refs, then = data["when"][0]["profile_plugins"], data["then"]
    plugins = [with_name(ref["pluginRef"], "queue-scorer") for ref in refs]
    built = load(plugins=plugins, schedulingProfiles=[{"name": "default", "plugins": refs}])

    [profile] = built.profiles
    assert [weight for _, weight in profile.scorers] == [then["weight"]]
    assert profile.picker.type == then["picker_added"]

    plugins = [with_name("picker", then["picker_added"]), *plugins]
    refs = [{"pluginRef": "picker"}, *refs]
    built = load(plugins=plugins, schedulingProfiles=[{"name": "default", "plugins": refs}])

    [profile] = built.profiles
    assert [weight for _, weight in profile.scorers] == [then["weight"]]
    assert profile.picker.name == "picker"


@case("cfg-006-profile-handler-injection")
def profile_handlers(data: Case) -> None:
    single, header = "single-profile-handler", "header-profile-handler"
    documents: Mapping[str, tuple[list[str], int]] = {
        "one profile, no handler": ([], 1),
        "two profiles, no handler": ([], 2),
        f"two profiles, {single}": ([single], 2),
        "two handlers": ([single, header], 1),
    }
    for row, wanted in rows_of(data):
        types, count = documents[row]
        profiles = [{"name": f"profile-{at}"} for at in range(count)]
        if wanted == "error":
            assert "profile" in refusal(*types, schedulingProfiles=profiles)
        else:
            built = load(*types, schedulingProfiles=profiles)
            assert f"{built.profile_handler.type} injected" == wanted


@case("cfg-019-data-layer")
def data_layer(data: Case) -> None:
    source, extractor = "metrics-data-source", "core-metrics-extractor"
    own = with_name("mine", source)
    none = {"sources": [{"pluginRef": "nope"}]}
    no_extractor = {"sources": [{"pluginRef": source, "extractors": [{"pluginRef": "nope"}]}]}
    documents: Mapping[str, dict[str, Any]] = {
        "no dataLayer": {},
        "dataLayer {}": {"dataLayer": {}},
        "dataLayer with another source only": {
            "plugins": [own],
            "dataLayer": {"sources": [{"pluginRef": "mine"}]},
        },
        "dataLayer injectDefaults false": {"dataLayer": {"injectDefaults": False}},
        "source pluginRef undefined": {"dataLayer": none},
        "extractor pluginRef undefined": {"plugins": [{"type": source}], "dataLayer": no_extractor},
    }
    for row, wanted in rows_of(data):
        document = documents[row]
        if wanted == "error":
            assert "no plugin is named 'nope'" in refusal(**document)
            continue
        built = load(**document)
        layer = [one and (one.type, one.name) for one in (built.source, built.extractor)]
        if wanted == "nothing added":
            assert layer == [None, None]
        elif row in DIFFERING_ROWS[data["id"]]:
            assert layer == [(source, "mine"), (extractor, extractor)]
        else:
            assert wanted in ("metrics source and extractor added", "added")
            assert layer == [(source, source), (extractor, extractor)]


@case("cfg-020-filter-order")
def filter_order(data: Case) -> None:
    names = data["when"][0]["profile_plugins"]
    plugins = [
        with_name(name, "queue-scorer" if name == "scorer" else "decode-filter") for name in names
    ]
    refs = [{"pluginRef": name} for name in names]

    built = load(plugins=plugins, schedulingProfiles=[{"name": "default", "plugins": refs}])

    filters = [one.name for one in built.profiles[0].filters]
    assert filters == data["then"]["filters_run_in"]


@case("cfg-022-auto-created-producers")
def auto_created_producers(data: Case) -> None:
    prefix, tokens, load_of = (
        "approx-prefix-cache-producer",
        "token-producer",
        "inflight-load-producer",
    )

    def producers(*types: str, **sections: Any) -> list[tuple[str, str]]:
        listed = load(*types, **sections).plugins
        return [(one.type, one.name) for one in listed if one.type.endswith("-producer")]

    of_prefix = producers("prefix-cache-scorer")
    of_load = producers("token-load-scorer")
    declared = producers(plugins=[{"type": "prefix-cache-scorer"}, with_name("mine", prefix)])

    assert data["then"]["table"] == [
        f"{prefix} and {tokens} appear on their own",
        f"{load_of} appears",
        "the declared one is used, none added",
    ]
    assert of_prefix == [(prefix, prefix)]
    assert (load_of, load_of) in of_load
    assert declared == [(prefix, "mine")]
    # What a producer reads in turn is added too.
    assert (tokens, tokens) in of_load
    assert (prefix, prefix) in of_load


# What comes later is refused by its name


def flow_control(section: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    return {"flowControl": dict(section), **more}


REFUSED: Mapping[str, Callable[[Case], Iterable[dict[str, Any]]]] = {
    "cfg-012-flow-control-values": lambda data: data["when"],
    "cfg-013-ttl-inheritance": lambda data: map(flow_control, data["when"]["table"]),
    "cfg-014-band-limits": lambda data: map(flow_control, data["when"]["table"]),
    "cfg-015-negative-band-template": lambda data: map(flow_control, data["when"]["table"]),
    "cfg-016-policy-refs": lambda _: [
        flow_control({"usageLimitPolicyPluginRef": "mine"}),
        flow_control({"priorityBands": [{"priority": 0, "fairnessPolicyRef": "mine"}]}),
    ],
    "cfg-018-saturation-detector": lambda _: [
        flow_control({"saturationDetector": {"pluginRef": "mine"}}),
        {"saturationDetector": {"pluginRef": "mine"}},
    ],
}


@pytest.mark.parametrize("name", REFUSED)
def test_flow_control_is_refused_by_its_name(name: str) -> None:
    data = CASES[name]
    for document in REFUSED[name](data):
        [section] = document

        assert refusal(**document).startswith(f"{section}: this version has no ")

    for gate in data["given"].get("featureGates", []):
        said = refusal(featureGates=[gate])
        assert said == "featureGates[0]: this version has no flow control yet; remove it"
        assert load(featureGates=[f"{gate}=false"]).profiles


@pytest.mark.parametrize(
    "plugin_type",
    [
        CASES["cfg-012-flow-control-values"]["then"]["fairness"],
        CASES["cfg-012-flow-control-values"]["then"]["ordering"],
        CASES["cfg-016-policy-refs"]["then"]["table"][-1].split()[0],
        CASES["cfg-018-saturation-detector"]["then"]["table"][0].split()[0],
        "disagg-headers-handler",
        "prefill-header-handler",
        "pd-profile-handler",
        "disagg-profile-handler",
        CASES["cfg-026-data-parallel-handler"]["given"]["plugin"],
    ],
)
def test_plugins_that_come_later_are_refused_by_their_name(plugin_type: str) -> None:
    said = refusal(plugin_type)

    assert f"plugin type {plugin_type!r}: this version has no" in said


# Files of the field

DEFAULT_PLUGINS = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: queue-scorer
- type: kv-cache-utilization-scorer
- type: prefix-cache-scorer
- type: metrics-data-source
  parameters: {scheme: https, path: /metrics, insecureSkipVerify: true}
- type: core-metrics-extractor
dataLayer:
  sources:
  - pluginRef: metrics-data-source
    extractors: [{pluginRef: core-metrics-extractor}]
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: queue-scorer, weight: 2}
  - {pluginRef: kv-cache-utilization-scorer, weight: 2}
  - {pluginRef: prefix-cache-scorer, weight: 3}
"""

PAYLOAD_AGNOSTIC = """\
apiVersion: llm-d.ai/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: passthrough-parser
- type: active-request-scorer
- type: session-affinity-scorer
requestHandler:
  parsers: [{pluginRef: passthrough-parser}]
schedulingProfiles:
- name: default
  plugins:
  - {pluginRef: active-request-scorer, weight: 1}
  - {pluginRef: session-affinity-scorer, weight: 1}
"""

OTHER_ENGINE = """\
apiVersion: inference.networking.x-k8s.io/v1alpha1
kind: EndpointPickerConfig
plugins:
- type: decode-filter
- type: prefix-cache-affinity-filter
  name: sticky
  parameters: {affinityThreshold: 0.8}
- type: token-load-scorer
- type: core-metrics-extractor
  parameters: {defaultEngine: sglang}
schedulingProfiles:
- name: default
  plugins:
  - pluginRef: decode-filter
  - pluginRef: sticky
  - pluginRef: token-load-scorer
"""


@pytest.mark.parametrize(
    ("document", "filters", "weights"),
    [
        pytest.param(DEFAULT_PLUGINS, [], [2, 2, 3], id="default-plugins"),
        pytest.param(PAYLOAD_AGNOSTIC, [], [1, 1], id="payload-agnostic"),
        pytest.param(OTHER_ENGINE, ["decode-filter", "sticky"], [1], id="other-engine"),
    ],
)
def test_the_fields_files_load_unchanged(
    document: str, filters: list[str], weights: list[float]
) -> None:
    built = loader.load(document.encode(), REGISTRY)

    [profile] = built.profiles
    assert [one.name for one in profile.filters] == filters
    assert [weight for _, weight in profile.scorers] == weights


# Flags


def test_flags_that_come_with_kubernetes_are_refused_and_durations_are_read() -> None:
    rows = dict(rows_of(CASES["cfg-024-flags"]))
    for flag in ("--config-text", "--endpoint-target-ports"):
        assert any(flag in row for row in rows)
        result = CliRunner().invoke(cli.main, ["serve", f"{flag}=8080"])

        assert result.exit_code == 2
        assert f"No such option '{flag}'" in result.stderr

    [flag] = [row for row in rows if row.startswith("--drain-timeout")]
    context: click.Context = cli.serve.make_context("serve", [flag])
    assert f"{context.params['drain_timeout']:g}s" == rows[flag]


# Endpoints in a file


@case("cfg-027-file-discovery")
async def file_discovery(data: Case, folder: Path) -> None:
    [given] = yaml.safe_load(data["given"]["file"])["endpoints"]
    path = folder / "endpoints.yaml"

    def write(*entries: Mapping[str, Any]) -> None:
        path.write_text(json.dumps({"endpoints": entries}))

    async def first(*entries: Mapping[str, Any], file: Path = path) -> list[EndpointEvent]:
        """What is reported at first; a refusal says so."""
        write(*entries)
        context = PluginContext("discovery")
        events = FileDiscovery(path=str(file), context=context).discover()
        found: list[EndpointEvent] = []
        async for event in events:
            if isinstance(event, Synced):
                break
            found.append(event)
        await events.aclose()  # type: ignore[attr-defined]
        return found

    wanted = dict(rows_of(data))
    [valid] = await first(given)
    assert isinstance(valid, EndpointUpserted)
    assert (
        f"endpoint {valid.address}:{valid.port} served without Kubernetes" == (wanted["valid file"])
    )
    assert f"namespace {valid.id.namespace}" == wanted["namespace left out"]

    assert wanted["file missing"] == "error"
    with pytest.raises(ConfigError):
        await first(given, file=folder / "nowhere.yaml")
    assert wanted["bad port"] == "error"
    for port in ("0", "65536", "http", -1):
        with pytest.raises(ConfigError, match="port"):
            await first(given | {"port": port})
    assert wanted["no path parameter"] == "error"
    with pytest.raises(ConfigError, match="path"):
        REGISTRY.build("file-discovery", "mine", {})

    assert wanted["file rewritten without an entry while watching"] == "that endpoint disappears"
    write(given, given | {"name": "b"})
    events = FileDiscovery(path=str(path), context=PluginContext("discovery")).discover()
    while not isinstance(await anext(events), Synced):
        pass
    write(given | {"name": "b"})
    assert await asyncio.wait_for(anext(events), 60) == EndpointRemoved(EndpointId("default", "a"))
    await events.aclose()  # type: ignore[attr-defined]

    [ipv6] = await first(given | {"address": "::1"})
    assert isinstance(ipv6, EndpointUpserted)
    assert ipv6.address == "::1"


OF_A_LOOP = [name for name, check in CHECKS.items() if inspect.iscoroutinefunction(check)]


@pytest.mark.parametrize("name", sorted(set(CHECKS) - set(OF_A_LOOP)))
def test_case(name: str) -> None:
    CHECKS[name](CASES[name])


@pytest.mark.parametrize("name", sorted(OF_A_LOOP))
async def test_case_of_a_running_picker(name: str, tmp_path: Path) -> None:
    await CHECKS[name](CASES[name], tmp_path)
