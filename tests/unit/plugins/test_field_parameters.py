"""Parameters as the field's files write them, names and all: what loads there loads here."""

from typing import Any

import pytest

from epp.framework import Registry

MATCHED_BY = {"prefixMatchInfoProducerName": "approx-prefix-cache-producer"}
COUNTED_BY = {"inFlightLoadProducerName": "inflight-load-producer"}

REGISTRY = Registry()


@pytest.mark.parametrize(
    ("plugin_type", "parameters"),
    [
        ("load-aware-scorer", {"threshold": 64}),
        (
            "active-request-scorer",
            {"idleThreshold": 1, "maxBusyScore": 0.5, "requestTimeout": "2m"} | COUNTED_BY,
        ),
        ("token-load-scorer", {"queueThresholdTokens": 1000} | COUNTED_BY),
        (
            "no-hit-lru-scorer",
            {"lruSize": 64, "prefixPluginType": "prefix-cache-scorer", "prefixPluginName": "p"}
            | MATCHED_BY,
        ),
        ("context-length-aware", {"label": "range", "enableFiltering": True}),
        (
            "session-affinity-scorer",
            {
                "strategy": "encoded_endpoint_header",
                "encodedEndpointHeaderConfig": {"header": "x-mine"},
                "profileName": "decode",
            },
        ),
        (
            "session-affinity-filter",
            {
                "strategy": "session_id",
                "sessionIdConfig": {
                    "sources": [{"header": "x-session-id"}],
                    "evictionTtlSeconds": 60,
                    "evictionSweepSeconds": 5,
                },
            },
        ),
        (
            "label-selector-filter",
            {
                "matchLabels": {"gpu": "h100"},
                "matchExpressions": [{"key": "role", "operator": "In", "values": ["a"]}],
            },
        ),
        ("by-label-selector", {"matchLabels": {"gpu": "h100"}}),
        ("by-label", {"label": "role", "validValues": ["a"], "allowsNoLabel": True}),
        ("decode-filter", {}),
        ("prefill-filter", {}),
        ("encode-filter", {}),
        (
            "utilization-filter",
            {
                "conditions": [{"metric": "kv-cache-utilization", "maxValue": 0.8}],
                "fallbackOnEmpty": True,
            }
            | COUNTED_BY,
        ),
        (
            "prefix-cache-affinity-filter",
            {
                "affinityThreshold": 0.8,
                "explorationProbability": 0.01,
                "maxTTFTPenaltyMs": 18000,
                "ttftSource": "prefillThroughput",
                "peakPrefillThroughput": 15928,
            }
            | MATCHED_BY
            | COUNTED_BY,
        ),
        ("header-based-testing-filter", {}),
        ("header-profile-handler", {"headerName": "EPP-Profile", "defaultProfile": "decode"}),
        (
            "inflight-load-producer",
            {
                "addEstimatedOutputTokens": True,
                "outputRatio": 1.5,
                "maxEstimatedOutputTokens": 4096,
                "syncCrossReplicaState": True,
            }
            | MATCHED_BY,
        ),
        ("lookahead-load-scorer", {"scaleSeconds": 2, "peakPrefillThroughput": 8000}),
        ("lmetric-scorer", {}),
    ],
)
def test_the_fields_parameters_load(plugin_type: str, parameters: dict[str, Any]) -> None:
    assert REGISTRY.build(plugin_type, "mine", parameters).plugin is not None
