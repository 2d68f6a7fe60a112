"""
Flags: kinds of values that the command line takes, and how a flag gets its variable.
"""

import re
from collections.abc import Callable
from typing import Any

import click

_DURATION = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ms|s|m|h|us|µs|ns)?")
_SECONDS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_SIZE = re.compile(r"(\d+)\s*([kKMG]i?)?B?")
_BYTES = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9}
_BYTES |= {"ki": 2**10, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}


MAX_SIZE = 1 << 30


class Duration(click.ParamType[float]):
    """A time as Go writes it (`1m30s`, `200ms`), or a number of seconds."""

    name = "duration"

    def __init__(self, least: float = 0.0) -> None:
        self._least = least

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        """Return seconds."""
        if isinstance(value, int | float):
            return float(value)
        parts = _DURATION.findall(value)
        bare = len(parts) > 1 and any(not unit for _, unit in parts)
        if not parts or bare or "".join(number + unit for number, unit in parts) != value:
            self.fail(f"{value!r} is no duration such as 30s, 200ms or 1m30s", param, ctx)
        seconds = sum(float(number) * _SECONDS[unit or "s"] for number, unit in parts)
        if seconds < self._least:
            self.fail(f"{value!r} is too short: at least {self._least:g} s", param, ctx)
        return seconds


class Size(click.ParamType[int]):
    """A number of bytes, with the suffixes k, M, G, Ki, Mi, Gi."""

    name = "size"

    def convert(self, value: Any, param: Any, ctx: Any) -> int:
        """Return bytes."""
        if isinstance(value, int):
            return value
        match = _SIZE.fullmatch(value)
        if match is None:
            self.fail(f"{value!r} is no size such as 1048576, 10Mi or 25MB", param, ctx)
        size = int(match[1]) * _BYTES[match[2] or ""]
        if not 1 <= size <= MAX_SIZE:
            self.fail(f"{value!r} is not between 1 byte and 1 GiB", param, ctx)
        return size


class Verbosity(click.IntRange):
    """A number that may follow `-v` directly, with a blank or with `=`."""

    name = "level"

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        """Return the number."""
        return super().convert(str(value).removeprefix("="), param, ctx)  # type: ignore[arg-type]


def option(*names: str, **settings: Any) -> Callable[[Any], Any]:
    """An option with its EPP_ variable."""
    longest = max((name for name in names if name.startswith("-")), key=len).lstrip("-")
    variable = "EPP_" + longest.upper().replace("-", "_")
    settings.setdefault("show_default", True)
    return click.option(*names, envvar=variable, show_envvar=True, **settings)


def switch(name: str, **settings: Any) -> Callable[[Any], Any]:
    """A boolean as Go's flags are: `--name`, `--name=true`, `--name=false`."""
    return option(name, type=bool, is_flag=False, flag_value=True, **settings)
