"""The fuzzer's own ground: what it mutates is valid, and a few of its cases are run each time."""

import asyncio
from pathlib import Path
from random import Random

import pytest

from epp.extproc.h2 import frames
from fuzz import conversations
from fuzz.conversations import Composer, Frame
from fuzz.lean_door import Case, Loop, Picker, Run


def violations(made: list[Frame]) -> dict[str, int]:
    """Return what a connection does wrong, by error code; fails where it leaves anything behind."""

    async def run(loop: Loop) -> dict[str, int]:
        data = frames.PREFACE + b"".join(one.encoded() for one in made)
        case = Case(Picker(None), data, Calm(), loop)
        await case.run()
        return dict(case.violations)

    with asyncio.Runner(loop_factory=Loop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, Loop)
        return runner.run(run(loop))


class Calm(Random):
    """Chance that lets nothing happen but the connection, served by the usual limits."""

    def __init__(self) -> None:
        super().__init__(1)

    def random(self) -> float:
        return 0.99

    def randrange(self, *_: object) -> int:
        return 0

    def choice(self, options: object) -> object:  # type: ignore[override]
        return options[0]  # type: ignore[index]


@pytest.mark.parametrize("at", range(3), ids=["envoy-full-duplex", "envoy-lean", "grpcio"])
def test_recorded_connections_break_no_rule(at: int) -> None:
    assert violations(conversations.recorded()[at]) == {}


def test_connections_made_up_break_no_rule() -> None:
    found = [violations(Composer(Random(seed)).connection()) for seed in range(20)]

    assert found == [{}] * 20


def test_two_hundred_cases_leave_nothing_behind(tmp_path: Path) -> None:
    async def run() -> int:
        cases = Run(seed=11, seconds=0, folder=tmp_path)
        for number in range(200):
            await cases.one(number)
        return cases.done

    with asyncio.Runner(loop_factory=Loop) as runner:
        assert runner.run(run()) == 200
