"""
The prefix plugins alone: what a request pays for them, and the memory that prompts leave behind.

The producer and the scorer are driven as the director drives them, with a request's whole life:
the match, the scores, the lesson when it is sent, the proof when it was answered. All prompts are
random, so that they share exactly what they are meant to share.
"""

import random
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.table import Table

from epp.framework import (
    PREFIX_MATCH,
    EndpointView,
    InferenceRequest,
    PluginContext,
    ProfileResult,
    SchedulingResult,
    ScoredEndpoint,
    TerminationCause,
)
from epp.testing import endpoint, request
from epp_plugins.data_producers.approximate_prefix import ApproximatePrefixProducer
from epp_plugins.data_producers.approximate_prefix.blocks import hashes
from epp_plugins.scorers.prefix_cache import PrefixCacheScorer

POOLS = (10, 100, 1000)
TOKENS = 7_200
LONG_TOKENS = 32_000
BYTES_PER_TOKEN = 4
BLOCK_BYTES = 64 * BYTES_PER_TOKEN
CAPACITY = 31_250 * 16 // 64
BATCH = 64

HIT_RATES = {"none": 0.0, "low": 0.2, "full": 1.0}
"""How much of each prompt all of them share."""

CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "default": {},
    "at most 8k tokens": {"max_prefix_tokens_to_match": 8192},
    "blocks of 16": {"min_block_size_tokens": 16},
    "blocks of 16, at most 8k tokens": {
        "min_block_size_tokens": 16,
        "max_prefix_tokens_to_match": 8192,
    },
}

MEMORY_PROMPTS, MEMORY_TOKENS, MEMORY_ENDPOINTS = 10_000, 100_000, 8
MEMORY_TARGET = 2e6
"""Bytes that the index may take after so many prompts, with everything as by default."""

NO_EVICTION = 10**9
"""A capacity in blocks that nothing exceeds here."""


class RequestRow(msgspec.Struct, frozen=True):
    """
    What one request costs, in CPU microseconds, the best of some batches.

    `match_us` with the hashing, `score_us` of the scorer, `learn_us` when it is sent: these three
    are in the way of the request. `prove_us` is when it was answered.
    """

    endpoints: int
    tokens: int
    configuration: str
    hits: str
    match_us: float
    score_us: float
    learn_us: float
    prove_us: float

    @property
    def total_us(self) -> float:
        """What the request waits for."""
        return self.match_us + self.score_us + self.learn_us


class IndexRow(msgspec.Struct, frozen=True):
    """How fast the index is without hashing, in calls a second, for prompts that half share."""

    endpoints: int
    lookups: float
    lessons: float
    bytes_per_block: float


class MemoryRow(msgspec.Struct, frozen=True):
    """What is left of many prompts, in blocks and bytes; `reported` is what the plugin says."""

    name: str
    prompts: int
    tokens: int
    sent: int
    held: int
    taken: int
    reported: int
    seconds: float


class Traffic:
    """Requests to one pool, each a prompt of its own behind what all share."""

    def __init__(self, endpoints: int, tokens: int, shared: float, **parameters: Any) -> None:
        self._draw = random.Random(1)
        self._size = tokens * BYTES_PER_TOKEN
        self._start = self._draw.randbytes(int(self._size * shared))
        self._rest = self._draw.randbytes(self._size)
        self._sent = 0
        pool = [
            endpoint(f"{at:04}", address=f"10.0.{at // 250}.{at % 250}") for at in range(endpoints)
        ]
        self.view = EndpointView(pool)
        self._results = [
            SchedulingResult({"p": ProfileResult([ScoredEndpoint(one, 1.0)], pool, {})}, "p")
            for one in pool
        ]
        self.producer = ApproximatePrefixProducer(context=PluginContext("bench"), **parameters)
        self.scorer = PrefixCacheScorer()

    def prompt(self) -> bytes:
        """Return the next prompt."""
        self._sent += 1
        # Eight bytes are enough to make all the blocks behind them different.
        number = self._sent.to_bytes(8, "little")
        return (self._start + number + self._rest)[: self._size]

    def ask(self, result: SchedulingResult) -> "Life":
        """Return the life of the next request, which the result sends somewhere."""
        return Life(self, request(self.prompt(), model="bench"), result)

    def warm(self, times: int = 1) -> None:
        """Send each endpoint a request, so many times."""
        for result in self._results * times:
            self.ask(result).live()

    def batch(self) -> list[float]:
        """Return the mean microseconds of each step of some requests' lives."""
        lives = [self.ask(self._draw.choice(self._results)) for _ in range(BATCH)]
        means = []
        for step in (Life.match, Life.score, Life.learn, Life.prove):
            began = time.thread_time()
            for one in lives:
                step(one)
            means.append((time.thread_time() - began) / BATCH * 1e6)
        return means


class Life:
    """One request from its match to its answer."""

    def __init__(self, traffic: Traffic, asked: InferenceRequest, result: SchedulingResult) -> None:
        self._traffic = traffic
        self._asked = asked
        self._result = result

    def match(self) -> None:
        """Find what is expected of the caches."""
        found = self._traffic.producer.produce(self._asked, self._traffic.view)
        self._asked.attributes.put(PREFIX_MATCH, found)

    def score(self) -> None:
        """Make scores of it."""
        self._traffic.scorer.score(self._asked, self._traffic.view)

    def learn(self) -> None:
        """Send the request."""
        self._traffic.producer.pre_request(self._asked, self._result)

    def prove(self) -> None:
        """End its response."""
        cause = TerminationCause.COMPLETED
        self._traffic.producer.on_response_complete(self._asked, self._result, cause, None)

    def live(self) -> None:
        """Do all of it."""
        self.match()
        self.learn()
        self.prove()


def requests(*, batches: int) -> list[RequestRow]:
    """Return what a request costs, by the size of the pool, the hits and the configuration."""
    cases = [(count, TOKENS, "default", hits) for count in POOLS for hits in HIT_RATES]
    cases += [
        (100, tokens, name, hits)
        for tokens in (TOKENS, LONG_TOKENS)
        for name in CONFIGURATIONS
        for hits in HIT_RATES
        if (tokens, name) != (TOKENS, "default")
    ]
    return [_request_row(*case, batches=batches) for case in cases]


def _request_row(
    count: int, tokens: int, configuration: str, hits: str, *, batches: int
) -> RequestRow:
    traffic = Traffic(count, tokens, HIT_RATES[hits], **CONFIGURATIONS[configuration])
    traffic.warm()  # so that all know what all share
    means = [traffic.batch() for _ in range(batches)]
    steps = [min(step) for step in zip(*means, strict=True)]
    return RequestRow(count, tokens, configuration, hits, *steps)


def index(*, batches: int) -> list[IndexRow]:
    """Return how fast the index is, by the size of the pool."""
    return [_index_row(count, batches) for count in POOLS]


def _index_row(count: int, batches: int) -> IndexRow:
    traced = Traffic(count, TOKENS, 0.5)
    taken = _taken(lambda: traced.warm(times=20))
    traffic = Traffic(count, TOKENS, 0.5)  # one whose memory is not traced
    traffic.warm(times=20)
    rows, inner = traffic.view.rows, traffic.producer._index
    lookups, lessons = [], []
    for _ in range(batches):
        prompts = [hashes(request(traffic.prompt()), BLOCK_BYTES, None) for _ in range(BATCH)]
        began = time.thread_time()
        for blocks in prompts:
            inner.match(blocks, rows, 0.0)
        matched = time.thread_time()
        for at, blocks in enumerate(prompts):
            inner.learn(blocks, rows[at % count], CAPACITY, 0.0)
        lookups.append(matched - began)
        lessons.append(time.thread_time() - matched)
    held = traced.producer.dump_state()["blocks"]
    return IndexRow(count, BATCH / min(lookups), BATCH / min(lessons), taken / held)


def _taken(work: Callable[[], object]) -> int:
    """Return the bytes that stay allocated."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


def memory(*, prompts: int) -> list[MemoryRow]:
    """Return what so many long prompts leave behind, with the default capacity and without end."""
    return [
        _memory_row("default capacity", prompts),
        _memory_row("nothing evicted", prompts, lru_capacity_per_server=NO_EVICTION),
    ]


def _memory_row(name: str, prompts: int, **parameters: Any) -> MemoryRow:
    traffic = Traffic(MEMORY_ENDPOINTS, MEMORY_TOKENS, 0.0, **parameters)
    began = time.perf_counter()
    taken = _taken(lambda: traffic.warm(times=prompts // MEMORY_ENDPOINTS))
    state = traffic.producer.dump_state()
    sent = prompts * (MEMORY_TOKENS // state["blockSizeTokens"])
    return MemoryRow(
        name,
        prompts,
        MEMORY_TOKENS,
        sent,
        state["heldBlocks"],
        taken,
        state["approximateBytes"],
        time.perf_counter() - began,
    )


def tables(
    request_rows: Sequence[RequestRow],
    index_rows: Sequence[IndexRow],
    memory_rows: Sequence[MemoryRow],
) -> Iterator[Table]:
    """Yield what was measured, to be shown."""
    yield _table(
        "A request's share of the prefix plugins: µs",
        ("endpoints", "tokens", "hits", "match", "score", "learn", "in its way", "prove"),
        [_cells(one) for one in request_rows if one.configuration == "default"],
    )
    yield _overhead(request_rows)
    yield _table(
        f"The index alone, prompts of {TOKENS:,} tokens that half share",
        ("endpoints", "lookups/s", "lessons/s", "bytes/block"),
        [
            (
                f"{one.endpoints}",
                f"{one.lookups:,.0f}",
                f"{one.lessons:,.0f}",
                f"{one.bytes_per_block:.1f}",
            )
            for one in index_rows
        ],
    )
    yield _table(
        f"Memory after prompts of {MEMORY_TOKENS:,} tokens to {MEMORY_ENDPOINTS} endpoints"
        f" (target {MEMORY_TARGET / 1e6:.0f} MB by default)",
        ("", "prompts", "blocks sent", "blocks held", "MB", "MB as reported", "bytes/block"),
        [
            (
                one.name,
                f"{one.prompts:,}",
                f"{one.sent:,}",
                f"{one.held:,}",
                f"{one.taken / 1e6:.1f}",
                f"{one.reported / 1e6:.1f}",
                f"{one.taken / one.held:.1f}",
            )
            for one in memory_rows
        ],
    )


def _cells(row: RequestRow) -> tuple[str, ...]:
    figures = (row.match_us, row.score_us, row.learn_us, row.total_us, row.prove_us)
    cells = [f"{one:.1f}" for one in figures]
    return (f"{row.endpoints}", f"{row.tokens:,}", row.hits, *cells)


def _overhead(rows: Sequence[RequestRow]) -> Table:
    """Return the table of configurations, with a column for each hit rate."""
    found = {
        (one.tokens, one.configuration, one.hits): f"{one.total_us:.1f}"
        for one in rows
        if one.endpoints == 100
    }
    lines = dict.fromkeys((tokens, name) for tokens, name, _ in found)
    return _table(
        "In a request's way by configuration, 100 endpoints: µs",
        ("tokens", "configuration", *[f"hits: {hits}" for hits in HIT_RATES]),
        [
            (f"{tokens:,}", name, *[found[tokens, name, hits] for hits in HIT_RATES])
            for tokens, name in lines
        ],
    )


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = Table(title=title)
    for name in columns:
        table.add_column(name, justify="left" if name in ("", "configuration") else "right")
    for row in rows:
        table.add_row(*row)
    return table


@click.command()
@click.option("--quick", is_flag=True, help="A tenth of the prompts, in a few seconds.")
def main(quick: bool) -> None:
    """Measure what the prefix plugins cost a request, and the memory of their index."""
    batches = 5 if quick else 15
    shown = tables(
        requests(batches=batches),
        index(batches=batches),
        memory(prompts=MEMORY_PROMPTS // 10 if quick else MEMORY_PROMPTS),
    )
    console = Console(width=120)
    for table in shown:
        console.print(table)


if __name__ == "__main__":
    main()
