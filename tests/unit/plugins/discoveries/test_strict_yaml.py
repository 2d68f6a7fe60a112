"""What YAML says in the files of operators, and what it may not say by surprise."""

import datetime as dt

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from epp.framework import ConfigError
from epp_plugins.discoveries.static_file import strict_yaml


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("8000", 8000),
        ("0", 0),
        ("-7", -7),
        ("010", "010"),
        ("1:30", "1:30"),
        ("1:30.5", "1:30.5"),
        ("0x10", "0x10"),
        ("0b11", "0b11"),
        ("8_000", "8_000"),
        ("2024-01-02", "2024-01-02"),
        ("2024-99-99", "2024-99-99"),
        ("1.5", 1.5),
        ("'8000'", "8000"),
        ("true", True),
        ("~", None),
        ("", None),
        ("!!str 8000", "8000"),
        ("!!int 8000", 8000),
    ],
    ids=lambda value: repr(value),
)
def test_a_scalar_is_what_it_looks_like(text: str, value: object) -> None:
    assert strict_yaml.load(text.encode()) == value


@pytest.mark.parametrize(
    ("document", "complaint"),
    [
        ("a: 1\nb: 2\na: 3", "key 'a' is there twice, on line 1 and on line 3"),
        ("{a: 1, 'a': 2}", "key 'a' is there twice, on line 1 and on line 1"),
        ("x:\n- {y: {b: 1, c: 2,\n  b: 3}}", "key 'b' is there twice, on line 2 and on line 3"),
        ("? {a: 1, a: 2}\n: x", "key 'a' is there twice"),
        ("<<: {a: 1}\n<<: {b: 2}", "key '<<' is there twice"),
        ("b: &b {<<: {a: 1}, a: 2, a: 3}", "key 'a' is there twice"),
    ],
    ids=["top", "quoted", "inner", "in a key", "merges", "beside a merge"],
)
def test_a_key_that_is_there_twice_is_refused(document: str, complaint: str) -> None:
    with pytest.raises(ConfigError) as raised:
        strict_yaml.load(document.encode())

    assert complaint in str(raised.value)


def test_a_merged_key_may_be_overridden_however_often_it_is_merged() -> None:
    document = b"""
    inner: {base: &base {port: 1, name: x}}
    more: &more {<<: *base, port: 2}
    most: {<<: *more, port: 3}
    again: {<<: [*more, *base]}
    """

    assert strict_yaml.load(document) == {
        "inner": {"base": {"port": 1, "name": "x"}},
        "more": {"port": 2, "name": "x"},
        "most": {"port": 3, "name": "x"},
        "again": {"port": 2, "name": "x"},
    }


@pytest.mark.parametrize(
    "document",
    [
        b"!!int x",
        b"!!int ''",
        b"!!int 010",
        b"!!int [1]",
        b"!!int " + b"9" * 5000,
        b"!!float x",
        b"!!float ''",
        b"!!bool perhaps",
        b"!!timestamp x",
        b"!!timestamp 2024-99-99",
        b"!!binary '\xc3\xa9'",
        b"!!python/name:os.system",
        b"!mine x",
        b"? [a]\n: b",
        b"a: *missing",
        b"a: =",
        b"a: 1\n---\nb: 2",
        b"a: [",
        b"\xff\xfe\x00",
        b"a: \x07",
        b"[" * 5000,
        b"{<<: " * 990 + b"{}" + b"}" * 990,
    ],
    ids=lambda document: repr(document[:24]),
)
def test_what_cannot_be_read_is_an_error_of_configuration(document: bytes) -> None:
    with pytest.raises(ConfigError, match="expected"):
        strict_yaml.load(document)


def test_the_loader_of_the_whole_process_stays_as_it_was() -> None:
    assert yaml.safe_load("[010, 2024-01-02]") == [8, dt.date(2024, 1, 2)]


PIECES = st.sampled_from(
    ["a", "b", ": ", "\n", "- ", "  ", "[", "]", "{", "}", ", ", "&x ", "*x", "!!int ", "!!float ",
     "!!timestamp ", "!!bool ", "!!set ", "!!omap ", "!!pairs ", "!!binary ", "<<: ", "? ", "0",
     "1", ":", ".", "'", '"', "|", "#", "=", "~", "---\n"]
)  # fmt: skip


@given(st.lists(PIECES, max_size=24).map("".join))
def test_whatever_is_written_is_read_or_refused(text: str) -> None:
    said = ""
    try:
        strict_yaml.load(text.encode())
    except ConfigError as error:
        said = str(error)

    assert "\n" not in said
