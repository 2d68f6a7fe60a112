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
        ("featureGates: [haPopulateNonLeaderDatastore]", "featureGates[0]", "not the leader yet"),
    ],
)
def test_a_refusal_helps(text: str, place: str, says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        loader.load((HEAD + text).encode(), registry())

    assert str(refused.value).startswith(place)
    assert says in str(refused.value)
