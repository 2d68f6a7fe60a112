"""
The metrics page in Prometheus text format: series that cost nanoseconds to move and little to show.

A picker scrapes every model server many times a second, and the simulator may be many model servers
in one process. A page of the usual client library takes it milliseconds to write; this one takes a
fiftieth, because all that is constant in a line is written once, when its series is made, and a
series that has not moved since the last page is not written again.
"""

import time
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from itertools import accumulate

from prometheus_client.utils import floatToGoString

CONTENT_TYPE = "text/plain; version=1.0.0; charset=utf-8"

_INFINITY = float("inf")


def _labels(labels: Mapping[str, str]) -> str:
    def escape(value: str) -> str:
        return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")

    return ",".join(f'{name}="{escape(value)}"' for name, value in sorted(labels.items()))


def _number(value: float) -> str:
    """Return a number as a real server's page has it: large ones with an exponent."""
    if -1e6 < value < 1e6:
        return repr(float(value))
    return str(floatToGoString(value))  # type: ignore[no-untyped-call]  # that module has no types


class Value:
    """A gauge or a counter: assign to its value, or add to it."""

    __slots__ = ("_line", "_text", "_written", "value")

    def __init__(self, name: str, labels: Mapping[str, str]) -> None:
        self._line = f"{name}{{{_labels(labels)}}} "
        self._text = ""
        self._written: float | None = None
        self.value = 0.0

    def text(self) -> str:
        """Return the line of this series, without its end."""
        if self.value != self._written:
            self._written = self.value
            self._text = self._line + _number(self.value)
        return self._text


class Histogram:
    """How often which values were seen, in buckets."""

    __slots__ = ("_bounds", "_count_line", "_counts", "_lines", "_sum", "_sum_line", "_text")

    def __init__(self, name: str, labels: Mapping[str, str], bounds: Sequence[float]) -> None:
        self._bounds = [*bounds, _INFINITY]
        self._counts = [0] * len(self._bounds)
        self._sum = 0.0
        self._text = ""
        self._lines = [
            f"{name}_bucket{{{_labels({**labels, 'le': _number(bound)})}}} "
            for bound in self._bounds
        ]
        self._count_line = f"{name}_count{{{_labels(labels)}}} "
        self._sum_line = f"{name}_sum{{{_labels(labels)}}} "

    def observe(self, value: float) -> None:
        """Count a value in its bucket: the first whose bound it does not exceed."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value
        self._text = ""

    def text(self) -> str:
        """Return the lines of this series, without the end of the last."""
        if not self._text:
            seen = list(accumulate(self._counts))
            buckets = [line + _number(n) for line, n in zip(self._lines, seen, strict=True)]
            count, total = _number(seen[-1]), _number(self._sum)
            self._text = "\n".join([*buckets, self._count_line + count, self._sum_line + total])
        return self._text


class _Family:
    """All series of one name, between what the format wants before and after them."""

    def __init__(self, name: str, kind: str, help_text: str) -> None:
        self.head = f"# HELP {name} {help_text}\n# TYPE {name} {kind}"
        self.series: list[Value | Histogram] = []
        self.created = ""
        stem = name.removesuffix("_total") if kind == "counter" else name
        self._created_name = f"{stem}_created"
        self._help_text = help_text

    def add_created(self, labels: Mapping[str, str], when: float) -> None:
        """Say when a series began, in the gauge that goes with each counter and histogram."""
        if not self.created:
            name = self._created_name
            self.created = f"# HELP {name} {self._help_text}\n# TYPE {name} gauge"
        self.created += f"\n{self._created_name}{{{_labels(labels)}}} {_number(when)}"


class Page:
    """All families of one server, in the order in which they were made."""

    def __init__(self) -> None:
        self._families: dict[str, _Family] = {}
        self._began = time.time()

    def announce(self, name: str, kind: str, help_text: str) -> None:
        """Make a family that has no series yet: its name is on the page all the same."""
        self._family(name, kind, help_text)

    def gauge(self, name: str, help_text: str, labels: Mapping[str, str]) -> Value:
        """Make a gauge; of one family are those of the same name."""
        series = Value(name, labels)
        self._family(name, "gauge", help_text).series.append(series)
        return series

    def counter(self, name: str, help_text: str, labels: Mapping[str, str]) -> Value:
        """Make a counter; its name ends in _total."""
        series = Value(name, labels)
        family = self._family(name, "counter", help_text)
        family.series.append(series)
        family.add_created(labels, self._began)
        return series

    def histogram(
        self, name: str, help_text: str, labels: Mapping[str, str], bounds: Sequence[float]
    ) -> Histogram:
        """Make a histogram with these upper bounds and one that is infinite."""
        series = Histogram(name, labels, bounds)
        family = self._family(name, "histogram", help_text)
        family.series.append(series)
        family.add_created(labels, self._began)
        return series

    def render(self) -> bytes:
        """Return the page."""
        parts: list[str] = []
        for family in self._families.values():
            parts.append(family.head)
            parts += [series.text() for series in family.series]
            if family.created:
                parts.append(family.created)
        parts.append("")
        return "\n".join(parts).encode()

    def _family(self, name: str, kind: str, help_text: str) -> _Family:
        return self._families.setdefault(name, _Family(name, kind, help_text))
