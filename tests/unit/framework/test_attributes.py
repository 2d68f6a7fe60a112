"""Attributes are written once; a prefix match finds its numbers behind a filter."""

import pytest

from epp.framework import AttributeKey, Attributes, FlowKey, PrefixMatch
from epp.framework.requesthandling import Usage
from epp.testing import endpoint, request

KEY = AttributeKey[int]("number")


def test_a_key_is_written_once() -> None:
    attributes = Attributes()
    attributes.put(KEY, 1)

    with pytest.raises(ValueError, match="'number' is already written"):
        attributes.put(KEY, 2)
    assert attributes.get(KEY) == 1


def test_what_nobody_wrote_is_absent() -> None:
    assert Attributes().get(KEY) is None


def test_a_match_is_read_for_those_a_filter_kept() -> None:
    a, b, c = (endpoint(name) for name in "abc")
    match = PrefixMatch([3, 2, 1], 4, 256, [a, b, c])

    assert list(match.blocks_of([a, b, c])) == [3, 2, 1]
    assert list(match.blocks_of([a, c])) == [3, 1]
    assert list(match.blocks_of([endpoint("d")])) == [0]


def test_a_requests_flow_is_its_fairness_id_and_priority() -> None:
    assert request(fairness_id="team", priority=2).flow_key == FlowKey("team", 2)


def test_usage_of_several_events_is_merged_field_by_field() -> None:
    assert Usage(1, None, 3).merged(Usage(None, 2, 4)) == Usage(1, 2, 4)
