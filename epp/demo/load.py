"""
The load: who asks what, in an order that depends on the seed alone, and what came of it.

Most requests share their system prompt with others, as those of one application do; every such
prompt belongs to one model and one API, so that it can be cached at all. About half of the requests
are streams, and now and then somebody lists the models. A few users take requests from one plan,
each waiting for its answer and then a little longer.
"""

import asyncio
import itertools
import json
import random
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import aiohttp

BASE_MODEL = "demo-model"
ADAPTERS = ("sql-lora", "chat-lora")

USERS = 12
TIMEOUT_SECONDS = 30.0
_SYSTEM_PROMPT_RULES = 60

Kind = Literal["chat", "text", "models"]

PATHS: Mapping[Kind, str] = {
    "chat": "/v1/chat/completions",
    "text": "/v1/completions",
    "models": "/v1/models",
}


@dataclass(frozen=True, slots=True)
class Group:
    """Requests with one system prompt; without a name they share none."""

    name: str
    kind: Kind
    model: str
    weight: int


GROUPS = (
    Group("help desk", "chat", BASE_MODEL, 4),
    Group("travel", "chat", "chat-lora", 4),
    Group("review", "chat", BASE_MODEL, 3),
    Group("shop", "text", "sql-lora", 4),
    Group("sensors", "text", "sql-lora", 2),
    Group("summaries", "text", BASE_MODEL, 3),
    Group("", "chat", BASE_MODEL, 2),
    Group("", "text", "sql-lora", 1),
    Group("", "models", "", 1),
)


@dataclass(frozen=True, slots=True)
class Planned:
    """A request to send; its sender then pauses."""

    id: str
    group: Group
    stream: bool
    body: Mapping[str, Any] | None
    pause_seconds: float


@dataclass(frozen=True, slots=True)
class Outcome:
    """
    What came of a request: `error` is "" where it was answered whole.

    `first_token_seconds` is known of streams; tokens are as the model server counted them.
    """

    planned: Planned
    error: str
    seconds: float
    first_token_seconds: float | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0


def plan(seed: int, pause_seconds: float) -> Iterator[Planned]:
    """Yield requests without end, with such pauses on average; equal seeds give equal requests."""
    rng = random.Random(seed)
    weights = [group.weight for group in GROUPS]
    for number in itertools.count(1):
        group = rng.choices(GROUPS, weights)[0]
        stream = group.kind != "models" and rng.random() < 0.5
        yield Planned(
            f"demo-{seed}-{number:05}",
            group,
            stream,
            _body(group, rng, stream=stream) if group.kind != "models" else None,
            pause_seconds * min(rng.expovariate(1), 4),
        )


def _body(group: Group, rng: random.Random, *, stream: bool) -> dict[str, Any]:
    question = _question(rng)
    body: dict[str, Any] = {"model": group.model, "max_tokens": rng.randint(16, 64)}
    if group.kind == "chat":
        turns = [{"role": "user", "content": question}]
        if group.name:
            turns.insert(0, {"role": "system", "content": system_prompt(group.name)})
        body["messages"] = turns
    else:
        body["prompt"] = f"{system_prompt(group.name)}\n{question}" if group.name else question
    if stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    return body


def system_prompt(name: str) -> str:
    """Return a group's system prompt, about a thousand tokens long."""
    rules = itertools.cycle(
        (
            "answer in the language of the question, and in few sentences",
            "say so where the question leaves something open",
            "name the source of every number",
            "leave out what nobody asked for",
            "keep to the order of the question's parts",
            "give times in UTC and amounts with their unit",
        )
    )
    lines = [f"You are the assistant for: {name}. These are your rules."]
    lines += [f"{n}. In {name}, {next(rules)}." for n in range(1, _SYSTEM_PROMPT_RULES + 1)]
    return "\n".join(lines)


def _question(rng: random.Random) -> str:
    words = ("which", "items", "of", "last", "week", "came", "late", "and", "why", "in", "what")
    return " ".join(rng.choices(words, k=rng.randint(20, 80))) + "?"


async def run(
    session: aiohttp.ClientSession,
    url: str,
    requests: Iterator[Planned],
    *,
    on_sent: Callable[[Planned], None],
    on_end: Callable[[Outcome], None],
    seconds: float | None = None,
) -> None:
    """
    Send the requests until there are no more, or no new ones after so many seconds.

    Returns when the last one is answered.
    """
    loop = asyncio.get_running_loop()
    deadline = None if seconds is None else loop.time() + seconds

    async def user() -> None:
        for planned in requests:
            on_sent(planned)
            on_end(await send(session, url, planned))
            pause = planned.pause_seconds
            if deadline is not None and loop.time() + pause >= deadline:
                return
            await asyncio.sleep(pause)

    async with asyncio.TaskGroup() as group:
        for number in range(USERS):
            group.create_task(user(), name=f"user {number}")


async def send(
    session: aiohttp.ClientSession,
    url: str,
    planned: Planned,
    *,
    timeout_seconds: float = TIMEOUT_SECONDS,
) -> Outcome:
    """Send one request and read its answer to the end; what fails is in the outcome."""
    loop = asyncio.get_running_loop()
    started = loop.time()
    reading = _Reading(started)
    try:
        async with asyncio.timeout(timeout_seconds):
            await _exchange(session, url, planned, reading)
    except TimeoutError:
        reading.error = f"no answer within {timeout_seconds:g} s"
    except aiohttp.ClientError as error:
        reading.error = type(error).__name__
    return Outcome(
        planned,
        reading.error,
        loop.time() - started,
        reading.first_token_seconds,
        reading.prompt_tokens,
        reading.cached_tokens,
    )


@dataclass(slots=True)
class _Reading:
    """What has been read of an answer so far."""

    started: float
    error: str = ""
    first_token_seconds: float | None = None
    prompt_tokens: int = 0
    cached_tokens: int = 0

    def take_usage(self, document: bytes) -> None:
        """Note the token counts of a whole answer, or of the last event of a stream."""
        usage = json.loads(document).get("usage") or {}
        self.prompt_tokens = usage.get("prompt_tokens", 0)
        self.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0


async def _exchange(
    session: aiohttp.ClientSession, url: str, planned: Planned, reading: _Reading
) -> None:
    path = PATHS[planned.group.kind]
    headers = {"x-request-id": planned.id}
    method = "GET" if planned.body is None else "POST"
    async with session.request(method, url + path, json=planned.body, headers=headers) as response:
        if response.status != 200:
            reading.error = f"HTTP {response.status}"
        elif planned.stream:
            await _read_stream(_events(response), reading)
        else:
            reading.take_usage(await response.read())


async def _read_stream(events: AsyncIterator[bytes], reading: _Reading) -> None:
    loop = asyncio.get_running_loop()
    last = b""
    async for event in events:
        if reading.first_token_seconds is None:
            reading.first_token_seconds = loop.time() - reading.started
        if event == b"[DONE]":
            reading.take_usage(last)
            return
        last = event
    reading.error = "a stream ended early"


async def _events(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    async for line in response.content:
        if line.startswith(b"data:"):
            yield line.removeprefix(b"data:").strip()
