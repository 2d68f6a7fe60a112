"""The decision tree of the field's first picker."""

from collections import Counter
from random import Random

import pytest

from epp.framework import Endpoint, EndpointView, PluginContext
from epp.testing import endpoint, request
from epp_plugins.filters.filter_chain import FilterChainFilter


def chain(**parameters: float) -> FilterChainFilter:
    return FilterChainFilter(context=PluginContext("chain", random=Random(0)), **parameters)


def kept(pool: list[Endpoint], *, priority: int = 0, model: str = "m", **parameters: float) -> str:
    found = chain(**parameters).filter(request(model=model, priority=priority), EndpointView(pool))
    return "".join(one.id.name for one in found)


def test_the_shortest_queues_are_kept() -> None:
    pool = [endpoint("a", waiting=9), endpoint("b", waiting=1), endpoint("c", waiting=2)]

    assert kept(pool) == "bc"


def test_of_equal_queues_the_least_cache_use_is_kept() -> None:
    pool = [endpoint("a", kv_usage=0.9), endpoint("b", kv_usage=0.1)]

    assert kept(pool) == "b"


def test_where_queues_are_short_the_adapter_comes_first() -> None:
    pool = [
        endpoint("a", waiting=20, running_adapters=frozenset("x"), max_adapters=2),
        endpoint("b", waiting=0, running_adapters=frozenset("yz"), max_adapters=2),
    ]

    assert kept(pool, model="x") == "a"


def test_where_queues_are_long_they_come_first() -> None:
    pool = [
        endpoint("a", waiting=400, running_adapters=frozenset("x"), max_adapters=2),
        endpoint("b", waiting=200, running_adapters=frozenset("yz"), max_adapters=2),
    ]

    assert kept(pool, model="x") == "b"


def test_the_adapter_draws_softly() -> None:
    plugin = chain(lora_affinity_threshold=0.75)
    pool = EndpointView(
        [
            endpoint("has", running_adapters=frozenset("x"), max_adapters=2),
            endpoint("room", max_adapters=2),
        ]
    )

    counts = Counter(
        one.id.name for _ in range(4000) for one in plugin.filter(request(model="x"), pool)
    )

    assert counts["has"] / 4000 == pytest.approx(0.75, abs=0.03)
    assert sum(counts.values()) == 4000


@pytest.mark.parametrize(
    ("waiting", "kv_usage", "expected"), [(5, 0.8, "a"), (6, 0.1, ""), (0, 0.9, "")]
)
def test_what_can_be_shed_is_dropped_unless_there_is_room(
    waiting: int, kv_usage: float, expected: str
) -> None:
    pool = [endpoint("a", waiting=waiting, kv_usage=kv_usage)]

    assert kept(pool, priority=-1) == expected
    assert kept(pool, priority=0) == "a"


@pytest.mark.parametrize("wrong", [{"lora_affinity_threshold": 1.1}, {"kv_cache_threshold": -0.1}])
def test_a_threshold_out_of_range_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="must be from 0 to 1"):
        chain(**wrong)
