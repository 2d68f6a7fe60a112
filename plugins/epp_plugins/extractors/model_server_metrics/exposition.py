"""
Expositions: the few wanted samples of a page in the Prometheus text format.

A page of a model server is tens of kilobytes of histograms around five gauges, and it is read
several times a second for every endpoint. So nothing here parses a page: one regular expression
jumps from line to line, looks for the wanted names at line starts, and only those lines are read.
A 62 kB page takes some 75 microseconds that way, where a full parser takes 6,600.

Lines may come in any order and with any spacing between their parts. A line that cannot be read is
a sample whose value is NaN, so that whoever reads it can count it.

Whoever scans holds up the event loop meanwhile, so a page may not be arbitrarily laborious: where a
wanted family has more series, or its labels are longer, than any model server writes, the scan
stops there with a ScrapeError.
"""

import functools
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from epp.framework import ScrapeError

MOST_SERIES = 1024
"""The series of a family: one an engine, or a model, behind the port. Reading them costs 3 ms."""

MOST_PAST_SERIES = 16_384
"""The series of a family that keeps past ones. Looking through them costs 25 ms."""

MOST_LABEL_BYTES = 256 << 10
"""The labels on a page that may have to be read, which costs up to 35 ms."""

NO_TIMESTAMP = -math.inf

_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_SELECTOR = re.compile(rf"\s*({_NAME})\s*(?:\{{(.*)\}})?\s*")
_MATCHER = re.compile(
    r'\s*([a-zA-Z_][a-zA-Z0-9_]*+)\s*=\s*(?:"((?:[^"\\]|\\.)*+)"|([^",{}\s]++))\s*(?:,|\Z)'
)
_LABEL = rb'[ \t]*+([a-zA-Z_][a-zA-Z0-9_]*+)[ \t]*+=[ \t]*+"((?:[^"\\]++|\\.)*+)"[ \t]*+(?:,|\Z)'
_ONE_LABEL = re.compile(_LABEL)
_ALL_LABELS = re.compile(rb"(?:%s)*+[ \t]*+" % _LABEL)
_ESCAPE = re.compile(r"\\(.)")

# Labels repeat from scrape to scrape, so what was read is remembered; the bounds keep an odd page
# from filling the memory.
_REMEMBERED_LABELS = 1024
_REMEMBERED_BYTES = 4096

_Labels = Mapping[str, str]


class Sample(NamedTuple):
    """
    One line: its labels (None where the line is malformed), its value and its timestamp.

    The value is NaN where it could not be read; the timestamp is minus infinity where there is
    none, so that a sample with a timestamp counts as newer than one without.
    """

    labels: _Labels | None
    value: float
    timestamp: float = NO_TIMESTAMP


# A wanted line as found, in bytes: labels, value, timestamp, and what should not be there.
_Row = tuple[bytes, bytes, bytes, bytes]


@dataclass(frozen=True, slots=True)
class Selector:
    """The name of a family, and the labels that its samples must have among others."""

    name: str
    labels: tuple[tuple[str, str], ...] = ()

    @classmethod
    def parse(cls, text: str) -> "Selector":
        """Read `name` or `name{label=value,...}`, values in quotes or not; or raise ValueError."""
        found = _SELECTOR.fullmatch(text)
        if found is None:
            message = f"expected `name` or `name{{label=value,...}}`, got {text!r}"
            raise ValueError(message)
        labels: list[tuple[str, str]] = []
        matchers = (found[2] or "").rstrip()
        at = 0
        while at < len(matchers):
            matcher = _MATCHER.match(matchers, at)
            if matcher is None:
                message = f"expected `label=value` at {matchers[at:]!r} in {text!r}"
                raise ValueError(message)
            quoted, bare = matcher[2], matcher[3]
            labels.append((matcher[1], bare if quoted is None else _unescape(quoted)))
            at = matcher.end()
        return cls(found[1], tuple(labels))

    def matches(self, sample: Sample) -> bool:
        """Whether the sample has all the labels; a malformed one may have them."""
        labels = sample.labels
        return labels is None or all(labels.get(name) == value for name, value in self.labels)


class Exposition:
    """The wanted families of one page, whose lines are read when asked for."""

    __slots__ = ("_page", "_read_labels", "_rows")

    def __init__(
        self,
        page: bytes,
        rows: Mapping[str, Sequence[_Row]],
        read_labels: Callable[[bytes], _Labels | None],
    ) -> None:
        self._page = page
        self._rows = rows
        self._read_labels = read_labels

    def series(self, selector: Selector) -> list[Sample]:
        """
        Return one sample for each set of labels: the newest, the last one without timestamps.

        Malformed lines come along as they are. A summary or a histogram has no single value and
        reads as one sample of 0.
        """
        samples = [self._sample(row) for row in self._rows.get(selector.name, ())]
        unusual = not samples or "quantile" in (samples[0].labels or ())
        if unusual and self._is_distribution(selector.name):
            return [Sample({}, 0.0)]
        if selector.labels:
            samples = [sample for sample in samples if selector.matches(sample)]
        if len(samples) < 2:
            return samples
        newest: dict[object, Sample] = {}
        for at, sample in enumerate(samples):
            key = at if sample.labels is None else frozenset(sample.labels.items())
            if key not in newest or sample.timestamp >= newest[key].timestamp:
                newest[key] = sample
        return list(newest.values())

    def largest(self, selector: Selector) -> list[Sample]:
        """
        Return the sample of the largest value, and behind it those without one.

        Of equals it is the newest, then the last. Made for families that keep a line for every set
        of labels they ever had: the labels of the others are not read.
        """
        rows = self._rows.get(selector.name, ())
        if selector.labels:
            rows = [row for row in rows if selector.matches(self._sample(row))]
        best = None
        unreadable = []
        for row in rows:
            value, timestamp = _number(row[1]), _timestamp(row[2])
            if not math.isfinite(value):
                unreadable.append(Sample(None, math.nan))
            elif best is None or (value, timestamp) >= best[0]:
                best = (value, timestamp), row
        return unreadable if best is None else [self._sample(best[1]), *unreadable]

    def _sample(self, row: _Row) -> Sample:
        raw, value, timestamp, rest = row
        labels = None if rest else self._read_labels(raw)
        if labels is None:
            return Sample(None, math.nan)
        return Sample(labels, _number(value), _timestamp(timestamp))

    def _is_distribution(self, name: str) -> bool:
        """Whether the family is a summary or a histogram, and not only declared."""
        family = re.escape(name).encode()
        declared = rb"\n#[ \t]+TYPE[ \t]+%s[ \t]+(?:summary|histogram)\b" % family
        counted = rb"\n%s_count[ \t{]" % family
        # The second is the quicker search, and mostly finds nothing.
        return bool(re.search(counted, self._page) and re.search(declared, self._page))


class Scanner:
    """
    Finds some families in pages, all of them in one pass.

    `accumulating` names those of them that keep a line for every set of labels they ever had: they
    may have more series, since only the largest of these is read.
    """

    def __init__(self, names: Iterable[str], *, accumulating: Collection[str] = ()) -> None:
        wanted = b"|".join(re.escape(name).encode() for name in sorted(set(names)))
        # The line feed stands first, so that the search runs from line to line. Only labels hold
        # braces (the text format knows no exemplars), so the last brace of a line closes them.
        self._line = re.compile(
            rb"\n(%s)(?=[ \t{])[ \t]*+(?:\{(.*)\}[ \t]*+)?+"
            rb"(?:([-+.0-9A-Za-z]++)(?:[ \t]++([-+.0-9A-Za-z]++))?+[ \t\r]*+$|(.*))" % wanted,
            re.MULTILINE,
        )
        self._accumulating = frozenset(accumulating)
        self._remembered = functools.lru_cache(_REMEMBERED_LABELS)(parse_labels)

    def scan(self, page: bytes) -> Exposition:
        """Return what the page has of the families; raise ScrapeError where that is too much."""
        page = b"\n" + page
        rows: dict[str, list[_Row]] = {}
        label_bytes = 0
        for line in self._line.finditer(page):
            name, labels, value, timestamp, rest = line.groups(b"")
            family = name.decode()
            found = rows.setdefault(family, [])
            found.append((labels, value, timestamp, rest))
            past = family in self._accumulating
            if len(found) > (MOST_PAST_SERIES if past else MOST_SERIES):
                message = f"the page has more than {len(found) - 1} series of {family}"
                raise ScrapeError("payload", message)
            # Of those that accumulate the labels of one are read, and each may be that one.
            label_bytes = max(label_bytes, len(labels)) if past else label_bytes + len(labels)
            if label_bytes > MOST_LABEL_BYTES:
                message = f"the page has more than {MOST_LABEL_BYTES} bytes of labels to read"
                raise ScrapeError("payload", message)
        return Exposition(page, rows, self._read_labels)

    def _read_labels(self, raw: bytes) -> _Labels | None:
        return self._remembered(raw) if len(raw) <= _REMEMBERED_BYTES else parse_labels(raw)


def parse_labels(raw: bytes) -> _Labels | None:
    """Return the labels that stand between a line's braces, None where they are malformed."""
    if _ALL_LABELS.fullmatch(raw) is None:
        return None
    return {
        name.decode(): _unescape(value.decode("utf-8", "replace"))
        for name, value in _ONE_LABEL.findall(raw)
    }


def _unescape(value: str) -> str:
    if "\\" not in value:
        return value
    return _ESCAPE.sub(lambda escaped: "\n" if escaped[1] == "n" else escaped[1], value)


def _number(token: bytes) -> float:
    """Read a value; float() takes no more than the format allows here, since rows hold no `_`."""
    try:
        return float(token)
    except ValueError:
        return math.nan


def _timestamp(token: bytes) -> float:
    moment = _number(token) if token else NO_TIMESTAMP
    return NO_TIMESTAMP if math.isnan(moment) else moment
