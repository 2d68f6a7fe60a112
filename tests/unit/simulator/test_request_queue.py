from dataclasses import dataclass

from epp.simulator.request_queue import RequestQueue


@dataclass(frozen=True)
class Entry:
    id: str


def queue_of(ids: str) -> RequestQueue[Entry]:
    queue: RequestQueue[Entry] = RequestQueue()
    for one in ids:
        queue.add(Entry(one))
    return queue


def order(queue: RequestQueue[Entry]) -> str:
    return "".join(entry.id for entry in queue)


def test_who_came_first_leaves_first():
    queue = queue_of("abc")

    assert [queue.pop().id, queue.pop().id, queue.pop().id] == ["a", "b", "c"]


def test_who_is_put_back_stands_before_all_others_in_the_old_order():
    queue = queue_of("abcd")

    queue.put_back([queue.pop(), queue.pop()])

    assert order(queue) == "abcd"


def test_an_entry_leaves_from_wherever_it_stands():
    queue = queue_of("abc")

    assert queue.remove("b") == Entry("b")
    assert order(queue) == "ac"


def test_what_does_not_wait_cannot_be_removed():
    queue = queue_of("a")

    assert queue.remove("x") is None
    assert len(queue) == 1
