"""The sampler says where a program is, by the innermost function that belongs to a stage."""

import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from benchmarks import profiled
from benchmarks.profiled import ELSEWHERE, Sampler
from epp.extproc.exchange import Exchange
from support import wire


@pytest.mark.parametrize(
    ("path", "function", "stage"),
    [
        ("/x/epp/extproc/h2/door.py", "data_received", "sockets and event loop, reading"),
        ("/x/epp/extproc/h2/door.py", "_flush", "sockets, writing"),
        ("/x/epp/extproc/h2/call.py", "send", "HTTP/2 and gRPC frames"),
        ("/x/epp/extproc/exchange.py", "receive", "exchange"),
        ("/x/plugins/epp_plugins/scorers/queue_depth.py", "score", "scorers"),
        ("/usr/lib/python3.11/json/decoder.py", "decode", None),
    ],
)
def test_a_function_has_the_stage_of_its_place(path: str, function: str, stage: str | None) -> None:
    assert profiled.stage(path, function) == stage


def test_what_is_called_from_a_stage_counts_for_it(tmp_path: Path) -> None:
    sampler = Sampler()

    class Watched(Exchange):
        def _whole(self, body: bytes | None) -> Any:
            sampler.sample(0, sys._getframe())
            return super()._whole(body)

    Watched(max_body_bytes=100).receive(wire.headers(end=True))
    sampler.sample(0, None)
    sampler.write(tmp_path / "profile.json")

    written = msgspec.json.decode((tmp_path / "profile.json").read_bytes())
    assert written == {"exchange": 1, ELSEWHERE: 1}
    assert not sampler.stages
