import asyncio

import pytest

from epp.datalayer.datastore import Datastore
from epp.framework import (
    EndpointId,
    EndpointMetrics,
    EndpointRemoved,
    EndpointUpdate,
    EndpointUpserted,
    Synced,
)

A = EndpointId("default", "a")
B = EndpointId("default", "b")


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def datastore(clock: Clock) -> Datastore:
    return Datastore(clock=clock, stale_after=2.0)


def upserted(
    id_: EndpointId = A, address: str = "10.0.0.1", port: int = 8000, **labels: str
) -> EndpointUpserted:
    return EndpointUpserted(id_, address, port, labels)


def test_endpoints_come_sorted_whatever_their_order_of_arrival(datastore: Datastore) -> None:
    for name in "cab":
        datastore.apply(upserted(EndpointId("default", name)))
    datastore.apply(upserted(EndpointId("aaa", "z")))

    assert [str(one.id) for one in datastore.endpoints()] == [
        "aaa/z",
        "default/a",
        "default/b",
        "default/c",
    ]


def test_a_new_endpoint_is_stale_and_knows_nothing(datastore: Datastore) -> None:
    datastore.apply(upserted())
    (endpoint,) = datastore.endpoints()

    assert (endpoint.stale, endpoint.metrics) == (True, EndpointMetrics())


def test_the_snapshot_is_the_same_tuple_until_something_changes(datastore: Datastore) -> None:
    datastore.apply(upserted())
    before = datastore.endpoints()
    again = datastore.endpoints()
    datastore.apply(upserted())
    unchanged = datastore.endpoints()
    datastore.record(A, EndpointUpdate(waiting=1), in_flight=0)

    assert again is before
    assert unchanged is before
    assert datastore.endpoints() is not before


def test_a_snapshot_that_a_request_holds_does_not_change(datastore: Datastore) -> None:
    datastore.apply(upserted())
    (held,) = datastore.endpoints()
    datastore.record(A, EndpointUpdate(waiting=9), in_flight=0)
    datastore.apply(EndpointRemoved(A))

    assert (held.metrics.waiting, held.stale) == (0, True)


def test_a_sample_is_taken_in_with_its_moment_and_our_own_count(
    datastore: Datastore, clock: Clock
) -> None:
    datastore.apply(upserted())
    clock.now = 103.5
    datastore.record(A, EndpointUpdate(waiting=4, kv_usage=0.5), in_flight=7)
    (endpoint,) = datastore.endpoints()

    assert endpoint.metrics == EndpointMetrics(
        waiting=4, kv_usage=0.5, updated_at=103.5, in_flight_at_update=7
    )
    assert not endpoint.stale


def test_what_a_sample_does_not_say_stays_and_what_it_empties_is_empty(
    datastore: Datastore,
) -> None:
    datastore.apply(upserted())
    everything = EndpointUpdate(
        waiting=1,
        running=2,
        kv_usage=0.3,
        running_adapters=frozenset("x"),
        waiting_adapters=frozenset("y"),
        max_adapters=4,
        block_size=16,
        num_blocks=512,
    )
    datastore.record(A, everything, in_flight=0)
    datastore.record(A, EndpointUpdate(waiting=0, running_adapters=frozenset()), in_flight=0)
    metrics = datastore.endpoints()[0].metrics

    assert metrics == EndpointMetrics(
        waiting=0,
        running=2,
        kv_usage=0.3,
        running_adapters=frozenset(),
        waiting_adapters=frozenset("y"),
        max_adapters=4,
        block_size=16,
        num_blocks=512,
        updated_at=100.0,
    )


def test_other_labels_keep_metrics_and_load(datastore: Datastore) -> None:
    datastore.apply(upserted(tier="old"))
    datastore.record(A, EndpointUpdate(waiting=3), in_flight=0)
    before = datastore.endpoints()[0]
    datastore.apply(upserted(tier="new"))
    after = datastore.endpoints()[0]

    assert after.labels == {"tier": "new"}
    assert after.load is before.load
    assert (after.metrics, after.stale) == (before.metrics, False)


@pytest.mark.parametrize(
    ("address", "port"), [("10.0.0.2", 8000), ("10.0.0.1", 9000)], ids=["address", "port"]
)
def test_another_address_or_port_is_a_new_life(
    datastore: Datastore, address: str, port: int
) -> None:
    datastore.apply(upserted())
    datastore.record(A, EndpointUpdate(waiting=3), in_flight=0)
    before = datastore.endpoints()[0]
    before.load.in_flight = 5
    datastore.apply(upserted(address=address, port=port))
    after = datastore.endpoints()[0]

    assert after.destination == f"{address}:{port}"
    assert (after.metrics, after.stale) == (EndpointMetrics(), True)
    assert after.load is not before.load
    assert after.load.in_flight == 0


def test_an_endpoint_that_returns_starts_with_a_new_count(datastore: Datastore) -> None:
    """Requests of the earlier life end later; they must not make the new count negative."""
    datastore.apply(upserted())
    earlier = datastore.endpoints()[0].load
    datastore.apply(EndpointRemoved(A))
    datastore.apply(upserted())

    assert datastore.endpoints()[0].load is not earlier


def test_all_snapshots_of_a_life_share_one_load(datastore: Datastore) -> None:
    datastore.apply(upserted())
    (held,) = datastore.endpoints()
    datastore.record(A, EndpointUpdate(waiting=1), in_flight=0)
    datastore.endpoints()[0].load.in_flight = 3

    assert held.load.in_flight == 3


def test_samples_of_an_endpoint_that_is_gone_are_ignored(datastore: Datastore) -> None:
    datastore.apply(upserted())
    datastore.apply(EndpointRemoved(A))
    datastore.record(A, EndpointUpdate(waiting=1), in_flight=0)
    datastore.record_failure(A)
    datastore.apply(EndpointRemoved(A))

    assert datastore.endpoints() == ()
    assert datastore.endpoint(A) is None


@pytest.mark.parametrize(
    ("age", "stale"), [(0.5, False), (2.0, False), (2.1, True)], ids=["young", "just", "too old"]
)
def test_a_failure_makes_metrics_stale_only_once_they_are_too_old(
    datastore: Datastore, clock: Clock, *, age: float, stale: bool
) -> None:
    datastore.apply(upserted())
    datastore.record(A, EndpointUpdate(waiting=6), in_flight=0)
    clock.now += age
    datastore.record_failure(A)
    endpoint = datastore.endpoints()[0]

    assert (endpoint.stale, endpoint.metrics.waiting) == (stale, 6)


def test_a_sample_after_failures_makes_an_endpoint_fresh_again(
    datastore: Datastore, clock: Clock
) -> None:
    datastore.apply(upserted())
    datastore.record_failure(A)
    datastore.record(A, EndpointUpdate(waiting=6), in_flight=0)
    clock.now += 9
    datastore.record_failure(A)
    datastore.record_failure(A)
    was_stale = datastore.endpoints()[0].stale
    datastore.record(A, EndpointUpdate(waiting=2), in_flight=0)

    assert was_stale
    assert not datastore.endpoints()[0].stale


def test_the_pool_is_synced_once_everything_was_reported(datastore: Datastore) -> None:
    datastore.apply(upserted())
    before = datastore.synced
    datastore.apply(Synced())

    assert (before, datastore.synced) == (False, True)


async def test_those_who_wait_wake_for_endpoints_and_not_for_samples(
    datastore: Datastore,
) -> None:
    versions: list[int] = []

    async def follow() -> None:
        seen = datastore.version
        while True:
            seen = await datastore.wait_for_change(seen)
            versions.append(len(datastore.endpoints()))

    async with asyncio.TaskGroup() as group:
        task = group.create_task(follow())
        await asyncio.sleep(1)
        datastore.apply(upserted(A))
        await asyncio.sleep(1)
        datastore.record(A, EndpointUpdate(waiting=1), in_flight=0)
        datastore.record_failure(A)
        datastore.apply(upserted(A))
        await asyncio.sleep(1)
        datastore.apply(upserted(A, tier="other"))
        datastore.apply(upserted(B))
        await asyncio.sleep(1)
        datastore.apply(EndpointRemoved(A))
        await asyncio.sleep(1)
        task.cancel()

    assert versions == [1, 2, 1]


async def test_a_change_that_came_before_the_wait_is_not_missed(datastore: Datastore) -> None:
    seen = datastore.version
    datastore.apply(upserted())
    async with asyncio.timeout(1):
        version = await datastore.wait_for_change(seen)

    assert version == datastore.version
