"""The pick alone: made of the shipped application, without an event loop."""

import pytest

from benchmarks import pick
from benchmarks.workloads import SHORT


@pytest.mark.parametrize("count", [3, 300])
def test_every_endpoint_has_fresh_metrics(count: int) -> None:
    endpoints = pick._app(count).datastore.endpoints()

    assert len({one.destination for one in endpoints}) == count
    assert not any(one.stale for one in endpoints)


def test_a_pick_is_measured_with_its_stages() -> None:
    pool = pick.Pool(5, SHORT, 2)
    pool.measure()
    pool.measure()
    result = pool.result()

    assert (result.endpoints, result.prompt) == (5, "short")
    assert set(result.stages_us) == {*pick.STAGES.values(), pick.ELSEWHERE}
    assert all(microseconds > 0 for microseconds in result.stages_us.values())
    assert 0 < result.best_us <= result.median_us


def test_the_loop_takes_microseconds() -> None:
    assert 1 < pick.loop_us() < 10_000


def test_no_request_is_left_in_flight() -> None:
    app = pick._app(3)
    pick.batch(app, [pick.RawRequest({":path": pick.PATH}, body) for body in SHORT.bodies(6)])

    assert [one.load.in_flight for one in app.datastore.endpoints()] == [0, 0, 0]
