"""
Options of one simulated model server.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from epp.simulator.engine import EngineOptions, StepTiming
from epp.simulator.faults import Faults
from epp.simulator.kv_events import Encoding, HashFormat, KVEventsConfig
from epp.simulator.telemetry import LoraInfoMode

_LAST_PORT = 65535


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatorOptions:
    """What a simulated model server is; port 0 stands for any that is free."""

    host: str = "127.0.0.1"
    port: int = 0
    model: str = "simulated"
    lora_modules: Sequence[str] = ()
    """Adapters that are there from the start, each as NAME or NAME=PATH."""
    runtime_lora_updating: bool = False
    """Whether adapters can be loaded and unloaded over HTTP."""
    lora_info: LoraInfoMode = "current"
    engine: EngineOptions = field(default_factory=EngineOptions)
    timing: StepTiming = field(default_factory=StepTiming)
    data_parallel_size: int = 1
    """How many engines there are, each with these options."""
    time_scale: float = 1.0
    """Real seconds for each second of the timing; 0 is as fast as it goes."""
    seed: int = 0
    api_key: str | None = None
    max_num_queued_reqs: int | None = None
    max_num_queued_tokens: int | None = None
    request_id_headers: bool = False
    prompt_tokens_details: bool = False
    per_request_metrics: bool = False
    force_include_usage: bool = False
    server_load_tracking: bool = False
    kv_events: KVEventsConfig = field(default_factory=KVEventsConfig)
    kv_events_encoding: Encoding = "map"
    kv_events_hashes: HashFormat = "int"
    faults: Faults = field(default_factory=Faults)

    def __post_init__(self) -> None:
        _check_names(self.model, [module.partition("=")[0] for module in self.lora_modules])
        for text in (self.host, *self.lora_modules, self.engine.hash_seed, self.api_key or ""):
            _check_text(text)
        self._check_size()
        if not 0 <= self.port <= _LAST_PORT:
            raise ValueError(f"port {self.port}: it must be from 0 to {_LAST_PORT}")
        if self.kv_events.publishes:
            self.kv_events.check_ports(self.data_parallel_size)

    def _check_size(self) -> None:
        fits = (self.engine.num_gpu_blocks - 1) * self.engine.block_size
        if self.engine.max_model_len > fits:
            raise ValueError(
                f"a request of max_model_len {self.engine.max_model_len} exceeds the cache:"
                f" {self.engine.num_gpu_blocks} blocks, one of them kept back, hold {fits} tokens"
            )
        if self.data_parallel_size < 1:
            raise ValueError(f"data_parallel_size {self.data_parallel_size}: at least 1")


def _check_names(model: str, adapters: Sequence[str]) -> None:
    """Raise ValueError where a name stands for nothing, or for two models."""
    for name, count in Counter([model, *adapters]).items():
        _check_text(name)
        if not name:
            raise ValueError("a model or an adapter without a name cannot be asked for")
        if count > 1:
            both = "is also an adapter's" if name == model else "is there more than once"
            raise ValueError(f"names of models and adapters must differ: {name!r} {both}")


def _check_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{text!r} is no UTF-8, and nothing could tell of it") from error
