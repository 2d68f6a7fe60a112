"""What the demo needs, and how it ends when it is told to."""

import asyncio
import os
import signal

import pytest

from epp.demo import load, processes, show
from epp.demo.ledger import Ledger
from epp.demo.load import Outcome


def nothing(_: str) -> None:
    """Finds nothing."""


def test_without_rich_it_says_so() -> None:
    assert show.missing_piece(find_module=nothing) == "there is no rich here to draw tables with"


def test_without_envoy_it_says_so() -> None:
    assert show.missing_piece(find_command=nothing) == "there is no Envoy here"


def test_with_both_there_is_nothing_missing() -> None:
    assert show.missing_piece() == ""


@pytest.mark.parametrize("number", show._STOPS, ids=lambda number: number.name)
async def test_a_signal_ends_what_is_under_way_and_nothing_else(number: signal.Signals) -> None:
    ended = []
    with show._until_signalled():
        try:
            os.kill(os.getpid(), number)
            await asyncio.Future()
        finally:
            ended.append("inside")
    await asyncio.sleep(0)

    assert ended == ["inside"]


async def test_a_second_signal_does_not_cut_the_stop_short() -> None:
    stopped = []
    with show._until_signalled():
        try:
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.Future()
        finally:
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.sleep(0.1)
            stopped.append(True)

    assert stopped == [True]


async def test_cancelling_from_elsewhere_goes_on_as_cancelling() -> None:
    async def work() -> None:
        with show._until_signalled():
            await asyncio.Future()

    task = asyncio.create_task(work(), name="work")
    await asyncio.sleep(0)
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task


def test_an_errors_group_is_told_by_its_first() -> None:
    died = processes.ProcessFailed("sim-1 ended (1)")

    assert show._first(ExceptionGroup("", [ExceptionGroup("", [died])])) is died


def test_failed_requests_are_named_by_how_they_failed_the_most_frequent_first() -> None:
    ledger = Ledger(["sim-1"])
    errors = ["", "HTTP 429", "HTTP 503", "HTTP 503"]
    for request, error in zip(load.plan(1, 0.0), errors, strict=False):
        ledger.note_sent(request)
        ledger.note_end(Outcome(request, error, 0.1))

    assert show.failure(ledger, "out of endpoints") == (
        "3 of 4 requests failed: HTTP 503 (2), HTTP 429 (1); the picker's last words:\n"
        "out of endpoints"
    )
