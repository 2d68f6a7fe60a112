"""
Options: the limits of one engine, and how it chooses.

Names are those of vLLM's flags wherever vLLM has them. What goes beyond vLLM is off by default, so
that an engine with default options schedules as vLLM 0.32 does.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

PolicyName = Literal["fcfs", "priority", "ageing", "qoe"]
PreemptionMode = Literal["recompute", "swap"]
LoraWaiting = Literal["skip", "stop"]
HashAlgorithm = Literal["sha256", "sha256_cbor", "xxhash", "xxhash_cbor"]


class ClassLimit(NamedTuple):
    """At most `max_running` requests run whose priority value is `priority` or more."""

    priority: int
    max_running: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """The limits of one engine; the defaults are those of vLLM on an A100 with an 8B model."""

    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    max_model_len: int = 8192
    long_prefill_token_threshold: int = 0
    """Tokens of one prompt that a step computes where others wait too; 0 is no limit."""
    block_size: int = 16
    num_gpu_blocks: int = 8192
    prefix_caching: bool = True
    prefix_caching_hash_algorithm: HashAlgorithm = "sha256"
    hash_seed: str = "vllm-none-hash"
    """What the first block's hash is chained to; vLLM takes PYTHONHASHSEED where it is set."""
    kv_events: bool = False
    """Whether steps tell which blocks were stored and removed."""
    reserve_full_prompt: bool = True
    """Whether all tokens of a waiting request must fit into free blocks before it is admitted."""
    watermark: float = 0.0
    """The fraction of all blocks that an admission leaves free, unless nothing runs."""
    scheduling_policy: PolicyName = "fcfs"
    priority_preemption: bool = False
    """Whether a more urgent waiting request may take the seat of a less urgent running one."""
    ageing_seconds: float = 10.0
    """Under `ageing`: the age that makes a request more urgent by one level of priority."""
    qoe_pace: float = 10.0
    """Under `qoe`: the tokens a second that a reader expects."""
    qoe_first_token_seconds: float = 1.0
    """Under `qoe`: when a reader expects the first token."""
    class_limits: Sequence[ClassLimit] = ()
    preemption_mode: PreemptionMode = "recompute"
    num_cpu_blocks: int = 2048
    """Under `swap`: the blocks that fit into the CPU's memory."""
    strict_order: bool = True
    """Whether nobody new is admitted in a step that had to turn a running or swapped one away."""
    max_loras: int = 4
    """How many adapters one step can compute, and the accelerator's memory holds."""
    max_cpu_loras: int = 16
    """How many adapters the CPU's memory holds."""
    lora_waiting: LoraWaiting = "skip"
    """Whether a waiting request whose adapter exceeds the limit is passed over or holds up all."""

    def __post_init__(self) -> None:
        for name in (
            "max_num_seqs",
            "max_num_batched_tokens",
            "max_model_len",
            "block_size",
            "max_loras",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        for name in ("long_prefill_token_threshold", "num_cpu_blocks", "qoe_first_token_seconds"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must not be below 0")
        for name in ("ageing_seconds", "qoe_pace"):
            if not 0 < getattr(self, name) < float("inf"):
                raise ValueError(f"{name} is {getattr(self, name)}; it must be above 0")
        self._check_memory()

    def _check_memory(self) -> None:
        if self.num_gpu_blocks < 2:
            raise ValueError(
                f"num_gpu_blocks is {self.num_gpu_blocks}; it must be at least 2: one is kept back"
            )
        if not 0 <= self.watermark < 1:
            raise ValueError(f"watermark is {self.watermark}; it must be from 0 to below 1")
        if self.max_cpu_loras < self.max_loras:
            raise ValueError(
                f"max_cpu_loras is {self.max_cpu_loras}; it must be max_loras,"
                f" {self.max_loras}, or more: the CPU holds what the accelerator holds"
            )
        if len({limit.priority for limit in self.class_limits}) < len(self.class_limits):
            raise ValueError("two class limits are about the same priority")
        for limit in self.class_limits:
            if limit.max_running < 1:
                raise ValueError(
                    f"class limit {limit.priority}:{limit.max_running}: at least 1 must run, or"
                    " requests of that class wait for ever"
                )
