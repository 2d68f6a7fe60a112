"""
The workloads: the requests that the benchmarks send, as bytes, and the names of what they measure.

Prompts of one workload share their first half, as requests with one system prompt do, and differ
in the second, so that the prefix index has both something to find and something to learn.
"""

import random
from dataclasses import dataclass

import msgspec

VARIANTS = 64
PATH = "/v1/completions"
TOKEN_SECONDS = 0.002
"""
The upstream's time for a token after the first: long enough that Envoy gets each chunk by itself.
"""

MODEL = "bench-model"

_WORDS = ("the", "river", "stone", "light", "under", "seven", "paper", "window", "slow", "north")
_TEXT = " ".join(random.Random(1).choices(_WORDS, k=20_000))


@dataclass(frozen=True, slots=True)
class Workload:
    """A kind of request: the size of its prompt, and how many tokens it wants, streamed or not."""

    name: str
    prompt_bytes: int
    tokens: int = 1
    stream: bool = False

    @property
    def seconds(self) -> float:
        """How long the upstream takes to answer it."""
        return (self.tokens - 1) * TOKEN_SECONDS

    def bodies(self, count: int = VARIANTS) -> list[bytes]:
        """Return so many different request bodies, the same in every run."""
        half = self.prompt_bytes // 2
        starts = random.Random(self.prompt_bytes).sample(range(half, len(_TEXT) - half), count)
        return [self._body(_TEXT[:half] + _TEXT[start : start + half]) for start in starts]

    def _body(self, prompt: str) -> bytes:
        # What the upstream looks for comes before the prompt.
        fields = {
            "model": MODEL,
            "stream": self.stream,
            "max_tokens": self.tokens,
            "prompt": prompt,
        }
        return msgspec.json.encode(fields)

    def requests(self) -> list[bytes]:
        """Return the same as whole HTTP requests."""
        return [http_request(body) for body in self.bodies()]


def http_request(body: bytes) -> bytes:
    """Return a POST of the body."""
    head = (
        f"POST {PATH} HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


SHORT = Workload("short", 2_400)
WORKLOADS = (
    Workload("tiny", 100),
    SHORT,
    Workload("long", 29_000),
    Workload("stream-100", 2_400, tokens=100, stream=True),
    Workload("stream-500", 2_400, tokens=500, stream=True),
)
HELD = Workload("held-500", 2_400, tokens=500)
"""
As long as the longer stream, but answered in one piece: what streaming costs is to be seen beside
it. Beside the short workload it is not, for a picker with little to do spends more on each request.
"""

REFERENCES = {"lean": "lean", "duplex": "full-duplex"}
"""The reference configuration of Envoy behind each mode: response bodies kept out, or let in."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """A workload through one mode of Envoy's ext_proc filter."""

    workload: Workload
    mode: str

    @property
    def name(self) -> str:
        """Its name on the command line and in the report."""
        return f"{self.workload.name}-{self.mode}"


SCENARIOS = (
    *(Scenario(workload, "lean") for workload in (*WORKLOADS, HELD)),
    *(Scenario(workload, "duplex") for workload in WORKLOADS),
)
