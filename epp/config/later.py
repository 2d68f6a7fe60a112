"""
What the field's picker has and this version has not: refused by its name, and never ignored.

A configuration that names one of these would not do what its author expects, so it does not load,
and the message says what is missing rather than that a name is unknown.
"""

SECTIONS = {
    "flowControl": "flow control",
    "saturationDetector": "saturation detection",
}
"""Top-level sections, and what they configure."""

DATA_LAYER = {
    "peerDiscovery": "discovery of other replicas",
    "crossReplicaSyncerPluginRef": "state shared between replicas",
    "crossReplicaSyncInterval": "state shared between replicas",
}
"""Keys of `dataLayer`, likewise."""

FEATURE_GATES = {"flowControl": "flow control"}
"""Feature gates that may be off, and what they would switch on."""

OTHER_GATES = {"haPopulateNonLeaderDatastore": "replicas that are not the leader"}
"""Feature gates that are on by default in the field's picker, and what they are about."""

_PRECISE = "prefix matching by KV events"
_DISAGGREGATION = "prefill/decode disaggregation"
_LATENCY = "latency prediction"
_FLOW_CONTROL = "flow control"
_MULTI_CLUSTER = "routing between clusters"
_TOPOLOGY = "topology-aware scheduling"
_ADMISSION = "admission by plugins"

PLUGIN_TYPES = {
    "precise-prefix-cache-producer": _PRECISE,
    "precise-prefix-cache-scorer": _PRECISE,
    "burst-prefix-cache-producer": "placing bursts together",
    "p2p-source-producer": "the transfer of KV cache between endpoints",
    "mm-embeddings-cache-producer": "multimodal embedding caches",
    "mm-embeddings-cache-scorer": "multimodal embedding caches",
    "session-id-producer": "session ids as an attribute; session-affinity reads headers",
    "predicted-latency-producer": _LATENCY,
    "latency-scorer": _LATENCY,
    "latency-slo-admitter": _LATENCY,
    "slo-headroom-tier-filter": _LATENCY,
    "disagg-profile-handler": _DISAGGREGATION,
    "pd-profile-handler": _DISAGGREGATION,
    "prefill-header-handler": _DISAGGREGATION,
    "disagg-headers-handler": _DISAGGREGATION,
    "prefix-based-pd-decider": _DISAGGREGATION,
    "always-disagg-pd-decider": _DISAGGREGATION,
    "always-disagg-multimodal-decider": _DISAGGREGATION,
    "disaggregatedset-rollout-screener": _DISAGGREGATION,
    "data-parallel-profile-handler": "one proxy port for the ranks of a pod",
    "probabilistic-admitter": _ADMISSION,
    "agent-identity": "fairness ids from agents' headers",
    "request-attribute-reporter": "reporting usage as dynamic metadata",
    "destination-endpoint-served-verifier": "the conformance suite's served-endpoint header",
    "header-label-affinity-scorer": "affinity by header and label",
    "endpoint-attribute-scorer": "scoring by custom metrics",
    "endpoint-attribute-filter": "filtering by custom metrics",
    "topology-affinity-scorer": _TOPOLOGY,
    "topology-affinity-filter": _TOPOLOGY,
    "topology-extractor": _TOPOLOGY,
    "multicluster-queue-scorer": _MULTI_CLUSTER,
    "multicluster-kv-cache-utilization-scorer": _MULTI_CLUSTER,
    "multicluster-prefix-cache-scorer": _MULTI_CLUSTER,
    "multicluster-session-affinity-filter": _MULTI_CLUSTER,
    "multicluster-approx-prefix-cache-producer": _MULTI_CLUSTER,
    "global-strict-fairness-policy": _FLOW_CONTROL,
    "round-robin-fairness-policy": _FLOW_CONTROL,
    "program-aware-fairness": _FLOW_CONTROL,
    "fcfs-ordering-policy": _FLOW_CONTROL,
    "edf-ordering-policy": _FLOW_CONTROL,
    "slo-deadline-ordering-policy": _FLOW_CONTROL,
    "static-usage-limit-policy": _FLOW_CONTROL,
    "priority-holdback-policy": _FLOW_CONTROL,
    "soft-reflective-ceiling-policy": _FLOW_CONTROL,
    "utilization-detector": _FLOW_CONTROL,
    "concurrency-detector": _FLOW_CONTROL,
    "sheddable-eviction-filter": _FLOW_CONTROL,
    "priority-then-time-eviction-order-policy": _FLOW_CONTROL,
    "anthropic-parser": "the Anthropic API",
    "vllmhttp-parser": "vLLM's token-in, token-out API",
    "vllmgrpc-parser": "vLLM's gRPC API",
    "sglanghttp-parser": "SGLang's native API",
    "vertexai-parser": "the Vertex AI API",
    "models-data-source": "reading /v1/models of endpoints",
    "models-data-extractor": "reading /v1/models of endpoints",
    "dcgm-data-source": "metrics of GPUs",
    "dcgm-extractor": "metrics of GPUs",
    "k8s-notification-source": "watching Kubernetes resources",
    "endpoint-notification-source": "watching endpoints",
}
"""Plugin types, and what each would need."""
