"""
Types of options: what a value of `vllm-sim serve` may be.

Whatever gets past here can be computed with: numbers are finite and of a size that memory and
timers know, texts can be written into answers.
"""

import math
from typing import Any

import click

from epp.simulator.engine import ClassLimit
from epp.simulator.kv_events import KVEventsConfig

_LARGEST = 2**31 - 1
_LONGEST = 1e9
_MOST_BLOCKS = 10_000_000
"""Some 1.3 GB of bookkeeping, and 6 s to set it up."""
_MOST_ENGINES = 256


class _Whole(click.IntRange):
    """A whole number of 32 bits, which goes without saying in the help."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        number: int = super().convert(value, param, ctx)
        if number > _LARGEST:
            self.fail(f"{number} is more than {_LARGEST}.", param, ctx)
        return number


class _Finite(click.FloatRange):
    """A number that is one, and no more than a billion; likewise."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number) or number > _LONGEST:
            self.fail(f"{value!r} is no number up to {_LONGEST:,.0f}.", param, ctx)
        return number


class _Text(click.ParamType[str]):
    """A text that is not empty."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value)
        if not text:
            self.fail("it must not be empty.", param, ctx)
        try:
            text.encode()
        except UnicodeEncodeError:
            self.fail(f"{text!r} is no UTF-8.", param, ctx)
        return text


class _ClassLimit(click.ParamType[ClassLimit]):
    """Two numbers with a colon between them."""

    name = "class limit"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> ClassLimit:
        priority, _, running = str(value).partition(":")
        try:
            return ClassLimit(int(priority), int(running))
        except ValueError:
            self.fail(f"{value!r} is not of the form PRIORITY:RUNNING", param, ctx)


class _KVEvents(click.ParamType[KVEventsConfig]):
    """A configuration in vLLM's form."""

    name = "JSON"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> KVEventsConfig:
        if isinstance(value, KVEventsConfig):
            return value
        try:
            return KVEventsConfig.parse(value)
        except ValueError as error:
            self.fail(str(error).removeprefix("--kv-events-config: "), param, ctx)


COUNT = _Whole(min=1)
NATURAL = _Whole(min=0)
BLOCKS = click.IntRange(min=2, max=_MOST_BLOCKS)
ENGINES = click.IntRange(min=1, max=_MOST_ENGINES)
PORT = click.IntRange(min=0, max=65535)
STATUS = click.IntRange(min=400, max=599)
DURATION = _Finite(min=0)
POSITIVE = _Finite(min=0, min_open=True)
FACTOR = _Finite(min=0, min_open=True, max=1e6)
SHARE = _Finite(min=0, max=1)
TEXT = _Text()
CLASS_LIMIT = _ClassLimit()
KV_EVENTS = _KVEvents()
