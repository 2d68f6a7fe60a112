"""The label selector, with the semantics of Kubernetes."""

from typing import Any

import pytest

from epp.framework import EndpointView
from epp.testing import assert_conforms, endpoint, request
from epp_plugins.filters.label_selector import LabelSelectorFilter, MatchExpression

POOL = EndpointView(
    [
        endpoint("a", labels={"gpu": "h100", "role": "decode"}),
        endpoint("b", labels={"gpu": "l4", "role": "decode"}),
        endpoint("c", labels={"gpu": "l4"}),
        endpoint("d"),
    ]
)


def expression(key: str, operator: Any, *values: str) -> MatchExpression:
    return MatchExpression(key, operator, list(values))


def test_it_keeps_the_order_and_returns_no_strangers() -> None:
    assert_conforms(lambda: LabelSelectorFilter(match_labels={"gpu": "l4"}))


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        pytest.param({}, "abcd", id="an-empty-selector-keeps-all"),
        pytest.param({"match_labels": {"gpu": "l4"}}, "bc", id="one-label"),
        pytest.param({"match_labels": {"gpu": "l4", "role": "decode"}}, "b", id="two-labels"),
        pytest.param({"match_labels": {"gpu": "a100"}}, "", id="nobody-matches"),
        pytest.param(
            {"match_expressions": [expression("gpu", "In", "l4", "h100")]}, "abc", id="in"
        ),
        pytest.param(
            {"match_expressions": [expression("gpu", "NotIn", "l4")]},
            "ad",
            id="not-in-is-satisfied-without-the-label",
        ),
        pytest.param({"match_expressions": [expression("role", "Exists")]}, "ab", id="exists"),
        pytest.param(
            {"match_expressions": [expression("role", "DoesNotExist")]}, "cd", id="does-not-exist"
        ),
        pytest.param(
            {
                "match_labels": {"gpu": "l4"},
                "match_expressions": [expression("role", "DoesNotExist")],
            },
            "c",
            id="labels-and-expressions-all-hold",
        ),
    ],
)
def test_endpoints_that_match_are_kept(parameters: dict[str, Any], expected: str) -> None:
    kept = LabelSelectorFilter(**parameters).filter(request(), POOL)

    assert expected == "".join(one.id.name for one in kept)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        pytest.param(expression("gpu", "In"), r"\[0\]\.values must not be empty", id="in"),
        pytest.param(expression("gpu", "NotIn"), r"\[0\]\.values must not be empty", id="not-in"),
        pytest.param(expression("gpu", "Exists", "l4"), r"values must be empty", id="exists"),
        pytest.param(expression("gpu", "DoesNotExist", "l4"), r"values must be empty", id="not"),
        pytest.param(expression("", "Exists"), r"\[0\]\.key must name a label", id="no-key"),
    ],
)
def test_a_requirement_that_makes_no_sense_is_refused(wrong: MatchExpression, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LabelSelectorFilter(match_expressions=[wrong])
