"""
Read queues, KV-cache usage, LoRA adapters and blocks off a metrics page.

Every engine has its own names for the same few signals. Those of the common ones are built in, and
a configuration may add engines or rename signals, since names do change between versions. A value
that is missing or makes no sense never becomes a zero: the earlier one stays, and the update says
what is missing. A page that says nothing at all, or far more than any model server would, is a
failed scrape.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from epp.framework import Endpoint, EndpointUpdate, Extractor, ScrapeError
from epp_plugins.extractors.model_server_metrics.exposition import (
    Exposition,
    Sample,
    Scanner,
    Selector,
)

LEGACY_ENGINE_LABEL = "inference.networking.k8s.io/engine-type"

MODEL_LABEL = "model_name"
"""On the series of requests and of the cache: the model that is served, not an adapter of it."""

# A count beyond this is garbage, and would not survive the way through a float.
LARGEST_COUNT = 2**53


class EngineConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """
    Where an engine's page has each signal: a family's name, or `name{label=value,...}`.

    None takes over what the built-in engine of that name has; "" disables the signal. The cache's
    blocks stand either in two labels of one info family or in two families of their own.
    """

    name: str
    queued_requests_spec: str | None = None
    running_requests_spec: str | None = None
    kv_usage_spec: str | None = None
    lora_spec: str | None = None
    cache_info_spec: str | None = None
    cache_block_size_label_name: str | None = None
    cache_num_blocks_label_name: str | None = None
    cache_block_size_spec: str | None = None
    cache_num_blocks_spec: str | None = None


BUILT_IN_ENGINES = (
    EngineConfig(
        name="vllm",
        queued_requests_spec="vllm:num_requests_waiting",
        running_requests_spec="vllm:num_requests_running",
        kv_usage_spec="vllm:kv_cache_usage_perc",
        lora_spec="vllm:lora_requests_info",
        cache_info_spec="vllm:cache_config_info",
        cache_block_size_label_name="block_size",
        cache_num_blocks_label_name="num_gpu_blocks",
    ),
    EngineConfig(
        name="sglang",
        queued_requests_spec="sglang:num_queue_reqs",
        running_requests_spec="sglang:num_running_reqs",
        kv_usage_spec="sglang:token_usage",
        cache_info_spec="sglang:cache_config_info",
        cache_block_size_label_name="page_size",
        cache_num_blocks_label_name="num_pages",
    ),
    EngineConfig(
        name="trtllm-serve",
        queued_requests_spec="trtllm_num_requests_waiting",
        running_requests_spec="trtllm_num_requests_running",
        kv_usage_spec="trtllm_kv_cache_utilization",
        cache_block_size_spec="trtllm_kv_cache_tokens_per_block",
        cache_num_blocks_spec="trtllm_kv_cache_max_blocks",
    ),
    EngineConfig(
        name="triton-tensorrt-llm",
        queued_requests_spec="nv_trt_llm_request_metrics{request_type=waiting}",
        running_requests_spec="nv_trt_llm_request_metrics{request_type=scheduled}",
        kv_usage_spec="nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=fraction}",
        cache_block_size_spec="nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=tokens_per}",
        cache_num_blocks_spec="nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type=max}",
    ),
    # Triton's nv_inference_exec_count counts every execution since the start, not those that run
    # now, so there is nothing to read the running requests from.
    EngineConfig(name="triton", queued_requests_spec="nv_inference_pending_request_count"),
)

# Families that were renamed: the old name is read where a page lacks the new one.
OLDER_NAMES = {"vllm:kv_cache_usage_perc": "vllm:gpu_cache_usage_perc"}


class ModelServerMetricsExtractor(Extractor[bytes]):
    """
    Reads the page by the names of the endpoint's engine, which a label of the endpoint tells.

    Several engines behind one port add up: waiting and running requests are summed, KV-cache usage
    is their mean. The base models are those that the label `model_name` of these series names; an
    adapter stands there nowhere. An endpoint without the label of an engine, or with an unknown
    one, is the default one.
    """

    def __init__(
        self,
        *,
        engine_label_key: str = "llm-d.ai/engine-type",
        default_engine: str = "vllm",
        engine_configs: Sequence[EngineConfig] = (),
    ) -> None:
        self._engine_label_key = engine_label_key
        self._engines = {name: _engine(c) for name, c in _merged(engine_configs).items()}
        if default_engine not in self._engines:
            known = ", ".join(sorted(self._engines))
            message = f"defaultEngine: unknown engine {default_engine!r}; known are {known}"
            raise ValueError(message)
        self._default = self._engines[default_engine]

    def extract(self, endpoint: Endpoint, sample: bytes) -> EndpointUpdate:
        """Return what the page says; raise ScrapeError where it is nothing, or too much."""
        engine = self._engine_of(endpoint)
        page = _Page(engine.scanner.scan(sample))
        waiting = page.values("waiting", engine.waiting)
        running = page.values("running", engine.running)
        kv_usage = [min(usage, 1.0) for usage in page.values("kv_usage", engine.kv_usage)]
        adapters = page.adapters(engine.adapters)
        blocks = page.blocks(engine)
        update = EndpointUpdate(
            waiting=int(sum(waiting)) if waiting else None,
            running=int(sum(running)) if running else None,
            kv_usage=sum(kv_usage) / len(kv_usage) if kv_usage else None,
            running_adapters=adapters.running,
            waiting_adapters=adapters.waiting,
            max_adapters=adapters.limit,
            base_models=frozenset(page.models) or None,
            block_size=blocks[0],
            num_blocks=blocks[1],
            missing=frozenset(page.missing),
            parse_errors=page.parse_errors,
        )
        nothing = blocks == (None, None) and adapters.running is None
        if nothing and not (waiting or running or kv_usage):
            message = f"the page has nothing readable of engine {engine.name!r}"
            raise ScrapeError("unusable", message)
        return update

    def _engine_of(self, endpoint: Endpoint) -> "_Engine":
        labels = endpoint.labels
        name = labels.get(self._engine_label_key) or labels.get(LEGACY_ENGINE_LABEL, "")
        return self._engines.get(name, self._default)


@dataclass(frozen=True, slots=True)
class _Engine:
    """An engine's selectors, ready to use; several for one signal are tried in their order."""

    name: str
    scanner: Scanner
    waiting: Sequence[Selector]
    running: Sequence[Selector]
    kv_usage: Sequence[Selector]
    adapters: Sequence[Selector]
    cache_info: Sequence[Selector]
    block_size_label: str
    num_blocks_label: str
    block_size: Sequence[Selector]
    num_blocks: Sequence[Selector]


@dataclass(frozen=True, slots=True)
class _Adapters:
    running: frozenset[str] | None = None
    waiting: frozenset[str] | None = None
    limit: int | None = None


class _Page:
    """One page while it is read; gathers models, what is missing and what could not be read."""

    __slots__ = ("_exposition", "missing", "models", "parse_errors")

    def __init__(self, exposition: Exposition) -> None:
        self._exposition = exposition
        self.missing: set[str] = set()
        self.models: set[str] = set()
        self.parse_errors = 0

    def values(self, signal: str, selectors: Sequence[Selector]) -> list[float]:
        """Return the signal's value of each engine: of the first selector that finds any."""
        series: Sequence[Sample] = ()
        for selector in selectors:
            series = self._exposition.series(selector)
            if series:
                break
        # NaN fails both comparisons.
        values = [s.value for s in series if 0 <= s.value <= LARGEST_COUNT]
        self.parse_errors += len(series) - len(values)
        self.models |= {
            s.labels[MODEL_LABEL] for s in series if s.labels and MODEL_LABEL in s.labels
        }
        if selectors and not values:
            self.missing.add(signal)
        return values

    def adapters(self, selectors: Sequence[Selector]) -> _Adapters:
        """
        Return the LoRA adapters in use.

        The family's value is the time at which its labels were true, and old label sets stay, so
        the largest value is the current one. A server that never loaded an adapter has no family.
        """
        samples = [s for selector in selectors for s in self._exposition.largest(selector)]
        readable = [s.labels for s in samples if s.labels is not None]
        self.parse_errors += len(samples) - len(readable)
        if not readable:
            return _Adapters()
        labels = readable[0]
        limit = labels.get("max_lora")
        return _Adapters(
            _names(labels.get("running_lora_adapters", "")),
            _names(labels.get("waiting_lora_adapters", "")),
            None if limit is None else self._count(limit) or 0,
        )

    def blocks(self, engine: _Engine) -> tuple[int | None, int | None]:
        """Return the tokens in a cache block, and the blocks that all engines have together."""
        if engine.cache_info:
            info = self._exposition.series(engine.cache_info[0])
            self.parse_errors += sum(sample.labels is None for sample in info)
            sizes = self._label_values("block_size", info, engine.block_size_label)
            counts = self._label_values("num_blocks", info, engine.num_blocks_label)
        else:
            sizes = [int(size) for size in self.values("block_size", engine.block_size)]
            counts = [int(count) for count in self.values("num_blocks", engine.num_blocks)]
        return sizes[0] if sizes else None, sum(counts) if counts else None

    def _label_values(self, signal: str, series: Sequence[Sample], label: str) -> list[int]:
        if not label:
            return []
        texts = [s.labels[label] for s in series if s.labels is not None and label in s.labels]
        values = [value for text in texts if (value := self._count(text)) is not None]
        if not values:
            self.missing.add(signal)
        return values

    def _count(self, text: str) -> int | None:
        """Read a whole number in a label; a server may well say "None" or "invalid"."""
        # int() reads more than digits, and refuses very long ones.
        if text.isascii() and text.isdigit() and len(text) <= len(str(LARGEST_COUNT)):
            return int(text)
        self.parse_errors += 1
        return None


def _names(text: str) -> frozenset[str]:
    return frozenset(name for part in text.split(",") if (name := part.strip()))


def _merged(configs: Iterable[EngineConfig]) -> dict[str, EngineConfig]:
    """The built-in engines with the configured ones over and beside them."""
    engines = {engine.name: engine for engine in BUILT_IN_ENGINES}
    seen = set()
    for at, config in enumerate(configs):
        if config.name in seen or config.name in ("", "default"):
            fault = "configured twice" if config.name in seen else "not a name for an engine"
            message = f"engineConfigs[{at}].name {config.name!r} is {fault}"
            raise ValueError(message)
        seen.add(config.name)
        built_in = engines.get(config.name, config)
        given = {name: v for name, v in msgspec.structs.asdict(config).items() if v is not None}
        engines[config.name] = msgspec.structs.replace(built_in, **given)
    return engines


def _engine(config: EngineConfig) -> _Engine:
    signals = {
        "waiting": config.queued_requests_spec,
        "running": config.running_requests_spec,
        "kv_usage": config.kv_usage_spec,
        "adapters": config.lora_spec,
        "cache_info": config.cache_info_spec,
        "block_size": config.cache_block_size_spec,
        "num_blocks": config.cache_num_blocks_spec,
    }
    try:
        selectors = {signal: _selectors(spec) for signal, spec in signals.items()}
    except ValueError as error:
        message = f"engine {config.name!r}: {error}"
        raise ValueError(message) from error
    names = {selector.name for found in selectors.values() for selector in found}
    if not names:
        message = f"engine {config.name!r} reads no family at all: give it at least one spec"
        raise ValueError(message)
    # Servers keep adapters of the past on the page; a family that is also read whole may not.
    read_whole = {
        s.name for signal, found in selectors.items() if signal != "adapters" for s in found
    }
    return _Engine(
        name=config.name,
        scanner=Scanner(names, accumulating=names - read_whole),
        block_size_label=config.cache_block_size_label_name or "",
        num_blocks_label=config.cache_num_blocks_label_name or "",
        **selectors,
    )


def _selectors(spec: str | None) -> Sequence[Selector]:
    if not spec:
        return ()
    selector = Selector.parse(spec)
    older = OLDER_NAMES.get(selector.name)
    return (selector,) if older is None else (selector, Selector(older, selector.labels))
