"""Queues brought up to date by the changes of load, and not made anew."""

from dataclasses import replace
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from epp.framework import Endpoint, EndpointLoad, EndpointView, LoadChanges
from epp.framework.endpoint import KEPT_CHANGES
from epp.testing import endpoint


def pool(count: int, changes: LoadChanges) -> tuple[Endpoint, ...]:
    return tuple(
        replace(endpoint(str(at), waiting=at % 4), load=EndpointLoad(changes))
        for at in range(count)
    )


def plain(rows: tuple[Endpoint, ...]) -> list[float]:
    return [one.queue for one in rows]


@given(st.lists(st.tuples(st.integers(0, 4), st.sampled_from([-1, 1, 2])), max_size=40))
def test_a_view_shows_the_queues_as_they_are_when_it_is_asked(
    sent: list[tuple[int, int]],
) -> None:
    rows = pool(5, LoadChanges())
    view = EndpointView(rows)
    for at, more in sent:
        rows[at].load.in_flight += more
        view = view.over(rows)

        assert list(view.queue) == plain(rows)


def test_a_column_that_was_handed_out_stays_as_it_was() -> None:
    rows = pool(3, LoadChanges())
    first = EndpointView(rows)
    before = first.queue
    shown = list(before)

    rows[1].load.in_flight += 5
    after = first.over(rows).queue

    assert list(before) == shown
    assert list(after) == plain(rows)


def test_a_column_is_the_same_while_nothing_was_sent() -> None:
    rows = pool(3, LoadChanges())
    view = EndpointView(rows)

    assert view.over(rows).queue is view.queue


def test_a_reader_that_comes_late_starts_afresh() -> None:
    changes = LoadChanges()
    rows = pool(3, changes)
    view = EndpointView(rows)
    assert list(view.queue) == plain(rows)
    random = Random(0)
    for _ in range(3 * KEPT_CHANGES):
        rows[random.randrange(3)].load.in_flight += 1

    assert changes.since(0) is None
    assert list(view.over(rows).queue) == plain(rows)


def test_endpoints_of_several_pools_in_one_view_are_counted_too() -> None:
    rows = (*pool(1, LoadChanges()), *pool(1, LoadChanges()))
    view = EndpointView(rows)
    assert list(view.queue) == plain(rows)

    rows[1].load.in_flight += 3

    assert list(view.over(rows).queue) == plain(rows)


@given(st.lists(st.tuples(st.integers(0, 4), st.sampled_from([-1, 1, 2])), max_size=20))
def test_running_requests_are_corrected_likewise(sent: list[tuple[int, int]]) -> None:
    rows = tuple(
        replace(one, metrics=replace(one.metrics, running=at))
        for at, one in enumerate(pool(5, LoadChanges()))
    )
    view = EndpointView(rows)
    for at, more in sent:
        rows[at].load.in_flight += more
        view = view.over(rows)

        assert list(view.running) == [one.running for one in rows]
