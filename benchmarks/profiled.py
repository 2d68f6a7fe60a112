"""
A picker that is watched: `epp` as it is, and a count of where its CPU time goes.

The kernel interrupts it for each millisecond of CPU time that it used, and the innermost function
that belongs to a stage gets the sample. What runs in C counts for the function that called it: the
read of a socket for what is given the bytes, since nothing of Python runs before. Watching costs
next to nothing, unlike tracing each call, which makes small functions look dear.
"""

import contextlib
import signal
import sys
from collections import Counter
from pathlib import Path
from types import FrameType

import msgspec

SAMPLE_SECONDS = 0.001

STAGES = (
    ("epp/extproc/h2/door.py:data_received", "sockets and event loop, reading"),
    ("epp/extproc/h2/door.py", "sockets, writing"),
    ("epp/extproc/h2/", "HTTP/2 and gRPC frames"),
    ("epp/extproc/messages.py", "ext_proc messages"),
    ("epp/extproc/", "exchange"),
    ("grpc/", "grpc.aio"),
    ("epp/requestcontrol/understanding.py", "parsing the body"),
    ("epp_plugins/parsers/", "parsing the body"),
    ("epp_plugins/data_producers/", "producers: prefixes"),
    ("epp_plugins/scorers/", "scorers"),
    ("epp_plugins/", "other plugins"),
    ("epp/scheduling/", "scheduling"),
    ("epp/observability/logs.py", "the request's log line"),
    ("epp/observability/", "metrics"),
    ("prometheus_client/", "metrics"),
    ("epp/requestcontrol/", "director"),
    ("epp/datalayer/", "scrapes and state of endpoints"),
    ("aiohttp/", "scrapes and state of endpoints"),
)
"""What a function's place says about its stage; the first that fits."""

ELSEWHERE = "elsewhere"


def stage(path: str, function: str) -> str | None:
    """Return the stage of a function, None where its callers have to tell."""
    place = f"{path}:{function}"
    return next((name for part, name in STAGES if part in place), None)


class Sampler:
    """Counts samples by stage."""

    def __init__(self) -> None:
        self.stages: Counter[str] = Counter()
        self._known: dict[object, str | None] = {}

    def sample(self, _: int, frame: FrameType | None) -> None:
        """Note where the program is."""
        while frame is not None:
            code = frame.f_code
            if code not in self._known:
                self._known[code] = stage(code.co_filename, code.co_name)
            if (name := self._known[code]) is not None:
                self.stages[name] += 1
                return
            frame = frame.f_back
        self.stages[ELSEWHERE] += 1

    def write(self, path: Path) -> None:
        """Write what was counted since this was last called, and begin anew."""
        part = path.with_suffix(".part")
        part.write_bytes(msgspec.json.encode(self.stages))
        part.rename(path)
        self.stages.clear()


def main() -> None:
    """Run `epp` with the arguments after the first, which names the file for SIGUSR2 to write."""
    path = Path(sys.argv.pop(1))
    sampler = Sampler()
    signal.signal(signal.SIGPROF, sampler.sample)
    signal.signal(signal.SIGUSR2, lambda *_: sampler.write(path))
    signal.setitimer(signal.ITIMER_PROF, SAMPLE_SECONDS, SAMPLE_SECONDS)
    from epp.cli import main as epp

    with contextlib.suppress(KeyboardInterrupt):
        epp()


if __name__ == "__main__":
    main()
