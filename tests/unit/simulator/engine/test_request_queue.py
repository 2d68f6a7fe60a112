from collections.abc import Callable

import pytest

from epp.simulator.engine.policies import PriorityPolicy, Rank
from epp.simulator.engine.request import ActiveRequest
from epp.simulator.engine.request_queue import ArrivalQueue, RankedQueue, RequestQueue
from support.engines import request


def active(name: str, priority: int = 0, arrival: float = 0.0) -> ActiveRequest:
    return ActiveRequest(request(name, priority=priority, arrival=arrival), 256)


def order(queue: RequestQueue) -> str:
    return "".join(one.id for one in queue)


def by_priority() -> RankedQueue:
    return RankedQueue(PriorityPolicy().rank, dynamic=False)


def test_who_came_first_stands_first():
    queue = ArrivalQueue()
    for name in "abc":
        queue.add(active(name), 0)

    assert order(queue) == "abc"


def test_who_had_a_seat_stands_before_all_others():
    queue = ArrivalQueue()
    queue.add(active("a"), 0)
    queue.add(active("b"), 0)

    queue.put_back(active("c"), 0)

    assert order(queue) == "cab"


def test_priority_comes_first_then_arrival_then_id():
    queue = by_priority()
    for one in (active("d", 1, 0), active("c", 0, 2), active("b", 0, 1), active("a", 0, 1)):
        queue.add(one, 0)

    assert order(queue) == "abcd"


def test_under_priority_who_had_a_seat_stands_where_its_priority_puts_it():
    queue = by_priority()
    queue.add(active("a", 0), 0)

    queue.put_back(active("b", 5), 0)

    assert order(queue) == "ab"


def test_ranks_that_change_with_time_are_brought_up_to_date():
    def overdue_first(request: ActiveRequest, now: float) -> Rank:
        return Rank(request.priority if now < request.arrival + 50 else -1, request.arrival)

    queue = RankedQueue(overdue_first, dynamic=True)
    queue.add(active("old", 5, arrival=0), 0)
    queue.add(active("young", 0, arrival=45), 45)
    before = order(queue)

    queue.refresh(60)

    assert (before, order(queue)) == ("youngold", "oldyoung")


@pytest.mark.parametrize("make", [ArrivalQueue, by_priority])
def test_a_request_leaves_from_wherever_it_stands(make: Callable[[], RequestQueue]):
    queue = make()
    waiting = [active(name) for name in "abc"]
    for one in waiting:
        queue.add(one, 0)

    assert queue.remove("b") is waiting[1]
    assert order(queue) == "ac"


@pytest.mark.parametrize("make", [ArrivalQueue, by_priority])
def test_what_does_not_wait_cannot_be_removed(make: Callable[[], RequestQueue]):
    queue = make()
    queue.add(active("a"), 0)

    assert queue.remove("x") is None
    assert len(queue) == 1
