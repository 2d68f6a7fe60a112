"""EndpointPickerConfig: what is filled in, what is refused, and what the refusal says."""

from collections.abc import Callable
from typing import Any

import pytest
import yaml

from epp.config import loader
from epp.config.loader import Configuration
from epp.framework import ConfigError
from support.plugins import registry

HEAD = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"
REGISTRY = registry()


def load(text: str, head: str = HEAD, **options: Any) -> Configuration:
    return loader.load((head + text).encode(), REGISTRY, **options)


def names(configuration: Configuration) -> list[str]:
    return [one.name for one in configuration.plugins]


class TestDefaults:
    def test_the_default_document_scores_queue_cache_prefix_and_adapters(self) -> None:
        built = loader.load(loader.DEFAULT_CONFIG, REGISTRY)

        profile = built.profiles[0]
        assert {one.name: weight for one, weight in profile.scorers} == {
            "queue-scorer": 2,
            "kv-cache-utilization-scorer": 2,
            "prefix-cache-scorer": 3,
            "lora-affinity-scorer": 2,
        }
        assert profile.picker.type == "max-score-picker"
        assert built.profile_handler.type == "single-profile-handler"
        assert [one.type for one in built.parsers] == ["openai-parser", "passthrough-parser"]
        assert "approx-prefix-cache-producer" in names(built)
        assert built.source is not None
        assert built.extractor is not None

    def test_an_empty_document_is_complete(self) -> None:
        built = load("")

        assert built.profiles[0].scorers == []
        assert built.profiles[0].picker.type == "max-score-picker"

    def test_without_profiles_one_takes_every_plugin_in_order(self) -> None:
        built = load("plugins: [{type: queue-scorer}, {type: random-picker}]")

        assert [one.name for one, _ in built.profiles[0].scorers] == ["queue-scorer"]
        assert built.profiles[0].picker.type == "random-picker"

    def test_a_scorer_without_a_weight_counts_once_wherever_it_stands(self) -> None:
        for refs in ("[{pluginRef: q}, {pluginRef: p}]", "[{pluginRef: p}, {pluginRef: q}]"):
            built = load(
                "plugins: [{name: q, type: queue-scorer}, {name: p, type: random-picker}]\n"
                f"schedulingProfiles: [{{name: x, plugins: {refs}}}]"
            )

            assert [weight for _, weight in built.profiles[0].scorers] == [1.0]
            assert built.profiles[0].picker.name == "p"

    def test_filters_run_in_the_order_of_the_profile(self) -> None:
        built = load(
            "plugins:\n"
            + "".join(
                f"- {{name: f{at}, type: name-filter, parameters: {{keep: []}}}}\n" for at in "bac"
            )
            + "schedulingProfiles:\n- name: x\n  plugins:\n"
            + "".join(f"  - pluginRef: f{at}\n" for at in "bac")
        )

        assert [one.name for one in built.profiles[0].filters] == ["fb", "fa", "fc"]

    def test_a_declared_producer_is_used_and_none_added(self) -> None:
        built = load(
            "plugins:\n- {type: prefix-cache-scorer}\n"
            "- {name: mine, type: approx-prefix-cache-producer}\n"
        )

        assert [one for one in names(built) if "producer" in one] == []
        assert "mine" in names(built)

    def test_no_data_layer_can_be_asked_for(self) -> None:
        built = load("dataLayer: {injectDefaults: false}")

        assert built.source is None

    def test_an_endpoints_file_stands_for_a_discovery(self) -> None:
        built = load("", endpoints_file="some.yaml")

        assert built.discovery is not None
        assert built.discovery.type == "file-discovery"

    def test_the_older_api_group_loads_with_a_warning(self) -> None:
        head = HEAD.replace("llm-d.ai", "inference.networking.x-k8s.io")

        assert "deprecated" in load("", head).warnings[0]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("plugins: [{type: nope}]", "plugins[0] (nope): unknown plugin type 'nope'"),
        ("plugins: [{}]", "plugins[0]: object missing required field `type`"),
        (
            "plugins: [{type: queue-scorer, wieght: 1}]",
            "plugins[0]: unknown field `wieght`; known are name, parameters, type",
        ),
        (
            "plugins: [{type: queue-scorer}, {type: queue-scorer}]",
            "plugins[1].name: 'queue-scorer' is the name of two plugins",
        ),
        (
            "plugins: [{type: max-score-picker, parameters: {maxNumOfEndpoints: x}}]",
            "plugins[0] (max-score-picker): parameters.maxNumOfEndpoints: expected `int`",
        ),
        (
            "plugins: [{type: queue-scorer, parameters: {nope: 1}}]",
            "plugins[0] (queue-scorer): parameters: unknown field `nope`",
        ),
        ("plugins: [{type: needy-scorer}]", "plugins: nothing produces 'unheard-of'"),
        ("schedulingProfiles: [{name: ''}]", "schedulingProfiles[0].name: is empty"),
        (
            "schedulingProfiles: [{name: a}, {name: a}]",
            "schedulingProfiles[1].name: 'a' is the name of two profiles",
        ),
        (
            "schedulingProfiles: [{name: a, plugins: [{pluginRef: nope}]}]",
            "schedulingProfiles[0].plugins[0].pluginRef: no plugin is named 'nope'",
        ),
        (
            (
                "plugins: [{type: openai-parser}]\n"
                "schedulingProfiles: [{name: a, plugins: [{pluginRef: openai-parser}]}]"
            ),
            (
                "schedulingProfiles[0].plugins[0].pluginRef: 'openai-parser' (type openai-parser)"
                " is no Filter or Scorer or Picker"
            ),
        ),
        (
            (
                "plugins: [{type: queue-scorer}]\n"
                "schedulingProfiles: [{name: a, plugins: [{pluginRef: queue-scorer, weight: -1}]}]"
            ),
            "schedulingProfiles[0].plugins[0].weight: -1.0, expected a number from 0",
        ),
        (
            (
                "plugins: [{type: queue-scorer}]\n"
                "schedulingProfiles:\n"
                "- {name: a, plugins: [{pluginRef: queue-scorer, weight: .nan}]}"
            ),
            "schedulingProfiles[0].plugins[0].weight: nan",
        ),
        (
            (
                "plugins: [{type: queue-scorer}]\n"
                "schedulingProfiles: [{name: a, plugins: [{pluginRef: queue-scorer, weight: x}]}]"
            ),
            "schedulingProfiles[0].plugins[0].weight: expected `float | null`, got `str`",
        ),
        (
            (
                "plugins: [{type: random-picker}]\n"
                "schedulingProfiles: [{name: a, plugins: [{pluginRef: random-picker, weight: 1}]}]"
            ),
            "schedulingProfiles[0].plugins[0].weight: only scorers have a weight",
        ),
        (
            "plugins: [{type: random-picker}, {type: max-score-picker}]",
            "schedulingProfiles[0].plugins: two pickers",
        ),
        (
            "plugins: [{type: single-profile-handler}, {name: b, type: failing-handler}]",
            "plugins: more than one profile handler: b, single-profile-handler",
        ),
        (
            "schedulingProfiles: [{name: a}, {name: b}]",
            "schedulingProfiles: several profiles need a profile handler",
        ),
        (
            "plugins: [{type: single-profile-handler}]\nschedulingProfiles: [{name: a}, {name: b}]",
            "schedulingProfiles: single-profile-handler runs one profile, not 2",
        ),
        (
            "dataLayer: {sources: [{pluginRef: nope}]}",
            "dataLayer.sources[0].pluginRef: no plugin is named 'nope'",
        ),
        (
            (
                "plugins: [{type: metrics-data-source}]\n"
                "dataLayer: {sources: [{pluginRef: metrics-data-source,"
                " extractors: [{pluginRef: metrics-data-source}]}]}"
            ),
            "dataLayer.sources[0].extractors[0].pluginRef: 'metrics-data-source'",
        ),
        ("requestHandler: {parsers: [{pluginRef: x}]}", "requestHandler.parsers[0].pluginRef: no"),
        ("dataLayer: {discovery: {pluginRef: x}}", "dataLayer.discovery.pluginRef: no plugin"),
        ("flowControl: {}", "flowControl: this version has no flow control yet"),
        ("nope: 1", "unknown field `nope`; known are apiVersion, dataLayer"),
    ],
)
def test_a_refusal_says_where_and_what(text: str, says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load(text)

    assert str(refused.value).startswith(says)


@pytest.mark.parametrize(
    ("document", "says"),
    [
        (b"", "the configuration is NoneType, expected a mapping"),
        (b"- a", "the configuration is list"),
        (b"a: [", "the configuration is not YAML"),
        (b"\xff", "the configuration is not YAML"),
        (b"{}", "object missing required field `apiVersion`"),
        (b"apiVersion: v1\nkind: EndpointPickerConfig", "apiVersion: 'v1', expected"),
        (b"apiVersion: llm-d.ai/v1alpha1\nkind: Pod", "kind: 'Pod', expected"),
        (b"a: " + b"[" * 5000, "the configuration is"),
        (b"a: 2024-99-99", "the configuration is not YAML: month must be in 1..12"),
        (b"a: !!int x", "the configuration is not YAML"),
        (b"a: !!int ''", "the configuration is not YAML"),
        (b"a: !!bool x", "the configuration is not YAML"),
        (b"a: !!timestamp x", "the configuration is not YAML"),
        (b"a: " + b"9" * 5000, "the configuration is not YAML"),
        (b"a: 1\na: 2", "the configuration is not YAML: the key 'a' is given twice"),
        (b"a: !!python/name:os.system x", "the configuration is not YAML"),
    ],
)
def test_what_is_no_configuration_is_refused(document: bytes, says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        loader.load(document, REGISTRY)

    assert str(refused.value).startswith(says)


def test_a_gate_that_is_off_asks_for_nothing() -> None:
    assert load("featureGates: [flowControl=false]").warnings == []


def test_producers_run_behind_those_of_what_they_read() -> None:
    built = load("plugins: [{type: reads-facts, name: reader}, {type: facts, name: maker}]")

    assert names(built).index("maker") < names(built).index("reader")


def test_producers_that_read_each_other_are_refused() -> None:
    with pytest.raises(ConfigError, match="producers read each other in a circle"):
        load("plugins: [{type: reads-facts}, {type: facts-of-facts}]")


def test_an_instance_like_the_one_asked_for_is_taken_over() -> None:
    text = "plugins: [{type: queue-scorer}, {type: max-score-picker}]"
    first = load(text)
    same = {one.name: one for one in first.plugins}

    again = load(text, reuse=same)
    changed = load(
        "plugins: [{type: queue-scorer}, {type: max-score-picker,"
        " parameters: {maxNumOfEndpoints: 2}}]",
        reuse=same,
    )

    assert all(one is same[one.name] for one in again.plugins)
    assert [one.name for one in changed.plugins if one is not same.get(one.name)] == [
        "max-score-picker"
    ]


def test_a_discovery_and_an_endpoints_file_exclude_each_other() -> None:
    text = (
        "plugins: [{type: file-discovery, parameters: {path: x}}]\n"
        "dataLayer: {discovery: {pluginRef: file-discovery}}"
    )

    with pytest.raises(ConfigError, match="exclude each other"):
        load(text, endpoints_file="x")


@pytest.mark.parametrize(
    "arrange", [list, lambda plugins: list(reversed(plugins))], ids=["as-written", "reversed"]
)
def test_the_order_of_the_plugins_makes_no_difference(arrange: Callable[[Any], Any]) -> None:
    tree = yaml.safe_load(loader.DEFAULT_CONFIG)
    tree["plugins"] = arrange(tree["plugins"])

    built = loader.load(yaml.safe_dump(tree).encode(), REGISTRY)

    assert [one.name for one, _ in built.profiles[0].scorers] == [
        "queue-scorer",
        "kv-cache-utilization-scorer",
        "prefix-cache-scorer",
        "lora-affinity-scorer",
    ]
