"""
Passages: requests on their way through an engine, and what is counted of them as they go.

A passage is told what happens to its request, and when, by whoever drives the engine; it moves the
engine's counters and histograms as vLLM does. Most histograms count a request only when it ends. A
preemption shows with the next token of the request it befell. A step counts if a token came out of
it, with the tokens that it generated and those that were computed of the prompts it finished.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Literal

from epp.simulator.exposition import Histogram, Value

EndReason = Literal["stop", "length", "abort", "error", "repetition"]

_ENDS = "request_success_total"


class Siblings:
    """The requests of one prompt whose reply was asked for n times."""

    def __init__(self, n: int) -> None:
        self.n = n
        self._unfinished = n
        self._longest = 0

    def finish(self, generated: int) -> int | None:
        """Take the length of a reply; return that of the longest with the last of them."""
        self._unfinished -= 1
        self._longest = max(self._longest, generated)
        return None if self._unfinished else self._longest


class Passage:
    """
    One request's way through an engine: what happened to it so far, and when.

    In the order of a step: admitted, preempted or resumed when it was scheduled; a token, and the
    end, when it was over.
    """

    __slots__ = (
        "_adapter", "_adapters", "_answering", "_max_tokens", "_running", "_series", "_siblings",
        "_untold_preemptions", "admitted", "arrived", "cached_tokens", "first_token", "generated",
        "last_token", "preemptions", "prompt_tokens",
    )  # fmt: skip

    def __init__(
        self,
        series: "RequestSeries",
        adapters: "AdapterUse",
        arrived: float,
        prompt_tokens: int,
        max_tokens: int | None,
        adapter: str | None,
        siblings: Siblings | None,
    ) -> None:
        self._series = series
        self._adapters = adapters
        self._max_tokens = max_tokens
        self._adapter = adapter
        self._siblings = siblings
        self._running = self._answering = False
        self._untold_preemptions = 0
        self.arrived = arrived
        self.admitted: float | None = None
        self.first_token: float | None = None
        self.last_token: float | None = None
        self.prompt_tokens = prompt_tokens
        self.cached_tokens = self.generated = self.preemptions = 0

    def admit(self, now: float, cached_tokens: int) -> None:
        """Note an admission; only the first says when it was and what was cached."""
        if self.admitted is None:
            self.admitted = now
            self.cached_tokens = cached_tokens
        self.resume()

    def preempt(self) -> None:
        """Note that the seat was taken away."""
        self._untold_preemptions += 1
        self._move(running=False)

    def resume(self) -> None:
        """Note that it runs again with what it had."""
        self._move(running=True)

    def token(self, now: float) -> None:
        """Count a token."""
        series = self._series
        series.generation_tokens.value += 1
        series.step_tokens += 1
        self.generated += 1
        if self.last_token is None:
            self.first_token = now
            series.count_first_token(self, now - self.arrived)
            self._answering = True
            self._adapters.answering.add(self._adapter)
        else:
            series.inter_token.observe(now - self.last_token)
        self.last_token = now
        if self._untold_preemptions:
            series.preemptions.value += self._untold_preemptions
            self.preemptions += self._untold_preemptions
            self._untold_preemptions = 0

    def finish(self, now: float, reason: EndReason) -> None:
        """Count the request; after its last token."""
        self.leave()
        series = self._series
        series.count_end(self, now, reason)
        if self._max_tokens is not None:
            series.max_tokens.observe(self._max_tokens)
        siblings = self._siblings or Siblings(1)
        longest = siblings.finish(self.generated)
        if longest is not None:
            series.longest_reply.observe(longest)
            series.copies.observe(siblings.n)

    def leave(self) -> None:
        """Forget the request: its reader has gone, and it is counted nowhere."""
        adapters = self._adapters
        (adapters.running if self._running else adapters.waiting).remove(self._adapter)
        if self._answering:
            adapters.answering.remove(self._adapter)

    def _move(self, *, running: bool) -> None:
        if running is not self._running:
            self._running = running
            adapters = self._adapters
            come_from, go_to = adapters.waiting, adapters.running
            if not running:
                come_from, go_to = go_to, come_from
            come_from.remove(self._adapter)
            go_to.add(self._adapter)


class _Names:
    """The adapters of some requests, in the order in which they came."""

    def __init__(self) -> None:
        self._requests: Counter[str] = Counter()

    @property
    def names(self) -> Iterable[str]:
        return self._requests

    def add(self, adapter: str | None) -> None:
        if adapter is not None:
            self._requests[adapter] += 1

    def remove(self, adapter: str | None) -> None:
        if adapter is not None:
            self._requests[adapter] -= 1
            if not self._requests[adapter]:
                del self._requests[adapter]


class AdapterUse:
    """The adapters of an engine's requests: those that wait, that run, that had a token."""

    def __init__(self) -> None:
        self.waiting = _Names()
        self.running = _Names()
        self.answering = _Names()


class RequestSeries:
    """What an engine has done so far."""

    def __init__(
        self,
        values: Mapping[tuple[str, str], Value],
        histograms: Mapping[str, Histogram],
    ) -> None:
        self.step_tokens = 0
        """What the step that is ending will have computed; 0 before its first token."""
        self._queries = values["prefix_cache_queries_total", ""]
        self._hits = values["prefix_cache_hits_total", ""]
        self._device_hits = values["prompt_tokens_cached_by_source_total", "device"]
        self.preemptions = values["num_preemptions_total", ""]
        self._prompt_tokens = values["prompt_tokens_total", ""]
        self._computed = values["prompt_tokens_by_source_total", "local_compute"]
        self._cache_hits = values["prompt_tokens_by_source_total", "local_cache_hit"]
        self._cached = values["prompt_tokens_cached_total", ""]
        self.generation_tokens = values["generation_tokens_total", ""]
        self._ends = {label: end for (name, label), end in values.items() if name == _ENDS}
        self._iteration_tokens = histograms["iteration_tokens_total"]
        self._first_token = histograms["time_to_first_token_seconds"]
        self.inter_token = histograms["inter_token_latency_seconds"]
        self.max_tokens = histograms["request_params_max_tokens"]
        self.longest_reply = histograms["request_max_num_generation_tokens"]
        self.copies = histograms["request_params_n"]
        self._of_request = histograms

    def count_first_token(self, passage: Passage, latency: float) -> None:
        """Count the token that ends a prompt's computation."""
        computed = passage.prompt_tokens - passage.cached_tokens
        self._prompt_tokens.value += passage.prompt_tokens
        self._computed.value += computed
        self._cache_hits.value += passage.cached_tokens
        self._cached.value += passage.cached_tokens
        self._first_token.observe(latency)
        self.step_tokens += computed

    def count_end(self, passage: Passage, now: float, reason: EndReason) -> None:
        """Count a request, and how long its parts took; a part it never reached took no time."""
        admitted = now if passage.admitted is None else passage.admitted
        first = now if passage.first_token is None else passage.first_token
        last = now if passage.last_token is None else passage.last_token
        gaps = passage.generated - 1
        self._ends[reason].value += 1
        observed = {
            "request_prompt_tokens": passage.prompt_tokens,
            "request_generation_tokens": passage.generated,
            "request_time_per_output_token_seconds": (last - first) / gaps if gaps > 0 else 0,
            "e2e_request_latency_seconds": now - passage.arrived,
            "request_queue_time_seconds": admitted - passage.arrived,
            "request_inference_time_seconds": last - admitted,
            "request_prefill_time_seconds": first - admitted,
            "request_decode_time_seconds": last - first,
            "request_num_preemptions": passage.preemptions,
            "request_prefill_kv_computed_tokens": passage.prompt_tokens - passage.cached_tokens,
        }
        for name, value in observed.items():
            self._of_request[name].observe(value)

    def end_step(self, queries: int, hits: int) -> None:
        """Count what a step asked of the cache, and its tokens."""
        self._queries.value += queries
        self._hits.value += hits
        self._device_hits.value += hits
        if self.step_tokens:
            self._iteration_tokens.observe(self.step_tokens)
            self.step_tokens = 0
