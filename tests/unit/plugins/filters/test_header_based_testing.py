"""A header says who may serve: for conformance tests."""

import pytest

from epp.framework import EndpointView
from epp.testing import assert_conforms, endpoint, request
from epp_plugins.filters.header_based_testing import HEADER, HeaderBasedTestingFilter

POOL = EndpointView(
    [
        endpoint(f"{address}-{port}", address=address, port=port)
        for address in ("10.0.0.1", "10.0.0.2", "fd00::1")
        for port in (3000, 3002)
    ]
)


def test_it_keeps_the_promises_of_a_filter() -> None:
    assert_conforms(HeaderBasedTestingFilter)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        pytest.param(None, [0, 1, 2, 3, 4, 5], id="no-header"),
        pytest.param(" , ", [0, 1, 2, 3, 4, 5], id="an-empty-one"),
        pytest.param("10.0.0.2", [2, 3], id="an-address-is-every-port-of-it"),
        pytest.param("10.0.0.1, 10.0.0.2:3002", [0, 1, 3], id="an-address-and-a-port"),
        pytest.param("10.0.0.2:3002,10.0.0.1:3002", [1, 3], id="in-the-order-of-the-pool"),
        pytest.param("[fd00::1]:3000", [4], id="an-ipv6-address-with-a-port"),
        pytest.param("fd00:0::1,[FD00::1]", [4, 5], id="ipv6-addresses-have-many-spellings"),
        pytest.param("10.0.0.9", [], id="a-stranger"),
        pytest.param("10.0.0.1:9", [], id="another-port"),
        pytest.param("::nonsense", [], id="nonsense"),
    ],
)
def test_the_header_names_who_is_kept(value: str | None, expected: list[int]) -> None:
    asked = request(headers={} if value is None else {HEADER: value})

    kept = HeaderBasedTestingFilter().filter(asked, POOL)

    assert [POOL[at] for at in expected] == list(kept)
