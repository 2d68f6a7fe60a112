"""
The families of the metrics page: names, types, labels and buckets of vLLM 0.32, in its order.

They are what a text model shows without speculative decoding. Those of what the simulator has not
(a cache beyond the engine, multi-modal inputs, estimates of the hardware's work) stay at 0, as on a
real server without them. Left out are the families that are not the engine's: those of the Python
interpreter and its process (`python_*`, `process_*`), and of the HTTP server (`http_*`).
"""

from collections.abc import Sequence
from typing import Literal, NamedTuple

from epp.simulator.engine.options import EngineOptions


class ValueFamily(NamedTuple):
    """A gauge or counter of every engine; with a label, one for each value it can have."""

    kind: Literal["gauge", "counter"]
    name: str
    help_text: str
    label: str = ""
    label_values: Sequence[str] = ("",)


class HistogramFamily(NamedTuple):
    """A histogram of every engine; without bounds it counts tokens up to the longest sequence."""

    name: str
    help_text: str
    bounds: Sequence[float] | None = None


VALUES = (
    ValueFamily("counter", "estimated_flops_per_gpu_total", "Operations of one GPU, estimated."),
    ValueFamily("counter", "estimated_read_bytes_per_gpu_total", "Bytes one GPU read, estimated."),
    ValueFamily(
        "counter", "estimated_write_bytes_per_gpu_total", "Bytes one GPU wrote, estimated."
    ),
    ValueFamily("gauge", "num_requests_running", "Requests that have a seat."),
    ValueFamily("gauge", "num_requests_waiting", "Requests that wait for a seat."),
    ValueFamily(
        "gauge",
        "num_requests_waiting_by_reason",
        "The waiting requests: for room, or for a limit of their adapter or class.",
        "reason",
        ("capacity", "deferred"),
    ),
    ValueFamily(
        "gauge",
        "engine_sleep_state",
        "1 for the state the engine is in.",
        "sleep_state",
        ("awake", "weights_offloaded", "discard_all"),
    ),
    ValueFamily("gauge", "kv_cache_usage_perc", "Blocks that are held; 1 is all."),
    ValueFamily("counter", "prefix_cache_queries_total", "Tokens looked up in the prefix cache."),
    ValueFamily("counter", "prefix_cache_hits_total", "Tokens found in the prefix cache."),
    ValueFamily(
        "counter", "external_prefix_cache_queries_total", "Tokens looked up in others' caches."
    ),
    ValueFamily("counter", "external_prefix_cache_hits_total", "Tokens found in others' caches."),
    ValueFamily("counter", "mm_cache_queries_total", "Multi-modal items looked up."),
    ValueFamily("counter", "mm_cache_hits_total", "Multi-modal items found."),
    ValueFamily("counter", "num_preemptions_total", "Seats taken away again."),
    ValueFamily("counter", "prompt_tokens_total", "Tokens of prompts, cached ones included."),
    ValueFamily(
        "counter",
        "prompt_tokens_by_source_total",
        "Tokens of prompts, by where their keys and values came from.",
        "source",
        ("local_compute", "local_cache_hit", "external_kv_transfer"),
    ),
    ValueFamily("counter", "prompt_tokens_cached_total", "Tokens of prompts that were cached."),
    ValueFamily(
        "counter",
        "prompt_tokens_cached_by_source_total",
        "Tokens found in a cache at admission, by the memory they were found in.",
        "source",
        ("device", "host", "p2p", "disk", "external_unspecified"),
    ),
    ValueFamily("counter", "generation_tokens_total", "Tokens generated."),
    ValueFamily(
        "counter",
        "request_success_total",
        "Requests that came to an end.",
        "finished_reason",
        ("stop", "length", "abort", "error", "repetition"),
    ),
)
SWAP_VALUES = (
    ValueFamily(
        "gauge", "num_requests_swapped", "Of the waiting, those with blocks in CPU memory."
    ),
    ValueFamily("gauge", "cpu_cache_usage_perc", "The CPU's blocks that are held; 1 is all."),
)
"""Of vLLM before its engine V1, which could swap; with the label `engine` nevertheless."""

REJECTIONS = "vllm:admission_rejections_total"
REJECTIONS_HELP = "Requests turned away because too much waited already; of the whole server."
REJECTION_REASONS = ("max_num_queued_reqs", "max_num_queued_tokens")

_FIRST_TOKEN_BOUNDS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
_NEXT_TOKEN_BOUNDS = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
    40.0, 80.0,
)  # fmt: skip
_REQUEST_BOUNDS = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
    480.0, 960.0, 1920.0, 7680.0,
)  # fmt: skip
_STEP_BOUNDS = (1.0, *(2.0**power for power in range(3, 15)))
_COPY_BOUNDS = (1.0, 2.0, 5.0, 10.0, 20.0)
_PREEMPTION_BOUNDS = (1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0)

HISTOGRAMS = (
    HistogramFamily("request_prompt_tokens", "Tokens of a prompt."),
    HistogramFamily("request_generation_tokens", "Tokens of a reply."),
    HistogramFamily("iteration_tokens_total", "Tokens of a step that gave some.", _STEP_BOUNDS),
    HistogramFamily(
        "request_max_num_generation_tokens", "Tokens of the longest reply of a prompt."
    ),
    HistogramFamily("request_params_n", "Replies asked for of a prompt.", _COPY_BOUNDS),
    HistogramFamily("request_params_max_tokens", "Tokens asked for at most."),
    HistogramFamily(
        "time_to_first_token_seconds", "From arrival to the first token.", _FIRST_TOKEN_BOUNDS
    ),
    HistogramFamily(
        "inter_token_latency_seconds", "From one token to the next.", _NEXT_TOKEN_BOUNDS
    ),
    HistogramFamily(
        "request_time_per_output_token_seconds",
        "From one token to the next, the mean of a reply.",
        _NEXT_TOKEN_BOUNDS,
    ),
    HistogramFamily(
        "e2e_request_latency_seconds", "From arrival to the last token.", _REQUEST_BOUNDS
    ),
    HistogramFamily(
        "request_queue_time_seconds", "From arrival to the first seat.", _REQUEST_BOUNDS
    ),
    HistogramFamily(
        "request_inference_time_seconds", "From the first seat to the last token.", _REQUEST_BOUNDS
    ),
    HistogramFamily(
        "request_prefill_time_seconds", "From the first seat to the first token.", _REQUEST_BOUNDS
    ),
    HistogramFamily(
        "request_decode_time_seconds", "From the first token to the last.", _REQUEST_BOUNDS
    ),
    HistogramFamily(
        "request_num_preemptions", "How often a request lost its seat.", _PREEMPTION_BOUNDS
    ),
    HistogramFamily(
        "request_prefill_kv_computed_tokens", "Tokens of a prompt that were not cached."
    ),
)

LORA_INFO = "vllm:lora_requests_info"
LORA_INFO_HELP = "The adapters in use, and when that was so."
CACHE_INFO = "vllm:cache_config_info"
CACHE_INFO_HELP = "How the cache is configured."


def token_bounds(largest: int) -> list[float]:
    """Return 1, 2, 5, 10, 20, 50 and so on, as far as anything can be counted."""
    bounds = (factor * 10.0**power for power in range(len(str(largest))) for factor in (1, 2, 5))
    return [bound for bound in bounds if bound <= largest]


def cache_facts(options: EngineOptions, engines: int) -> dict[str, str]:
    """
    Return the labels that describe the caches; what an engine here has no word for is as in vLLM.

    As there, the number of blocks is that of all engines together, and the tokens those of one.
    """
    blocks_a_sequence = -(-options.max_model_len // options.block_size)
    concurrency = options.num_gpu_blocks / blocks_a_sequence
    swaps = options.preemption_mode == "swap"
    facts: dict[str, object] = {
        "_block_size_resolved": True,
        "block_size": options.block_size,
        "cache_dtype": "auto",
        "cache_hit_alignment_tokens": None,
        "effective_attention_block_size": options.block_size,
        "enable_mamba_shared_prefix_checkpoint": False,
        "enable_prefix_caching": options.prefix_caching,
        "gpu_memory_utilization": 0.92,
        "hash_block_size": None,
        "is_attention_free": False,
        "kv_cache_dtype_skip_layers": [],
        "kv_cache_layout": None,
        "kv_cache_max_concurrency": concurrency,
        "kv_cache_memory_bytes": None,
        "kv_cache_size_tokens": int(concurrency * options.max_model_len),
        "kv_offloading_backend": "native",
        "kv_offloading_size": None,
        "kv_sharing_fast_prefill": False,
        "mamba_block_size": None,
        "mamba_cache_dtype": "auto",
        "mamba_cache_mode": "none",
        "mamba_page_size_padded": None,
        "mamba_ssm_cache_dtype": "float32",
        "num_cpu_blocks": options.num_cpu_blocks if swaps else None,
        "num_gpu_blocks": options.num_gpu_blocks * engines,
        "num_gpu_blocks_override": None,
        "prefix_cache_retention_interval": 0,
        "prefix_caching_hash_algo": options.prefix_caching_hash_algorithm,
        "prefix_match_unit": None,
        "replayssm_buffer_len": 16,
        "skip_page_size_padded": None,
        "sliding_window": None,
        "swa_bounded_replay": True,
        "use_kda_recoverssm": False,
        "use_replayssm": False,
        "user_specified_block_size": options.block_size != EngineOptions().block_size,
    }
    return {name: str(fact) for name, fact in facts.items()}
