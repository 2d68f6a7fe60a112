"""Filters by the values of one label: any label, and that of the role."""

from collections.abc import Callable
from typing import Any

import pytest

from epp.framework import EndpointView, Filter
from epp.testing import assert_conforms, endpoint, request
from epp_plugins.filters.label_selector import LabelSelectorFilter
from epp_plugins.filters.label_values import LabelValuesFilter
from epp_plugins.filters.role import ROLE_LABEL, DecodeFilter, EncodeFilter, PrefillFilter

ROLES = [
    "decode",
    "prefill",
    "encode",
    "both",
    "prefill-decode",
    "encode-prefill",
    "encode-decode",
    "encode-prefill-decode",
    "unheard-of",
    "",
]


def labelled(label: str, *values: str | None) -> EndpointView:
    return EndpointView(
        [
            endpoint(str(at), labels={} if one is None else {label: one})
            for at, one in enumerate(values)
        ]
    )


def by_label(**parameters: Any) -> LabelValuesFilter:
    return LabelValuesFilter(**({"label": "role", "valid_values": ["a", "b"]} | parameters))


@pytest.mark.parametrize("make", [by_label, DecodeFilter, PrefillFilter, EncodeFilter])
def test_it_keeps_the_promises_of_a_filter(make: Callable[[], Filter]) -> None:
    assert_conforms(make)


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        pytest.param({}, [0, 1], id="one-of-the-values"),
        pytest.param({"allows_no_label": True}, [0, 1, 3], id="or-no-label"),
        pytest.param({"allows_no_label": True, "valid_values": []}, [3], id="only-no-label"),
    ],
)
def test_endpoints_with_one_of_the_values_are_kept(
    parameters: dict[str, Any], expected: list[int]
) -> None:
    pool = labelled("role", "a", "b", "c", None)

    kept = by_label(**parameters).filter(request(), pool)

    assert [pool[at] for at in expected] == list(kept)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        pytest.param({"label": ""}, r"label must name a label, got ''", id="no-label"),
        pytest.param({"valid_values": []}, r"validValues must not be empty", id="no-values"),
        pytest.param({"valid_values": None}, r"validValues must not be empty", id="unset"),
    ],
)
def test_a_parameter_that_makes_no_sense_is_refused(
    parameters: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        by_label(**parameters)


@pytest.mark.parametrize(
    ("role", "expected"),
    [
        pytest.param(
            DecodeFilter(),
            ["decode", "both", "prefill-decode", "encode-decode", "encode-prefill-decode", None],
            id="decode",
        ),
        pytest.param(
            PrefillFilter(),
            ["prefill", "both", "prefill-decode", "encode-prefill", "encode-prefill-decode"],
            id="prefill",
        ),
        pytest.param(
            EncodeFilter(),
            ["encode", "encode-prefill", "encode-decode", "encode-prefill-decode"],
            id="encode",
        ),
    ],
)
def test_a_stage_has_its_roles(role: Filter, expected: list[str | None]) -> None:
    kept = role.filter(request(), labelled(ROLE_LABEL, *ROLES, None))

    assert expected == [one.labels.get(ROLE_LABEL) for one in kept]


@pytest.mark.parametrize(
    "plugin",
    [by_label(valid_values=["a"]), LabelSelectorFilter(match_labels={"role": "a"})],
)
def test_a_changed_pool_is_filtered_anew_and_an_unchanged_one_is_not(plugin: Filter) -> None:
    before, after = labelled("role", "a", "c"), labelled("role", "c", "a")
    kept = plugin.filter(request(), before)

    assert plugin.filter(request(), EndpointView(before.rows)) is kept
    assert [one in after for one in plugin.filter(request(), after)] == [True]
