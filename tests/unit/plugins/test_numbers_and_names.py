"""Numbers and names in parameters, of every plugin: what no formula can bear is refused."""

import math
from collections.abc import Iterator, Mapping
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

import msgspec
import pytest

from epp.framework import INFLIGHT_LOAD, PREFIX_MATCH, AttributeKey, ConfigError, Registry
from epp.framework.registry import parameter_schema

REGISTRY = Registry()

NEEDED: Mapping[str, Mapping[str, Any]] = {
    "by-label": {"label": "a", "validValues": ["b"]},
    "file-discovery": {"path": "endpoints.yaml"},
    "utilization-filter": {"conditions": [{"metric": "waiting-queue", "maxValue": 1}]},
    "prefix-cache-scorer": {"matchLengthWeight": 0.5},
}
"""What some types cannot do without, or what makes a number count."""

ANY_NUMBER_DOES = {"maxBusyScore", "maxNumOfEndpoints"}
"""Out of range they count as 1, and there are never more endpoints than there are."""

PREFIX, IN_FLIGHT = "prefixMatchInfoProducerName", "inFlightLoadProducerName"
USUAL = {PREFIX: "approx-prefix-cache-producer", IN_FLIGHT: "inflight-load-producer"}
KEYS: Mapping[str, AttributeKey[Any]] = {PREFIX: PREFIX_MATCH, IN_FLIGHT: INFLIGHT_LOAD}


def _plain(hint: Any) -> Any:
    """Return a type without annotations and without None."""
    if get_origin(hint) is Annotated:
        return _plain(get_args(hint)[0])
    if get_origin(hint) in (Union, UnionType):
        return _plain(next(one for one in get_args(hint) if one is not type(None)))
    return hint


def _fields() -> Iterator[tuple[str, str, Any]]:
    for plugin_type in REGISTRY.types:
        schema, _ = parameter_schema(REGISTRY.load(plugin_type))
        for field in msgspec.structs.fields(schema):
            yield plugin_type, field.encode_name, _plain(field.type)


NUMBERS = [
    pytest.param(plugin_type, name, wrong, id=f"{plugin_type}-{name}-{wrong:g}")
    for plugin_type, name, kind in _fields()
    for wrong in {float: (math.nan, math.inf, -math.inf, 1e300), int: (2**63, 10**30)}.get(kind, ())
    if name not in ANY_NUMBER_DOES
]

PRODUCERS = [
    pytest.param(plugin_type, name, id=f"{plugin_type}-{name}")
    for plugin_type, name, _ in _fields()
    if name in KEYS
]


def test_there_are_numbers_and_producers_to_look_at() -> None:
    assert len(NUMBERS) > 60
    assert len(PRODUCERS) >= 7


@pytest.mark.parametrize(("plugin_type", "name", "wrong"), NUMBERS)
def test_a_number_beyond_all_measure_is_refused(plugin_type: str, name: str, wrong: float) -> None:
    parameters = {**NEEDED.get(plugin_type, {}), name: wrong}

    with pytest.raises(ConfigError, match=name):
        REGISTRY.build(plugin_type, "mine", parameters)


@pytest.mark.parametrize("name", ["evictionTtlSeconds", "evictionSweepSeconds"])
@pytest.mark.parametrize("wrong", [math.nan, math.inf, 1e300, 0.0])
def test_so_is_a_time_beyond_all_measure(name: str, wrong: float) -> None:
    parameters = {"strategy": "session_id", "sessionIdConfig": {name: wrong}}

    with pytest.raises(ConfigError, match=name):
        REGISTRY.build("session-affinity-scorer", "mine", parameters)


@pytest.mark.parametrize(("plugin_type", "name"), PRODUCERS)
@pytest.mark.parametrize("producer", ["mine", ""])
def test_a_producer_may_have_any_name_which_the_loader_is_told(
    plugin_type: str, name: str, producer: str
) -> None:
    parameters = {**NEEDED.get(plugin_type, {}), name: producer}

    plugin = REGISTRY.build(plugin_type, "plugin", parameters).plugin

    assert plugin.producers == {KEYS[name]: producer}


@pytest.mark.parametrize(("plugin_type", "name"), PRODUCERS)
def test_of_the_usual_producer_it_is_not_told(plugin_type: str, name: str) -> None:
    parameters = {**NEEDED.get(plugin_type, {}), name: USUAL[name]}

    assert REGISTRY.build(plugin_type, "plugin", parameters).plugin.producers == {}
