import math

import pytest

from epp.framework import ScrapeError
from epp_plugins.extractors.model_server_metrics.exposition import (
    MOST_LABEL_BYTES,
    MOST_PAST_SERIES,
    MOST_SERIES,
    NO_TIMESTAMP,
    Sample,
    Scanner,
    Selector,
    parse_labels,
)


def series(page: str, selector: str = "m") -> list[Sample]:
    wanted = Selector.parse(selector)
    return Scanner([wanted.name]).scan(page.encode()).series(wanted)


def largest(page: str, selector: str = "m") -> list[Sample]:
    wanted = Selector.parse(selector)
    return Scanner([wanted.name]).scan(page.encode()).largest(wanted)


@pytest.mark.parametrize(
    ("line", "labels", "value", "timestamp"),
    [
        ("m 7", {}, 7.0, NO_TIMESTAMP),
        ("m 7\r", {}, 7.0, NO_TIMESTAMP),
        ("m\t 7 \t", {}, 7.0, NO_TIMESTAMP),
        ("m 7 1700000000000", {}, 7.0, 1.7e12),
        ("m{} 7", {}, 7.0, NO_TIMESTAMP),
        ("m{a=\"1\"} -7.5e-1 12", {"a": "1"}, -0.75, 12.0),
        ('m{a="1"}7', {"a": "1"}, 7.0, NO_TIMESTAMP),
        ('m {a="1",} 7', {"a": "1"}, 7.0, NO_TIMESTAMP),
        ('m{ a = "1" , b="2" } 7', {"a": "1", "b": "2"}, 7.0, NO_TIMESTAMP),
        (r'm{a="say \"x\"",b="\\",c="1\n2"} 7', {"a": 'say "x"', "b": "\\", "c": "1\n2"}, 7.0,
         NO_TIMESTAMP),
        ('m{a="}, b={ 9 ",b="#"} 7', {"a": "}, b={ 9 ", "b": "#"}, 7.0, NO_TIMESTAMP),
        ('m{a=""} +Inf', {"a": ""}, math.inf, NO_TIMESTAMP),
    ],
    ids=[
        "bare", "carriage return", "blanks", "timestamp", "empty braces", "label and exponent",
        "no blank", "comma at the end", "blanks between labels", "escapes", "punctuation in values",
        "empty value and infinity",
    ],
)  # fmt: skip
def test_a_line_is_read(line: str, labels: dict[str, str], value: float, timestamp: float) -> None:
    assert series(f"x 1\n{line}\ny 2\n") == [Sample(labels, value, timestamp)]


@pytest.mark.parametrize(
    "line",
    [
        "m ",
        "m x",
        "m 1_000",
        "m NaN",
        'm{a="1" 7',
        "m{a=1} 7",
        'm{a="1"',
        'm{a="1} 7',
        'm{a="1"b="2"} 7',
        'm{a="1"} 7 8 9',
        'm 7 # {trace="x"} 1',
        "m 7 {",
    ],
)
def test_a_line_that_cannot_be_read_is_a_sample_without_a_value(line: str) -> None:
    found = series(f"x 1\n{line}\ny 2")

    assert [math.isnan(sample.value) for sample in found] == [True]


@pytest.mark.parametrize(
    "page",
    [
        "",
        "mm 7\n",
        "# HELP m 7\n# TYPE m gauge\n",
        "x m 7\n",
        'x{y="m 7"} 1\n',
        "m_by_reason 7\nm:x 7\n",
        "m",
    ],
    ids=["empty", "longer", "comments", "later in a line", "in a label", "suffixes", "no value"],
)
def test_a_name_elsewhere_is_not_a_sample(page: str) -> None:
    assert series(page) == []


def test_a_family_is_found_on_the_first_and_the_last_line() -> None:
    assert [s.value for s in series('m{a="1"} 1\nx 1\nm{a="2"} 2')] == [1.0, 2.0]


def test_of_names_that_begin_alike_each_is_found() -> None:
    page = b"queue 1\nqueue_size 2\nqueue_size_max 3\n"
    exposition = Scanner(["queue", "queue_size", "queue_size_max"]).scan(page)
    values = {
        name: exposition.series(Selector(name))[0].value
        for name in ("queue", "queue_size", "queue_size_max")
    }

    assert values == {"queue": 1.0, "queue_size": 2.0, "queue_size_max": 3.0}


@pytest.mark.parametrize(
    ("page", "values"),
    [
        ('m{a="1"} 5\nm{a="2"} 9', [5.0, 9.0]),
        ("m 5 1000\nm 7 2000\nm 6 1500", [7.0]),
        ("m 5\nm 7\nm 6", [6.0]),
        ("m 5 1000\nm 7", [5.0]),
        ('m{a="1",b="2"} 5\nm{b="2",a="1"} 6', [6.0]),
    ],
    ids=["sets of labels", "newest", "last", "with a timestamp", "order of labels"],
)
def test_each_set_of_labels_counts_once(page: str, values: list[float]) -> None:
    assert [sample.value for sample in series(page)] == values


def test_malformed_lines_come_beside_the_good_ones() -> None:
    found = series('m{a="1"} 5\nm{a= 6\nm{b= 7')

    assert [sample.labels for sample in found] == [{"a": "1"}, None, None]


@pytest.mark.parametrize("kind", ["summary", "histogram"])
def test_a_distribution_has_no_value_but_is_there(kind: str) -> None:
    page = f"# TYPE m {kind}\n" + 'm{quantile="0.5"} 3\nm_sum 9\nm_count 3\n'

    assert series(page) == [Sample({}, 0.0)]


def test_a_histogram_has_no_lines_of_its_own_name() -> None:
    page = '# TYPE m histogram\nm_bucket{le="+Inf"} 3\nm_sum 9\nm_count 3\n'

    assert series(page) == [Sample({}, 0.0)]


@pytest.mark.parametrize("kind", ["gauge", "histogram", "summary"])
def test_a_family_that_is_only_declared_has_no_samples(kind: str) -> None:
    assert series(f"# HELP m text\n# TYPE m {kind}\n") == []


def test_the_largest_value_wins_then_the_newest_then_the_last() -> None:
    by_value = largest('m{a="1"} 3 9000\nm{a="2"} 4\nm{a="3"} 1')
    by_time = largest('m{a="1"} 4 20\nm{a="2"} 4 30\nm{a="3"} 4 10')
    by_place = largest('m{a="1"} 4\nm{a="2"} 4')

    assert [by_value[0].labels, by_time[0].labels, by_place[0].labels] == [{"a": "2"}] * 3


def test_the_unreadable_come_behind_the_largest() -> None:
    found = largest('m{a="1"} NaN\nm{a="2"} 4\nm{a= 5\nm{a="3"} +Inf')

    assert found[0] == Sample({"a": "2"}, 4.0)
    assert [math.isnan(sample.value) for sample in found[1:]] == [True, True, True]


def test_a_selector_asks_for_labels_in_the_largest_too() -> None:
    found = largest('m{kind="x",n="1"} 1\nm{kind="y",n="2"} 2', "m{kind=x}")

    assert found == [Sample({"kind": "x", "n": "1"}, 1.0)]


@pytest.mark.parametrize(
    ("text", "selector"),
    [
        ("vllm:waiting", Selector("vllm:waiting")),
        (" m{} ", Selector("m")),
        ("m{a=1}", Selector("m", (("a", "1"),))),
        ('m{a="1",b=two}', Selector("m", (("a", "1"), ("b", "two")))),
        (r'm{ a = "x,y}\"z" , }', Selector("m", (("a", 'x,y}"z'),))),
    ],
    ids=["name", "empty braces", "bare value", "two labels", "punctuation"],
)
def test_a_selector_is_read(text: str, selector: Selector) -> None:
    assert Selector.parse(text) == selector


@pytest.mark.parametrize(
    "text", ["", "1m", "m n", "m{a}", "m{a=}", "m{a=1", 'm{a="1}', "m{a=1 b=2}", "m{=1}", "m{a=1}x"]
)
def test_a_selector_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        Selector.parse(text)


def test_labels_that_are_no_utf8_are_read_as_far_as_they_are() -> None:
    assert parse_labels(b'a="\xff",b="\xc3\xa9"') == {"a": "\ufffd", "b": "\u00e9"}


def test_very_long_labels_are_read_too() -> None:
    text = "x," * 5000

    assert series(f'm{{a="{text}"}} 1')[0].labels == {"a": text}


def lines(count: int) -> bytes:
    return b"".join(b'm{engine="%d"} 1\n' % at for at in range(count))


def labels(size: int) -> bytes:
    return b'm{a="%s"} 1\n' % (b"x" * (size - len('a=""')))


@pytest.mark.parametrize(
    ("page", "accumulating", "complaint"),
    [
        (lines(MOST_SERIES), False, None),
        (lines(MOST_SERIES + 1), False, "the page has more than 1024 series of m"),
        (lines(MOST_PAST_SERIES), True, None),
        (lines(MOST_PAST_SERIES + 1), True, "the page has more than 16384 series of m"),
        (labels(MOST_LABEL_BYTES), False, None),
        (labels(MOST_LABEL_BYTES) + b"m{a=\"b\"} 1", False, "more than 262144 bytes of labels"),
        (labels(MOST_LABEL_BYTES) * 3, True, None),
        (labels(MOST_LABEL_BYTES + 1), True, "more than 262144 bytes of labels"),
        (lines(MOST_SERIES).replace(b"m{", b"other{") * 9, False, None),
    ],
    ids=[
        "series", "more series", "past series", "more past series", "labels", "more labels",
        "labels of the past", "more labels of the past", "unwanted series",
    ],
)  # fmt: skip
def test_a_page_is_read_as_far_as_it_is_no_burden(
    page: bytes, accumulating: bool, complaint: str | None
) -> None:
    scanner = Scanner(["m"], accumulating=["m"] if accumulating else [])
    reason = said = None
    try:
        scanner.scan(page)
    except ScrapeError as error:
        reason, said = error.reason, str(error)

    assert reason == (None if complaint is None else "payload")
    assert (complaint or "") in (said or "")


def test_the_scan_stops_where_the_page_becomes_too_much() -> None:
    scanner = Scanner(["m", "n"])
    with pytest.raises(ScrapeError, match="series of n"):
        scanner.scan(b"n 1\n" * (MOST_SERIES + 1) + b"m 1\n" * (MOST_SERIES + 1))
