"""
The options of `vllm-sim serve`, in groups: vLLM's own names wherever vLLM has the thing.
"""

from collections.abc import Mapping, Sequence
from typing import Any, get_args

import click

from epp.simulator import option_types as types
from epp.simulator.api.catalog import MISSING_PATHS
from epp.simulator.engine import PROFILES, EngineOptions
from epp.simulator.engine.options import HashAlgorithm, LoraWaiting, PolicyName, PreemptionMode
from epp.simulator.faults import Faults
from epp.simulator.kv_events import Encoding
from epp.simulator.telemetry import LoraInfoMode

_ENGINE = EngineOptions()
_FAULTS = Faults()


def _option(*names: str, **more: Any) -> click.Option:
    return click.Option(names, **({"show_default": True} | more))


def _switch(*names: str, **more: Any) -> click.Option:
    return click.Option(names, **({"is_flag": True, "default": False} | more))


def _choice(*names: str, of: Any, **more: Any) -> click.Option:
    return _option(*names, type=click.Choice(get_args(of) or list(of)), **more)


def _engine(*names: str, field: str, **more: Any) -> click.Option:
    return _option(*names, field, default=getattr(_ENGINE, field), **more)


SERVER = [
    _option("--host", type=types.TEXT, default="127.0.0.1", help="Address to listen on."),
    _option(
        "--port",
        type=types.PORT,
        default=8000,
        help="Port to listen on; 0 takes one that is free.",
    ),
    _option("--model", type=types.TEXT, default="simulated", help="Name of the base model."),
    _option(
        "--data-parallel-size",
        type=types.ENGINES,
        default=1,
        help="Engines behind the port, each with all of the options below; a request goes to the"
        " least loaded, or to the one that its header X-data-parallel-rank names.",
    ),
    _option("--seed", type=types.NATURAL, default=0, help="Other seeds, other replies and faults."),
    _option(
        "--api-key",
        type=types.TEXT,
        envvar="VLLM_API_KEY",
        help="Key that paths under /v1 ask for.",
    ),
    _option(
        "--max-num-queued-reqs",
        type=types.COUNT,
        help="Requests that may wait for a first seat; others get a 503.  [default: no limit]",
    ),
    _option(
        "--max-num-queued-tokens",
        type=types.COUNT,
        help="Prompt tokens that may wait so; likewise.  [default: no limit]",
    ),
    _switch(
        "--enable-request-id-headers",
        "request_id_headers",
        help="Give each answer the header X-Request-Id: the request's, or a new one.",
    ),
    _switch(
        "--enable-prompt-tokens-details",
        "prompt_tokens_details",
        help="Say in usage how many tokens of the prompt were cached.",
    ),
    _switch(
        "--enable-force-include-usage",
        "force_include_usage",
        help="Put usage into every event of every stream.",
    ),
    _switch(
        "--enable-per-request-metrics",
        "per_request_metrics",
        help="Say in whole answers how long their request took.",
    ),
    _switch(
        "--enable-server-load-tracking",
        "server_load_tracking",
        help="Count the requests under way for GET /load.",
    ),
]

ENGINE = [
    _engine(
        "--max-num-seqs",
        field="max_num_seqs",
        type=types.COUNT,
        help="Requests that can run at once; others wait.",
    ),
    _engine(
        "--max-num-batched-tokens",
        field="max_num_batched_tokens",
        type=types.COUNT,
        help="Tokens that one step can compute; longer prompts take several.",
    ),
    _engine(
        "--long-prefill-token-threshold",
        field="long_prefill_token_threshold",
        type=types.NATURAL,
        help="Tokens of one prompt that a step computes where others wait too; 0 is no limit.",
    ),
    _engine(
        "--max-model-len",
        field="max_model_len",
        type=types.COUNT,
        help="Tokens of a prompt and its reply together.",
    ),
    _engine("--block-size", field="block_size", type=types.COUNT, help="Tokens in a cache block."),
    _engine(
        "--num-gpu-blocks",
        "--num-gpu-blocks-override",
        field="num_gpu_blocks",
        type=types.BLOCKS,
        help="Blocks in the cache; one of them is kept back.",
    ),
    _engine(
        "--enable-prefix-caching/--no-enable-prefix-caching",
        field="prefix_caching",
        help="Whether prompts find what is cached of them.",
    ),
    _engine(
        "--reserve-full-prompt/--no-reserve-full-prompt",
        field="reserve_full_prompt",
        help="Whether a request is admitted only if its whole prompt fits into free blocks.",
    ),
    _engine(
        "--watermark",
        field="watermark",
        type=types.SHARE,
        help="Share of all blocks that an admission leaves free, unless nothing runs.",
    ),
]

SCHEDULING = [
    _choice(
        "--scheduling-policy",
        of=PolicyName,
        default=_ENGINE.scheduling_policy,
        help="Who goes first: who came first; who has the lowest priority value; the same, made"
        " more urgent by age; or whose reader would suffer most. Under fcfs, priorities are ignored"
        " but for --class-limit.",
    ),
    _engine(
        "--priority-preemption/--no-priority-preemption",
        field="priority_preemption",
        help="Whether a more urgent waiting request may take a less urgent one's seat. One whose"
        " adapter or class is at its limit sends nobody away, and under qoe each request loses its"
        " seat that way once at most.",
    ),
    _engine(
        "--ageing-seconds",
        field="ageing_seconds",
        type=types.POSITIVE,
        help="Under ageing: the age, since the arrival, whether a request waits or runs, that is"
        " worth one level of priority.",
    ),
    _engine(
        "--qoe-pace",
        field="qoe_pace",
        type=types.POSITIVE,
        help="Under qoe: the tokens a second that a reader expects.",
    ),
    _engine(
        "--qoe-first-token-seconds",
        field="qoe_first_token_seconds",
        type=types.DURATION,
        help="Under qoe: when a reader expects the first token.",
    ),
    _option(
        "--class-limit",
        "class_limits",
        metavar="PRIORITY:RUNNING",
        type=types.CLASS_LIMIT,
        multiple=True,
        help="At most RUNNING requests whose priority value is PRIORITY or more run at once; may be"
        " given repeatedly.",
    ),
    _choice(
        "--preemption-mode",
        of=PreemptionMode,
        default=_ENGINE.preemption_mode,
        help="Whether a preempted request is computed anew or its blocks wait in the CPU's memory.",
    ),
    _engine(
        "--num-cpu-blocks",
        field="num_cpu_blocks",
        type=types.NATURAL,
        help="Under swap: blocks that the CPU's memory holds.",
    ),
    _engine(
        "--strict-order/--no-strict-order",
        field="strict_order",
        help="Whether nobody new is admitted in a step that had to turn somebody away.",
    ),
]

LORA = [
    _option(
        "--lora-module",
        "lora_modules",
        metavar="NAME[=PATH]",
        type=types.TEXT,
        multiple=True,
        help="A LoRA adapter, requested by its name as the model; may be given repeatedly. The path"
        " goes into block hashes; without one it is the name.",
    ),
    _engine(
        "--max-loras",
        field="max_loras",
        type=types.COUNT,
        help="Adapters that one step can compute, and that the accelerator's memory holds.",
    ),
    _option(
        "--max-cpu-loras",
        type=types.COUNT,
        help="Adapters that the CPU's memory holds: the timings bring any onto the accelerator at"
        " the same cost, unless --lora-fetch-ms says what one costs more that is not among these."
        f"  [default: {_ENGINE.max_cpu_loras}, or --max-loras if that is more]",
    ),
    _choice(
        "--lora-waiting",
        of=LoraWaiting,
        default=_ENGINE.lora_waiting,
        help="Whether a waiting request whose adapter exceeds --max-loras is passed over or holds"
        " up all behind it.",
    ),
    _choice(
        "--lora-info-mode",
        "lora_info",
        of=LoraInfoMode,
        default="current",
        help="How vllm:lora_requests_info lists adapters: as vLLM 0.32, whose two lists are the"
        " same, or as up to 0.10.2, which tells running and waiting ones apart.",
    ),
    _switch(
        "--enable-runtime-lora-updating",
        "runtime_lora_updating",
        envvar="VLLM_ALLOW_RUNTIME_LORA_UPDATING",
        show_envvar=True,
        help="Serve /v1/load_lora_adapter and /v1/unload_lora_adapter. Any path can be loaded but"
        f" those that begin with {MISSING_PATHS}, which are not found.",
    ),
]

KV_EVENTS = [
    _option(
        "--kv-events-config",
        "kv_events",
        metavar="JSON",
        type=types.KV_EVENTS,
        help="How cache blocks that are stored and removed are published, in vLLM's form:"
        ' {"enable_kv_cache_events": true, "endpoint": "tcp://*:5557",'
        ' "replay_endpoint": "tcp://*:5657", "topic": "", "buffer_steps": 10000}. Rank k of'
        " --data-parallel-size publishes at port + k.",
    ),
    _choice(
        "--kv-events-encoding",
        of=Encoding,
        default="map",
        help="Events as maps, as since vLLM 0.24, or by position, as before.",
    ),
    _switch(
        "--kv-events-int-hashes/--kv-events-byte-hashes",
        "kv_events_int_hashes",
        default=True,
        show_default=True,
        envvar="VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES",
        show_envvar=True,
        help="Block hashes as numbers of 64 bits, or as they are.",
    ),
    _choice(
        "--prefix-caching-hash-algo",
        "prefix_caching_hash_algorithm",
        of=HashAlgorithm,
        default=_ENGINE.prefix_caching_hash_algorithm,
        help="How blocks are hashed.",
    ),
    _option(
        "--hash-seed",
        type=types.TEXT,
        default=_ENGINE.hash_seed,
        envvar="PYTHONHASHSEED",
        show_envvar=True,
        help="What the first block's hash is chained to.",
    ),
]

TIMING = [
    _option(
        "--timing",
        "profile",
        type=click.Choice(sorted(PROFILES)),
        default="a100-7b",
        help="How long a step takes; the options below change parts of it.",
    ),
    _option("--base-ms", type=types.DURATION, help="Milliseconds that any step takes."),
    _option("--token-us", type=types.DURATION, help="Microseconds more for each token in a step."),
    _option("--seq-ms", type=types.DURATION, help="Milliseconds more for each request in a step."),
    _option(
        "--context-token-us",
        type=types.DURATION,
        help="Microseconds more for each token computed before, of the requests in a step.",
    ),
    _option(
        "--lora-load-ms",
        type=types.DURATION,
        help="Milliseconds more for each adapter that a step must load.",
    ),
    _option(
        "--lora-fetch-ms",
        type=types.DURATION,
        help="Milliseconds more for each of these that was not in the CPU's memory either; the"
        " named timings, as published, tell no difference.",
    ),
    _option(
        "--swap-block-ms",
        type=types.DURATION,
        help="Milliseconds more for each block copied to or from the CPU's memory.",
    ),
    _option(
        "--time-scale",
        type=types.DURATION,
        default=1.0,
        help="Real time for simulated time: 0.1 is ten times as fast, 0 does not wait at all.",
    ),
]

FAULTS = [
    _option(
        "--fail-share",
        type=types.SHARE,
        default=_FAULTS.fail_share,
        help="Share of requests that are answered with an error at once.",
    ),
    _option(
        "--fail-status",
        type=types.STATUS,
        default=_FAULTS.fail_status,
        help="Status of these errors.",
    ),
    _option(
        "--hang-share",
        type=types.SHARE,
        default=_FAULTS.hang_share,
        help="Share of requests that are accepted and never answered.",
    ),
    _option(
        "--slow-down",
        type=types.FACTOR,
        default=_FAULTS.slow_down,
        help="Factor on the duration of every step.",
    ),
    _option(
        "--die-at-step",
        type=types.COUNT,
        help="Step at whose beginning an engine dies: what is under way fails, and the process"
        " exits with status 1.",
    ),
    _switch("--fail-health", help="Answer /health and /ping with 503."),
]

GROUPS: Mapping[str, Sequence[click.Option]] = {
    "Server": SERVER,
    "Engine": ENGINE,
    "Scheduling": SCHEDULING,
    "LoRA adapters": LORA,
    "KV events": KV_EVENTS,
    "Timing": TIMING,
    "Faults, which POST /faults changes while it runs": FAULTS,
}
