"""
Telemetry: the `vllm:*` series of one simulated server, as the metrics page of vLLM 0.32 has them.

Names, labels and buckets are those of the real page; of its many series, those that routers and
dashboards read are here. Two of its habits are kept because readers must cope with them: gauges
move only when the engine reports, and every combination of adapters ever seen stays on the page
for good, its value the Unix time of its last report. In that series both lists name the same
adapters: those of unfinished requests that have produced a token; an adapter whose requests all
wait is in neither.
"""

import time
from collections.abc import Callable, Sequence

from epp.simulator.engine import EngineLoad, EngineOptions, FinishReason
from epp.simulator.exposition import Histogram, Page, Value

_ENGINE = "0"
_LORA_INFO = "vllm:lora_requests_info"
_LORA_INFO_HELP = "The adapters in use, and when that was so."
_REASONS = ("stop", "length", "abort", "error", "repetition")
_FIRST_TOKEN_BOUNDS = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
_INTER_TOKEN_BOUNDS = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
    40.0, 80.0,
)  # fmt: skip
_REQUEST_BOUNDS = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
    480.0, 960.0, 1920.0, 7680.0,
)  # fmt: skip
_STEP_BOUNDS = (1.0, *(2.0**power for power in range(3, 15)))


def _decades(largest: int) -> list[float]:
    """Return 1, 2, 5, 10, 20, 50 and so on, as far as anything can be counted."""
    bounds = (factor * 10.0**power for power in range(len(str(largest))) for factor in (1, 2, 5))
    return [bound for bound in bounds if bound <= largest]


class Telemetry:
    """The series of one server, on a page of their own."""

    def __init__(
        self,
        model: str,
        options: EngineOptions,
        *,
        lora: bool = False,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._page = Page()
        self._labels = {"model_name": model, "engine": _ENGINE}
        self._wall_clock = wall_clock
        self._lora = lora
        self._max_loras = str(options.max_loras)
        self._lora_info: dict[str, Value] = {}
        self._make_gauges()
        self._make_counters()
        self._make_histograms(options.max_model_len)
        if lora:
            self._page.announce(_LORA_INFO, "gauge", _LORA_INFO_HELP)
        self._describe_cache(options)

    def page(self) -> bytes:
        """Return the metrics page."""
        return self._page.render()

    def report(self, load: EngineLoad, adapters: Sequence[str]) -> None:
        """Set the gauges to what the engine is after a step, or after the last request left."""
        self._running.value = load.running
        self._waiting.value = load.waiting
        self._waiting_for_capacity.value = load.waiting - load.deferred
        self._waiting_deferred.value = load.deferred
        self._kv_usage.value = load.kv_usage
        if self._lora:
            self._report_adapters(",".join(adapters))

    def count_step(self, *, tokens: int, preemptions: int) -> None:
        """Count what a step computed."""
        self._step_tokens.observe(tokens)
        self._preemptions.value += preemptions

    def count_admission(self, *, prompt_tokens: int, cached_tokens: int, waited: float) -> None:
        """Count a request's first admission; those after a preemption ask the cache in silence."""
        self._prefix_queries.value += prompt_tokens
        self._prefix_hits.value += cached_tokens
        self._queue_time.observe(waited)

    def count_first_token(self, *, prompt_tokens: int, latency: float) -> None:
        """Count the token that ends the prompt's computation."""
        self._prompt_tokens.value += prompt_tokens
        self._generation_tokens.value += 1
        self._first_token.observe(latency)

    def count_next_token(self, latency: float) -> None:
        """Count a token after the first."""
        self._generation_tokens.value += 1
        self._inter_token.observe(latency)

    def count_finish(
        self, reason: FinishReason, *, prompt_tokens: int, generated_tokens: int, latency: float
    ) -> None:
        """Count a request that came to its end; one whose client left is not counted at all."""
        self._success[reason].value += 1
        self._request_prompt_tokens.observe(prompt_tokens)
        self._request_generation_tokens.observe(generated_tokens)
        self._request_latency.observe(latency)

    def _report_adapters(self, names: str) -> None:
        series = self._lora_info.get(names)
        if series is None:
            labels = {
                "max_lora": self._max_loras,
                "running_lora_adapters": names,
                "waiting_lora_adapters": names,
            }
            series = self._page.gauge(_LORA_INFO, _LORA_INFO_HELP, labels)
            self._lora_info[names] = series
        series.value = self._wall_clock()

    def _make_gauges(self) -> None:
        self._running = self._gauge("num_requests_running", "Requests that have a seat.")
        self._waiting = self._gauge("num_requests_waiting", "Requests that wait for a seat.")
        by_reason = ("num_requests_waiting_by_reason", "The waiting requests, by reason.")
        self._waiting_for_capacity = self._gauge(*by_reason, reason="capacity")
        self._waiting_deferred = self._gauge(*by_reason, reason="deferred")
        self._kv_usage = self._gauge("kv_cache_usage_perc", "Blocks that are held; 1 is all.")

    def _make_counters(self) -> None:
        self._prefix_queries = self._counter(
            "prefix_cache_queries_total", "Tokens looked up in the prefix cache."
        )
        self._prefix_hits = self._counter(
            "prefix_cache_hits_total", "Tokens found in the prefix cache."
        )
        self._preemptions = self._counter("num_preemptions_total", "Seats taken away again.")
        self._prompt_tokens = self._counter(
            "prompt_tokens_total", "Tokens of prompts, cached ones included."
        )
        self._generation_tokens = self._counter("generation_tokens_total", "Tokens generated.")
        self._success = {
            reason: self._counter(
                "request_success_total", "Requests that came to an end.", finished_reason=reason
            )
            for reason in _REASONS
        }

    def _make_histograms(self, max_model_len: int) -> None:
        token_bounds = _decades(max_model_len)
        self._request_prompt_tokens = self._histogram(
            "request_prompt_tokens", "Tokens of a prompt.", token_bounds
        )
        self._request_generation_tokens = self._histogram(
            "request_generation_tokens", "Tokens of a reply.", token_bounds
        )
        self._step_tokens = self._histogram(
            "iteration_tokens_total", "Tokens computed in a step.", _STEP_BOUNDS
        )
        self._first_token = self._histogram(
            "time_to_first_token_seconds", "From arrival to the first token.", _FIRST_TOKEN_BOUNDS
        )
        self._inter_token = self._histogram(
            "inter_token_latency_seconds", "From one token to the next.", _INTER_TOKEN_BOUNDS
        )
        self._request_latency = self._histogram(
            "e2e_request_latency_seconds", "From arrival to the last token.", _REQUEST_BOUNDS
        )
        self._queue_time = self._histogram(
            "request_queue_time_seconds", "From arrival to the first seat.", _REQUEST_BOUNDS
        )

    def _describe_cache(self, options: EngineOptions) -> None:
        size_tokens = (options.num_gpu_blocks - 1) * options.block_size
        facts = {
            "block_size": options.block_size,
            "enable_prefix_caching": options.prefix_caching,
            "engine": _ENGINE,
            "kv_cache_max_concurrency": size_tokens / options.max_model_len,
            "kv_cache_size_tokens": size_tokens,
            "num_gpu_blocks": options.num_gpu_blocks,
        }
        labels = {name: str(fact) for name, fact in facts.items()}
        self._page.gauge("vllm:cache_config_info", "How the cache is configured.", labels).value = 1

    def _gauge(self, name: str, help_text: str, **labels: str) -> Value:
        return self._page.gauge(f"vllm:{name}", help_text, {**self._labels, **labels})

    def _counter(self, name: str, help_text: str, **labels: str) -> Value:
        return self._page.counter(f"vllm:{name}", help_text, {**self._labels, **labels})

    def _histogram(self, name: str, help_text: str, bounds: Sequence[float]) -> Histogram:
        return self._page.histogram(f"vllm:{name}", help_text, self._labels, bounds)
