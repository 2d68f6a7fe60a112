"""What a file of endpoints may hold, and what is said about one that holds something else."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epp.framework import ConfigError
from epp_plugins.discoveries.static_file.endpoints_file import LARGEST_FILE_BYTES, parse


def entry(**fields: Any) -> dict[str, Any]:
    return {"name": "a", "address": "10.0.0.1", "port": 8000} | fields


def document(*entries: Any) -> bytes:
    return json.dumps({"endpoints": entries}).encode()


@pytest.mark.parametrize(
    ("fields", "address", "port"),
    [
        ({}, "10.0.0.1", 8000),
        ({"port": "8000"}, "10.0.0.1", 8000),
        ({"port": 65535}, "10.0.0.1", 65535),
        ({"address": "fd00::1"}, "fd00::1", 8000),
        ({"address": "[FD00:0::1]"}, "fd00::1", 8000),
        ({"address": "vllm-0.vllm.default.svc.cluster.local"},
         "vllm-0.vllm.default.svc.cluster.local", 8000),
        ({"address": "Model_Server."}, "model_server", 8000),
        ({"address": "localhost"}, "localhost", 8000),
        ({"address": "3com.example"}, "3com.example", 8000),
    ],
    ids=[
        "plain", "port in quotes", "last port", "IPv6", "IPv6 in brackets", "name", "odd name",
        "localhost", "digit first",
    ],
)  # fmt: skip
def test_an_entry_is_read(fields: dict[str, Any], address: str, port: int) -> None:
    (read,) = parse(document(entry(**fields)))

    assert (read.address, read.port) == (address, port)


def test_names_are_of_a_namespace_and_labels_come_along() -> None:
    content = b"""
    # a comment
    endpoints:
    - {name: a, address: 10.0.0.1, port: 8000}
    - name: a
      namespace: other
      address: 10.0.0.2
      port: 8000
      labels:
        llm-d.ai/engine-type: sglang
    """
    read = parse(content)

    assert [str(one.id) for one in read] == ["default/a", "other/a"]
    assert [one.labels for one in read] == [{}, {"llm-d.ai/engine-type": "sglang"}]


@pytest.mark.parametrize(
    ("entries", "place", "complaint"),
    [
        ([entry(), entry(name="b", address="10.0.0.256")], "endpoints[1] (b)", "10.0.0.256"),
        ([entry(address="10.0.0.1:8000")], "endpoints[0] (a)", "address: expected an IPv4"),
        ([entry(address="http://vllm")], "endpoints[0] (a)", "address"),
        ([entry(address="")], "endpoints[0] (a)", "address"),
        ([entry(address="0.0.0.0")], "endpoints[0] (a)", "address"),
        ([entry(address="fe80::1%eth0")], "endpoints[0] (a)", "address"),
        ([entry(address="a..b")], "endpoints[0] (a)", "address"),
        ([entry(port=0)], "endpoints[0] (a)", "port: expected a number from 1 to 65535, got 0"),
        ([entry(port=65536)], "endpoints[0] (a)", "port"),
        ([entry(port="http")], "endpoints[0] (a)", "port"),
        ([entry(port="08000")], "endpoints[0] (a)", "port: expected a number from 1 to 65535"),
        ([entry(port=True)], "endpoints[0] (a)", "port"),
        ([entry(port=None)], "endpoints[0] (a)", "port"),
        ([entry(), entry()], "endpoints[1] (a)", "default/a is there twice"),
        ([entry(weight=1)], "endpoints[0] (a)", "unknown field `weight`"),
        ([entry(name="a b")], "endpoints[0] (a b)", "name: expected letters"),
        ([entry(name="a/b")], "endpoints[0] (a/b)", "name"),
        ([entry(name=7)], "endpoints[0]", "`name`"),
        ([entry(namespace="")], "endpoints[0] (a)", "namespace"),
        ([entry(labels={"tier": 1})], "endpoints[0] (a)", "labels"),
        ([{"name": "a", "port": 8000}], "endpoints[0] (a)", "missing required field `address`"),
        (["10.0.0.1:8000"], "endpoints[0]", "expected `object`"),
    ],
)  # fmt: skip
def test_an_entry_that_cannot_be_used_is_named_with_what_was_expected(
    entries: list[Any], place: str, complaint: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        parse(document(*entries))

    assert str(raised.value).startswith(place + ":")
    assert complaint in str(raised.value)


@pytest.mark.parametrize("port", ["010", "1:30", "0x1F90", "8_000", "2024-01-02"])
def test_a_port_that_yaml_would_make_another_number_of_is_refused(port: str) -> None:
    content = f"endpoints:\n- name: a\n  address: 10.0.0.1\n  port: {port}\n".encode()
    with pytest.raises(ConfigError, match=r"endpoints\[0\] \(a\): port: expected a number"):
        parse(content)


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"endpoints: [{name: a, address: 10.0.0.1, port: 1}]\nendpoints: []",
         "key 'endpoints' is there twice, on line 1 and on line 2"),
        (b"endpoints:\n- name: a\n  address: 10.0.0.1\n  port: 1\n  address: 10.0.0.2",
         "key 'address' is there twice, on line 3 and on line 5"),
        (b"endpoints: [{name: a, address: b, port: 1, labels: {x: y, x: z}}]", "key 'x'"),
    ],
    ids=["list", "field", "label"],
)  # fmt: skip
def test_a_key_that_is_there_twice_empties_no_pool(content: bytes, complaint: str) -> None:
    with pytest.raises(ConfigError) as raised:
        parse(content)

    assert complaint in str(raised.value)


def test_what_endpoints_have_in_common_may_be_written_once() -> None:
    content = b"""
    endpoints:
    - &first {name: a, address: 10.0.0.1, port: 8000, labels: {tier: x, since: 2024-01-02}}
    - {<<: *first, name: b, address: 10.0.0.2}
    """
    read = parse(content)

    assert [(one.name, one.address, one.port) for one in read] == [
        ("a", "10.0.0.1", 8000),
        ("b", "10.0.0.2", 8000),
    ]
    assert [one.labels for one in read] == [{"tier": "x", "since": "2024-01-02"}] * 2


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"endpoints:",
        b"endpoints: {}",
        b"endpoint: []",
        b"endpoints: []\npool: x",
        b"endpoints: [",
        b"\xff\xfe\x00",
        b"endpoints: " + b"[" * 5000,
        b"endpoints: &a [*a]",
        b"endpoints: [2024-99-99]",
        b"endpoints: []\n#" + b"x" * LARGEST_FILE_BYTES,
    ],
    ids=[
        "empty", "list", "nothing", "map", "other key", "unknown key", "cut off", "no text",
        "nested", "recursive", "bad date", "too large",
    ],
)  # fmt: skip
def test_a_document_that_is_none_is_refused(content: bytes) -> None:
    with pytest.raises(ConfigError):
        parse(content)


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["endpoints", "name", "address", "port", "labels", "namespace"]), inner
        )
    ),
    max_leaves=12,
)


@settings(deadline=None)
@given(st.one_of(st.binary(max_size=60), PLAIN.map(lambda value: json.dumps(value).encode())))
def test_no_content_raises_anything_else(content: bytes) -> None:
    try:
        entries = parse(content)
    except ConfigError:
        return

    assert all(1 <= int(one.port) <= 65535 for one in entries)
