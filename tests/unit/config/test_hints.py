"""What a refusal says beyond the place: the value, a near miss, what this version lacks."""

import pytest

from epp.config import loader
from epp.framework import ConfigError
from support.plugins import registry

HEAD = "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\n"
QUEUE = "plugins: [{type: queue-scorer}]\n"


@pytest.mark.parametrize(
    ("text", "place", "says"),
    [
        ("plugin: []", "", "unknown field `plugin`; did you mean `plugins`?"),
        (
            "schedulingProfiles: [{name: a, plugins: [{plugingRef: x}]}]",
            "schedulingProfiles[0].plugins[0]",
            "unknown field `plugingRef`; did you mean `pluginRef`?",
        ),
        (
            QUEUE + "schedulingProfiles: [{name: a, plugins: [{pluginRef: que-scorer}]}]",
            "schedulingProfiles[0].plugins[0].pluginRef",
            "no plugin is named 'que-scorer'; did you mean `queue-scorer`?",
        ),
        (
            "plugins: [{type: que-scorer}]",
            "plugins[0] (que-scorer)",
            "unknown plugin type 'que-scorer'; did you mean `queue-scorer`?",
        ),
        (
            "plugins: [{type: max-score-picker, parameters: {maxNumOfEndpoints: x}}]",
            "plugins[0] (max-score-picker): parameters.maxNumOfEndpoints",
            "expected `int`, got `str`: 'x'",
        ),
        (
            "plugins: [{type: max-score-picker, parameters: {maxNumberOfEndpoints: 1}}]",
            "plugins[0] (max-score-picker): parameters",
            "unknown field `maxNumberOfEndpoints`; did you mean `maxNumOfEndpoints`?",
        ),
        (
            "plugins: [{type: precise-prefix-cache-scorer}]",
            "plugins[0] (precise-prefix-cache-scorer)",
            "this version has no prefix matching by KV events yet",
        ),
        ("dataLayer: {peerDiscovery: {}}", "dataLayer.peerDiscovery", "has no discovery of other"),
        ("featureGates: [flowControl]", "featureGates[0]", "this version has no flow control yet"),
        ("featureGates: [flowControl=yes]", "featureGates[0]", "expected flowControl=true or"),
        ("featureGates: [flowcontrol]", "featureGates[0]", "did you mean `flowControl`?"),
        (
            (
                "plugins: [{type: random-picker, name: max-score-picker}, {type: queue-scorer}]\n"
                "schedulingProfiles: [{name: a, plugins: [{pluginRef: queue-scorer}]}]"
            ),
            "plugins",
            "'max-score-picker' is the name of a plugin of another type (random-picker)",
        ),
        (
            QUEUE + "schedulingProfiles: [{name: a, plugins:"
            " [{pluginRef: queue-scorer}, {pluginRef: queue-scorer}]}]",
            "schedulingProfiles[0].plugins[1].pluginRef",
            "'queue-scorer' is in this profile already",
        ),
        (
            QUEUE + "schedulingProfiles: [{name: a, plugins:"
            " [{pluginRef: queue-scorer, weight: 1.7e308}]}]",
            "schedulingProfiles[0].plugins[0].weight",
            "expected a number from 0 to 1e+09",
        ),
        (
            'plugins: [{type: queue-scorer, parameters: {scale: "\\ud800"}}]',
            "the configuration",
            "has text that is no Unicode: '\\ud800'",
        ),
        (
            "a: &a [x, x, x, x, x, x, x, x]\n"
            + "".join(
                f"{new}: &{new} [{', '.join([f'*{old}'] * 8)}]\n"
                for old, new in zip("abcdefgh", "bcdefghi", strict=True)
            ),
            "the configuration",
            "has more than 100,000 values",
        ),
        (
            "parser: {pluginRef: x}\nrequestHandler: {parsers: []}",
            "parser",
            "the older form of requestHandler.parsers; give one of them",
        ),
        (
            (
                "plugins: [{type: prefix-cache-scorer,"
                " parameters: {prefixMatchInfoProducerName: other}}]"
            ),
            "plugins (prefix-cache-scorer)",
            "no plugin is named 'other'",
        ),
        (
            "plugins: [{type: header-profile-handler}]\nschedulingProfiles: [{name: a}, {name: b}]",
            "plugins (header-profile-handler)",
            "no profile is named 'decode'",
        ),
        ("featureGates: [haPopulateNonLeaderDatastore]", "featureGates[0]", "not the leader yet"),
    ],
)
def test_a_refusal_helps(text: str, place: str, says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        loader.load((HEAD + text).encode(), registry())

    assert str(refused.value).startswith(place)
    assert says in str(refused.value)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("plugins:\nschedulingProfiles:\ndataLayer:", id="keys with nothing behind"),
        pytest.param("plugins: [{type: queue-scorer, parameters: }]", id="no parameters"),
        pytest.param("plugins: [{type: queue-scorer, parameters: {scale: 1e1}}]", id="1e1"),
        pytest.param(
            "plugins: [{type: passthrough-parser}]\nparser: {pluginRef: passthrough-parser}",
            id="the older form of parsers",
        ),
        pytest.param("plugins: [{type: tokenizer}]", id="the older name of token-producer"),
        pytest.param(
            "plugins: [{type: approx-prefix-cache-producer, name: p}, {type: prefix-cache-scorer,"
            " parameters: {prefixMatchInfoProducerName: p}}]",
            id="a producer by its name",
        ),
    ],
)
def test_what_the_field_takes_loads(text: str) -> None:
    loader.load((HEAD + text).encode(), registry())


def test_the_older_form_of_parsers_is_heard() -> None:
    built = loader.load(
        f"{HEAD}plugins: [{{type: passthrough-parser}}]\n"
        "parser: {pluginRef: passthrough-parser}".encode(),
        registry(),
    )

    assert [one.type for one in built.parsers] == ["passthrough-parser"]
