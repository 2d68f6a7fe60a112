import asyncio
import collections
import contextlib
import itertools
import logging
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from epp.datalayer.collector import Collector
from epp.datalayer.datastore import Datastore
from epp.framework import (
    DataSource,
    Endpoint,
    EndpointId,
    EndpointRemoved,
    EndpointUpdate,
    EndpointUpserted,
    Extractor,
    ScrapeError,
    Synced,
)

A = EndpointId("default", "a")
Answer = Callable[[Endpoint], Awaitable[Any]]


async def idle(_: Endpoint) -> EndpointUpdate:
    return EndpointUpdate(waiting=0, running=0, kv_usage=0.0)


class Source(DataSource[EndpointUpdate]):
    """Answers as it is told, and remembers when it was asked about what."""

    def __init__(self, answer: Answer = idle) -> None:
        self.answer = answer
        self.polls: list[tuple[float, str, str]] = []
        self.open = collections.Counter[str]()
        self.most_open = 0

    async def poll(self, endpoint: Endpoint) -> EndpointUpdate:
        name = endpoint.id.name
        self.polls.append((asyncio.get_running_loop().time(), name, endpoint.destination))
        self.open[name] += 1
        self.most_open = max(self.most_open, self.open[name])
        try:
            return await self.answer(endpoint)
        finally:
            self.open[name] -= 1

    async def aclose(self) -> None: ...

    def times(self, name: str = "a") -> list[float]:
        return [moment for moment, polled, _ in self.polls if polled == name]


class AsIs(Extractor[EndpointUpdate]):
    """Takes what the source says."""

    def extract(self, endpoint: Endpoint, sample: EndpointUpdate) -> EndpointUpdate:
        return sample


class Observer:
    def __init__(self) -> None:
        self.seen: list[str] = []
        self.seconds: list[float] = []

    def scraped(self, endpoint: Endpoint, seconds: float, update: EndpointUpdate) -> None:
        self.seen.append("ok")
        self.seconds.append(seconds)

    def failed(self, endpoint: Endpoint, reason: str) -> None:
        self.seen.append(reason)


class Pool:
    """A datastore and a collector over a scripted source, in virtual time."""

    def __init__(self, answer: Answer = idle, **options: Any) -> None:
        self.datastore = Datastore(clock=asyncio.get_running_loop().time)
        self.source = Source(answer)
        self.observer = Observer()
        self.collector = Collector(self.datastore, self.source, AsIs(), self.observer, **options)

    def add(self, *names: str, address: str = "10.0.0.1", **labels: str) -> None:
        for name in names:
            id_ = EndpointId("default", name)
            self.datastore.apply(EndpointUpserted(id_, address, 8000, labels))

    def remove(self, name: str) -> None:
        self.datastore.apply(EndpointRemoved(EndpointId("default", name)))

    @contextlib.asynccontextmanager
    async def collecting(self) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(self.collector.run())
            yield
            task.cancel()


def gaps(times: list[float]) -> list[float]:
    return [later - earlier for earlier, later in itertools.pairwise(times)]


async def test_every_endpoint_is_polled_five_times_a_second() -> None:
    pool = Pool()
    pool.add("a", "b")
    async with pool.collecting():
        await asyncio.sleep(5)
    times = pool.source.times()

    assert gaps(times) == pytest.approx([0.2] * (len(times) - 1), abs=1e-4)
    assert len(pool.source.times("b")) in (24, 25, 26)


async def test_a_pool_without_requests_is_polled_less_often_until_one_comes() -> None:
    pool = Pool()
    pool.add("a", "b")
    (_, busy) = pool.datastore.endpoints()
    async with pool.collecting():
        await asyncio.sleep(6)
        quiet_since = asyncio.get_running_loop().time()
        await asyncio.sleep(6)
        busy.load.in_flight += 1
        busy_since = asyncio.get_running_loop().time()
        await asyncio.sleep(4)
    times = pool.source.times()
    quiet = [at for at in times if quiet_since < at < busy_since]
    later = [at for at in times if at > busy_since]

    assert gaps(quiet) == pytest.approx([0.6] * (len(quiet) - 1), abs=1e-3)
    assert later[0] - busy_since <= 0.21
    assert gaps(later) == pytest.approx([0.2] * (len(later) - 1), abs=1e-3)


async def test_requests_that_come_and_go_keep_the_pace() -> None:
    pool = Pool()
    pool.add("a")
    (endpoint,) = pool.datastore.endpoints()
    async with pool.collecting():
        for _ in range(10):
            await asyncio.sleep(2)
            endpoint.load.in_flight += 1
    times = pool.source.times()

    assert gaps(times) == pytest.approx([0.2] * (len(times) - 1), abs=1e-3)


async def test_a_quiet_pool_is_not_left_to_become_stale() -> None:
    pool = Pool(interval=0.5)
    pool.add("a")
    async with pool.collecting():
        await asyncio.sleep(20)
    times = pool.source.times()

    assert gaps(times) == pytest.approx([0.5] * (len(times) - 1), abs=1e-3)


async def test_a_sample_reaches_the_datastore_with_our_count_from_when_the_poll_began() -> None:
    async def answer(endpoint: Endpoint) -> EndpointUpdate:
        endpoint.load.in_flight = 3
        await asyncio.sleep(0.05)
        endpoint.load.in_flight = 8
        return EndpointUpdate(waiting=6)

    pool = Pool(answer, interval=10)
    pool.add("a")
    pool.datastore.endpoints()[0].load.in_flight = 2
    async with pool.collecting():
        await asyncio.sleep(10)
    (endpoint,) = pool.datastore.endpoints()

    assert (endpoint.metrics.waiting, endpoint.metrics.in_flight_at_update) == (6, 2)
    assert (endpoint.stale, endpoint.queue) == (False, 12)
    assert pool.observer.seen == ["ok"]
    assert pool.observer.seconds == pytest.approx([0.05], abs=1e-3)


async def test_endpoints_are_polled_at_moments_of_their_own_and_always_the_same() -> None:
    names = [f"endpoint-{at}" for at in range(20)]
    firsts = []
    for _ in range(2):
        pool = Pool()
        pool.add(*names)
        began = asyncio.get_running_loop().time()
        async with pool.collecting():
            await asyncio.sleep(0.2)
        firsts.append([pool.source.times(name)[0] - began for name in names])

    assert firsts[0] == pytest.approx(firsts[1], abs=1e-4)
    assert len({round(first, 3) for first in firsts[0]}) > 15


@pytest.mark.parametrize(
    ("count", "seconds"),
    [(1, 0.2), (20, 0.2), (50, 0.4), (170, 1.2), (1020, 0.2 + 1000 / 150)],
    ids=lambda value: str(value),
)
async def test_the_interval_grows_with_the_pool(count: int, seconds: float) -> None:
    assert Pool().collector.current_interval(count) == pytest.approx(seconds)


async def test_a_large_pool_is_scraped_no_more_than_150_times_a_second() -> None:
    pool = Pool()
    pool.add(*(f"endpoint-{at}" for at in range(500)))
    async with pool.collecting():
        await asyncio.sleep(15)
    seconds = pool.source.polls[-1][0] - pool.source.polls[0][0]

    assert 120 < len(pool.source.polls) / seconds <= 150


async def test_a_slow_endpoint_has_one_poll_open_and_delays_no_other() -> None:
    async def answer(endpoint: Endpoint) -> EndpointUpdate:
        if endpoint.id == A:
            await asyncio.sleep(0.5)
        return EndpointUpdate(waiting=1)

    pool = Pool(answer)
    pool.add("a", "b")
    async with pool.collecting():
        await asyncio.sleep(5)
    times = pool.source.times("a")

    assert pool.source.most_open == 1
    assert gaps(times) == pytest.approx([0.6] * (len(times) - 1), abs=1e-3)
    assert len(pool.source.times("b")) >= 24


async def test_a_poll_that_never_ends_is_a_timeout_and_the_next_one_is_tried() -> None:
    async def answer(_: Endpoint) -> EndpointUpdate:
        return await asyncio.Future()

    pool = Pool(answer, timeout=1.0)
    pool.add("a")
    async with pool.collecting():
        await asyncio.sleep(5)

    assert pool.observer.seen == ["timeout", "timeout", "timeout"]


async def test_values_survive_failures_until_they_are_stale_and_the_endpoint_stays() -> None:
    async def answer(_: Endpoint) -> EndpointUpdate:
        if asyncio.get_running_loop().time() - began > 1:
            raise ScrapeError("status", "expected status 200, got 503")
        return EndpointUpdate(waiting=9)

    pool = Pool(answer)
    pool.add("a")
    began = asyncio.get_running_loop().time()
    seen = []
    async with pool.collecting():
        for _ in range(3):
            await asyncio.sleep(2)
            (endpoint,) = pool.datastore.endpoints()
            seen.append((endpoint.metrics.waiting, endpoint.stale))

    assert seen == [(9, False), (9, True), (9, True)]
    assert pool.observer.seen.count("status") == 4


@pytest.mark.parametrize(
    ("others", "pauses"),
    [
        (0, [0.4, 0.8, 1.6, 3.2, 3.2, 3.2]),
        (49, [0.8, 1.6, 3.2, 4.8, 4.8]),
        (1019, [0.2 + 20 / 3, 0.2 + 20 / 3]),
    ],
    ids=["small pool", "no longer than 5 s", "large pool"],
)
async def test_the_longer_an_endpoint_fails_the_less_often_it_is_scraped(
    others: int, pauses: list[float]
) -> None:
    async def answer(endpoint: Endpoint) -> EndpointUpdate:
        if endpoint.id == A:
            raise ScrapeError("payload", "the page has more than 1024 series")
        return EndpointUpdate(waiting=1)

    pool = Pool(answer)
    interval = pool.collector.current_interval(1 + others)
    pool.add("a", *(f"other-{at}" for at in range(others)))
    async with pool.collecting():
        await asyncio.sleep(interval + sum(pauses) + 0.1)

    assert gaps(pool.source.times())[: len(pauses)] == pytest.approx(pauses, abs=0.01)


async def test_one_success_brings_a_failing_endpoint_back_to_its_pace() -> None:
    turns = itertools.count(1)

    async def answer(_: Endpoint) -> EndpointUpdate:
        if next(turns) in (1, 2, 3, 6):
            raise ScrapeError("connect", "connection refused")
        return EndpointUpdate(waiting=1)

    pool = Pool(answer)
    pool.add("a")
    async with pool.collecting():
        await asyncio.sleep(5)

    expected = [0.4, 0.8, 1.6, 0.2, 0.2, 0.4, 0.2, 0.2]

    assert gaps(pool.source.times())[:8] == pytest.approx(expected, abs=1e-3)


async def test_a_failing_endpoint_delays_no_other_and_keeps_its_beat() -> None:
    async def answer(endpoint: Endpoint) -> EndpointUpdate:
        if endpoint.id == A:
            raise ScrapeError("connect", "connection refused")
        return EndpointUpdate(waiting=1)

    pool = Pool(answer)
    pool.add("a", "b")
    async with pool.collecting():
        await asyncio.sleep(5)
    first, *later = pool.source.times("a")
    beats = [(moment - first) / 0.2 for moment in later]

    assert beats == pytest.approx([round(beat) for beat in beats], abs=0.01)
    assert len(pool.source.times("b")) in (24, 25, 26)


async def test_what_is_known_of_a_failing_endpoint_is_stale_after_two_seconds_all_the_same() -> (
    None
):
    async def answer(_: Endpoint) -> EndpointUpdate:
        if pool.observer.seen:
            raise ScrapeError("connect", "connection refused")
        return EndpointUpdate(waiting=1)

    pool = Pool(answer)
    pool.add("a")
    stale = []
    async with pool.collecting():
        await asyncio.sleep(0.2)
        updated_at = pool.datastore.endpoints()[0].metrics.updated_at or 0.0
        for age in (1.9, 2.3):
            await asyncio.sleep(updated_at + age - asyncio.get_running_loop().time())
            stale.append(pool.datastore.endpoints()[0].stale)

    assert stale == [False, True]


async def test_an_endpoint_that_moves_while_it_fails_is_scraped_at_once() -> None:
    async def answer(endpoint: Endpoint) -> EndpointUpdate:
        if endpoint.address == "10.0.0.1":
            raise ScrapeError("connect", "connection refused")
        return EndpointUpdate(waiting=1)

    pool = Pool(answer)
    pool.add("a")
    async with pool.collecting():
        await asyncio.sleep(20)
        pool.add("a", address="10.0.0.2")
        moved = asyncio.get_running_loop().time()
        await asyncio.sleep(1)
    times = [moment for moment in pool.source.times() if moment > moved]

    assert times[0] - moved < 0.2
    assert len(times) == 5


async def test_every_third_failure_changes_nothing() -> None:
    turns = itertools.count(1)

    async def answer(_: Endpoint) -> EndpointUpdate:
        if next(turns) % 3 == 0:
            raise ScrapeError("connect", "connection refused")
        return EndpointUpdate(waiting=1)

    pool = Pool(answer)
    pool.add("a")
    stale = []
    async with pool.collecting():
        await asyncio.sleep(0.2)
        for _ in range(50):
            await asyncio.sleep(0.1)
            stale.append(pool.datastore.endpoints()[0].stale)

    assert not any(stale)


async def test_endpoints_that_come_are_polled_and_those_that_go_are_not() -> None:
    pool = Pool()
    pool.add("a")
    async with pool.collecting():
        await asyncio.sleep(1)
        pool.add("b")
        pool.remove("a")
        now = asyncio.get_running_loop().time()
        await asyncio.sleep(1)

    assert max(pool.source.times("a")) <= now
    assert min(pool.source.times("b")) >= now
    assert len(pool.source.times("b")) >= 4


async def test_the_poll_of_an_endpoint_that_goes_is_cancelled_and_leaves_no_trace() -> None:
    async def answer(_: Endpoint) -> EndpointUpdate:
        return await asyncio.Future()

    pool = Pool(answer, timeout=60)
    pool.add("a")
    open_polls = []
    async with pool.collecting():
        for act in (lambda: None, lambda: pool.remove("a")):
            act()
            await asyncio.sleep(3)
            open_polls.append(pool.source.open["a"])

    assert open_polls == [1, 0]
    assert pool.observer.seen == []


async def test_an_endpoint_that_goes_in_the_very_moment_of_its_poll_is_not_polled() -> None:
    loop = asyncio.get_running_loop()
    pool = Pool()
    pool.add("a")
    due = loop.time() + zlib.crc32(b"default/a") / 2**32 * 0.2
    async with pool.collecting():
        await asyncio.sleep(0.001)
        loop.call_at(due + 1e-9, pool.remove, "a")
        await asyncio.sleep(1)

    assert pool.source.polls == []


async def test_an_endpoint_that_moves_is_polled_at_its_new_address_at_once() -> None:
    async def answer(_: Endpoint) -> EndpointUpdate:
        await asyncio.sleep(0.9)
        return EndpointUpdate(waiting=1)

    pool = Pool(answer)
    pool.add("a")
    async with pool.collecting():
        await asyncio.sleep(0.5)
        pool.add("a", address="10.0.0.2")
        await asyncio.sleep(0.5)

    polled = [destination for _, _, destination in pool.source.polls]

    assert polled == ["10.0.0.1:8000", "10.0.0.2:8000"]


@pytest.mark.parametrize("fails", [False, True], ids=["sample", "failure"])
async def test_a_result_is_dropped_where_the_endpoint_moved_meanwhile(*, fails: bool) -> None:
    async def answer(endpoint: Endpoint) -> EndpointUpdate:
        if endpoint.address == "10.0.0.1":
            pool.add("a", address="10.0.0.2")
            if fails:
                raise ScrapeError("connect", "connection refused")
            return EndpointUpdate(waiting=77)
        await asyncio.sleep(10)
        return EndpointUpdate(waiting=1)

    pool = Pool(answer, timeout=20)
    pool.add("a")
    async with pool.collecting():
        await asyncio.sleep(1)
        (endpoint,) = pool.datastore.endpoints()

    assert (endpoint.metrics.waiting, endpoint.stale) == (0, True)
    assert pool.observer.seen == []


async def test_other_labels_reach_the_next_poll_without_a_new_start() -> None:
    engines = []

    async def answer(endpoint: Endpoint) -> EndpointUpdate:
        engines.append(endpoint.labels.get("engine"))
        return EndpointUpdate(waiting=1)

    pool = Pool(answer)
    pool.add("a", engine="vllm")
    async with pool.collecting():
        await asyncio.sleep(0.5)
        pool.add("a", engine="sglang")
        await asyncio.sleep(0.5)
    times = pool.source.times()

    assert (engines[0], engines[-1]) == ("vllm", "sglang")
    assert gaps(times) == pytest.approx([0.2] * (len(times) - 1), abs=1e-4)


async def test_a_defect_in_a_plugin_ends_no_loop_and_is_shown_every_ten_seconds(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def answer(_: Endpoint) -> Any:
        return "not an update"

    pool = Pool(answer)
    pool.add("a")
    async with pool.collecting():
        await asyncio.sleep(30)
    tracebacks = [record for record in caplog.records if record.exc_info]

    assert set(pool.observer.seen) == {"plugin-error"}
    assert len(pool.observer.seen) > 10
    assert len(tracebacks) == 3


async def test_a_cancellation_that_leaks_out_of_a_plugin_does_not_stop_the_polling() -> None:
    turns = itertools.count(1)

    async def answer(_: Endpoint) -> EndpointUpdate:
        if next(turns) == 1:
            raise asyncio.CancelledError
        return EndpointUpdate(waiting=1)

    pool = Pool(answer)
    pool.add("a")
    async with pool.collecting():
        await asyncio.sleep(1)

    assert pool.observer.seen[:3] == ["plugin-error", "ok", "ok"]


async def test_only_changes_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def answer(_: Endpoint) -> EndpointUpdate:
        moment = asyncio.get_running_loop().time() - began
        if 1 < moment < 2:
            raise ScrapeError("connect", "connection refused")
        if 2 < moment < 3:
            raise ScrapeError("status", "expected status 200, got 503")
        return EndpointUpdate(waiting=1, missing=frozenset({"kv_usage", "block_size"}))

    pool = Pool(answer)
    pool.add("a")
    began = asyncio.get_running_loop().time()
    with caplog.at_level(logging.INFO, logger="epp.collector"):
        async with pool.collecting():
            await asyncio.sleep(6)

    assert caplog.messages == [
        "endpoint default/a does not report block_size, kv_usage",
        "endpoint default/a cannot be scraped (connect): connection refused",
        "endpoint default/a can be scraped again",
    ]


async def test_the_first_round_ends_when_each_endpoint_was_asked_whatever_it_answered() -> None:
    async def answer(endpoint: Endpoint) -> EndpointUpdate:
        if endpoint.id.name == "b":
            raise ScrapeError("connect", "refused")
        await asyncio.sleep(0.5)
        return EndpointUpdate(waiting=1)

    pool = Pool(answer)
    pool.add("a", "b")
    async with pool.collecting():
        await asyncio.sleep(2)
        before_the_sync = pool.collector.first_round.is_set()
        pool.datastore.apply(Synced())
        await asyncio.wait_for(pool.collector.first_round.wait(), 1)

    assert not before_the_sync
    assert [one.stale for one in pool.datastore.endpoints()] == [False, True]


async def test_the_first_round_waits_for_the_slowest() -> None:
    async def answer(_: Endpoint) -> EndpointUpdate:
        await asyncio.sleep(0.9)
        return EndpointUpdate(waiting=1)

    pool = Pool(answer)
    pool.add("a")
    pool.datastore.apply(Synced())
    async with pool.collecting():
        await asyncio.sleep(0.8)
        early = pool.collector.first_round.is_set()
        await asyncio.wait_for(pool.collector.first_round.wait(), 1)

    assert not early


async def test_an_empty_pool_has_had_its_first_round() -> None:
    pool = Pool()
    pool.datastore.apply(Synced())
    async with pool.collecting():
        await asyncio.wait_for(pool.collector.first_round.wait(), 1)

    assert pool.source.polls == []
