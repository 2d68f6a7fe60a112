"""
Telemetry: the `vllm:*` series of one simulated server, as the metrics page of vLLM 0.32 has them.

A server has one page; each of its engines reports to its own series there, told apart by the label
`engine`. A request is a passage through an engine: whoever drives the engine tells the passage what
happened and when, and everything that is counted follows from that.

Habits of the real page are kept because readers must cope with them. Gauges move only when an
engine reports. Every combination of adapters ever seen stays on the page for good, its value the
Unix time of its last report. In that series both lists name the same adapters, those of unfinished
requests that have produced a token; an adapter whose requests all wait is in neither. Up to vLLM
0.10.2 the lists were those of running and of waiting requests: the mode `old`.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

from epp.simulator import metric_families as families
from epp.simulator.engine import EngineLoad, EngineOptions
from epp.simulator.exposition import Histogram, Page, Value
from epp.simulator.passage import AdapterUse, Passage, RequestSeries, Siblings

__all__ = [
    "EngineTelemetry",
    "LoraInfoMode",
    "Passage",
    "RejectionReason",
    "Siblings",
    "Telemetry",
]

LoraInfoMode = Literal["current", "old"]
RejectionReason = Literal["max_num_queued_reqs", "max_num_queued_tokens"]

_NO_LOAD = EngineLoad(running=0, waiting=0, deferred=0, swapped=0, kv_usage=0.0, cpu_usage=0.0)

_Report = Callable[[Iterable[str], Iterable[str]], None]
"""Takes the names of running and of waiting adapters."""


class Telemetry:
    """The series of one server, on a page of their own."""

    def __init__(
        self,
        model: str,
        options: EngineOptions,
        *,
        engines: int = 1,
        lora: bool = False,
        lora_info: LoraInfoMode = "current",
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._page = Page()
        self._wall_clock = wall_clock
        self._max_loras = str(options.max_loras)
        self._lora_info: dict[tuple[str, str], Value] = {}
        labels = [{"model_name": model, "engine": str(rank)} for rank in range(engines)]
        swaps = options.preemption_mode == "swap"
        values = self._make_values(labels, families.SWAP_VALUES if swaps else ())
        self._rejections = {
            reason: self._page.counter(
                families.REJECTIONS,
                families.REJECTIONS_HELP,
                {"model_name": model, "reason": reason},
            )
            for reason in families.REJECTION_REASONS
        }
        histograms = self._make_histograms(labels, families.token_bounds(options.max_model_len))
        report: _Report | None = None
        if lora:
            self._page.announce(families.LORA_INFO, "gauge", families.LORA_INFO_HELP)
            report = self._report_adapters
        self._describe_caches(options, engines)
        self.engines: Sequence[EngineTelemetry] = [
            EngineTelemetry(values[rank], histograms[rank], report, lora_info)
            for rank in range(engines)
        ]

    def page(self) -> bytes:
        """Return the metrics page."""
        return self._page.render()

    def count_rejection(self, reason: RejectionReason) -> None:
        """Count a request that was not let in."""
        self._rejections[reason].value += 1

    def _make_values(
        self, engines: Sequence[Mapping[str, str]], more: Sequence[families.ValueFamily]
    ) -> list[dict[tuple[str, str], Value]]:
        made: list[dict[tuple[str, str], Value]] = [{} for _ in engines]
        for family in (*families.VALUES, *more):
            make = self._page.gauge if family.kind == "gauge" else self._page.counter
            for label_value in family.label_values:
                extra = {family.label: label_value} if family.label else {}
                for labels, series in zip(engines, made, strict=True):
                    series[family.name, label_value] = make(
                        f"vllm:{family.name}", family.help_text, {**labels, **extra}
                    )
        return made

    def _make_histograms(
        self, engines: Sequence[Mapping[str, str]], token_bounds: Sequence[float]
    ) -> list[dict[str, Histogram]]:
        made: list[dict[str, Histogram]] = [{} for _ in engines]
        for family in families.HISTOGRAMS:
            bounds = token_bounds if family.bounds is None else family.bounds
            for labels, series in zip(engines, made, strict=True):
                series[family.name] = self._page.histogram(
                    f"vllm:{family.name}", family.help_text, labels, bounds
                )
        return made

    def _describe_caches(self, options: EngineOptions, engines: int) -> None:
        facts = families.cache_facts(options, engines)
        for rank in range(engines):
            labels = {**facts, "engine": str(rank)}
            self._page.gauge(families.CACHE_INFO, families.CACHE_INFO_HELP, labels).value = 1

    def _report_adapters(self, running: Iterable[str], waiting: Iterable[str]) -> None:
        key = (",".join(running), ",".join(waiting))
        series = self._lora_info.get(key)
        if series is None:
            labels = {
                "max_lora": self._max_loras,
                "running_lora_adapters": key[0],
                "waiting_lora_adapters": key[1],
            }
            series = self._page.gauge(families.LORA_INFO, families.LORA_INFO_HELP, labels)
            self._lora_info[key] = series
        series.value = self._wall_clock()


class EngineTelemetry:
    """The series of one engine; whoever drives it lets requests arrive and reports its load."""

    def __init__(
        self,
        values: Mapping[tuple[str, str], Value],
        histograms: Mapping[str, Histogram],
        report_adapters: _Report | None,
        lora_info: LoraInfoMode,
    ) -> None:
        self.load = _NO_LOAD
        """What was reported last."""
        self._series = RequestSeries(values, histograms)
        self._gauges = _Gauges(values)
        self._adapters = AdapterUse()
        self._report_adapters = report_adapters
        self._lora_info = lora_info

    def arrive(
        self,
        now: float,
        *,
        prompt_tokens: int,
        max_tokens: int | None,
        adapter: str | None = None,
        siblings: Siblings | None = None,
    ) -> Passage:
        """Let a request in; all its times are on the clock of `now`."""
        self._adapters.waiting.add(adapter)
        return Passage(
            self._series, self._adapters, now, prompt_tokens, max_tokens, adapter, siblings
        )

    def report(self, load: EngineLoad, *, queries: int = 0, hits: int = 0) -> None:
        """
        Set the gauges to what the engine is after a step, or after a request left.

        The tokens that the step looked up and found in the prefix cache are those of first
        admissions; what comes back after a preemption asks the cache in silence.
        """
        self.load = load
        self._gauges.report(load)
        self._series.end_step(queries, hits)
        if self._report_adapters is None:
            return
        adapters = self._adapters
        if self._lora_info == "old":
            self._report_adapters(adapters.running.names, adapters.waiting.names)
        else:
            self._report_adapters(adapters.answering.names, adapters.answering.names)


class _Gauges:
    """What an engine is like now."""

    def __init__(self, values: Mapping[tuple[str, str], Value]) -> None:
        by_reason = "num_requests_waiting_by_reason"
        self._running = values["num_requests_running", ""]
        self._waiting = values["num_requests_waiting", ""]
        self._for_capacity = values[by_reason, "capacity"]
        self._deferred = values[by_reason, "deferred"]
        self._kv_usage = values["kv_cache_usage_perc", ""]
        self._swapped = values.get(("num_requests_swapped", ""))
        self._cpu_usage = values.get(("cpu_cache_usage_perc", ""))
        values["engine_sleep_state", "awake"].value = 1

    def report(self, load: EngineLoad) -> None:
        self._running.value = load.running
        self._waiting.value = load.waiting
        self._for_capacity.value = load.waiting - load.deferred
        self._deferred.value = load.deferred
        self._kv_usage.value = load.kv_usage
        if self._swapped is not None and self._cpu_usage is not None:
            self._swapped.value = load.swapped
            self._cpu_usage.value = load.cpu_usage
