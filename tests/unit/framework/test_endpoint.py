"""Endpoints and views: corrected queues, and what stands for the unknown."""

import pytest

from epp.framework import EndpointView
from epp.testing import endpoint


@pytest.mark.parametrize(
    ("address", "expected"),
    [("10.0.0.1", "10.0.0.1:8000"), ("fd00::1", "[fd00::1]:8000"), ("host", "host:8000")],
)
def test_the_destination_brackets_ipv6(address: str, expected: str) -> None:
    assert expected == endpoint(address=address).destination


@pytest.mark.parametrize(
    ("waiting", "at_update", "now", "expected"),
    [(3, 0, 0, 3), (3, 2, 5, 6), (3, 5, 2, 0), (0, 9, 0, 0)],
    ids=["as-scraped", "sent-since", "ended-since", "never-negative"],
)
def test_the_queue_is_corrected_by_our_own_requests(
    waiting: int, at_update: int, now: int, expected: int
) -> None:
    one = endpoint(waiting=waiting, in_flight=now, in_flight_at_update=at_update)

    assert expected == one.queue
    assert [expected] == list(EndpointView([one]).queue)


def test_the_mean_of_the_known_stands_for_the_stale() -> None:
    view = EndpointView(
        [
            endpoint("a", waiting=2, running=4, kv_usage=0.2),
            endpoint("b", stale=True, waiting=99, running=99, kv_usage=0.9),
            endpoint("c", waiting=4, running=0, kv_usage=0.4),
        ]
    )

    assert list(view.stale) == [1]
    assert list(view.queue) == [2, 3, 4]
    assert list(view.running) == [4, 2, 0]
    assert [0.2, pytest.approx(0.3), 0.4] == list(view.kv_usage)


def test_our_own_requests_count_on_a_stale_endpoint_too() -> None:
    view = EndpointView([endpoint("a", waiting=2), endpoint("b", stale=True, in_flight=7)])

    assert list(view.queue) == [2, 9]


def test_where_nothing_is_known_all_are_equal() -> None:
    view = EndpointView([endpoint("a", stale=True, waiting=5), endpoint("b", stale=True)])

    assert list(view.queue) == [0, 0]
    assert list(view.kv_usage) == [0, 0]


def test_a_view_is_a_sequence_of_its_rows() -> None:
    rows = [endpoint("a"), endpoint("b")]
    view = EndpointView(rows)

    assert (len(view), view[0], view[-1], list(view)) == (2, rows[0], rows[1], rows)
    assert view[:1] == (rows[0],)


def test_columns_are_computed_once() -> None:
    view = EndpointView([endpoint("a")])

    assert view.queue is view.queue
    assert view.running is view.running
    assert view.kv_usage is view.kv_usage


def test_running_and_the_name_can_be_read() -> None:
    one = endpoint("a", running=3)

    assert (one.running, str(one.id)) == (3, "default/a")


def test_a_view_over_the_same_rows_keeps_what_was_scraped_and_counts_anew() -> None:
    first = EndpointView((endpoint("a", waiting=1), endpoint("b", waiting=2)))
    kv_usage, queue = first.kv_usage, list(first.queue)
    first[0].load.in_flight += 5

    again = first.over(first.rows)
    other = first.over([first[1]])

    assert again.kv_usage is kv_usage
    assert (queue, list(again.queue)) == ([1, 2], [6, 2])
    assert list(other.queue) == [2]


def test_it_is_known_whether_anybody_speaks_of_adapters() -> None:
    assert not EndpointView([endpoint("a")]).reports_adapters
    assert EndpointView([endpoint("a"), endpoint("b", max_adapters=4)]).reports_adapters


@pytest.mark.parametrize(
    ("missing", "queue", "kv_usage"),
    [
        ("waiting", [5, 5, 5], [0.5, 0.5, 0]),
        ("kv_usage", [5, 5, 0], [0.5, 0.5, 0.5]),
        ("running", [5, 5, 0], [0.5, 0.5, 0]),
    ],
)
def test_a_signal_that_a_page_lacks_is_the_mean_and_the_others_are_read(
    missing: str, queue: list[float], kv_usage: list[float]
) -> None:
    view = EndpointView(
        [
            endpoint("a", waiting=5, running=8, kv_usage=0.5),
            endpoint("b", waiting=5, running=8, kv_usage=0.5),
            endpoint("c", missing=frozenset({missing})),
        ]
    )

    assert (list(view.queue), list(view.kv_usage)) == (queue, kv_usage)
    assert list(view.running) == ([8, 8, 8] if missing == "running" else [8, 8, 0])
