"""What every scorer promises, whatever its policy."""

from collections.abc import Callable

import pytest

from epp.framework import PREFIX_MATCH, EndpointView, PluginContext, PrefixMatch, Scorer
from epp.testing import assert_conforms, endpoint, request
from epp_plugins.scorers.kv_cache_utilization import KVCacheUtilizationScorer
from epp_plugins.scorers.lora_affinity import LoRAAffinityScorer
from epp_plugins.scorers.prefix_cache import PrefixCacheScorer
from epp_plugins.scorers.queue_depth import QueueScorer
from epp_plugins.scorers.running_requests import RunningRequestsScorer


def lora_affinity_scorer() -> Scorer:
    """Without the tie-break, whose purpose it is to tell equals apart."""
    return LoRAAffinityScorer(context=PluginContext("lora"), tie_score=0.0)


SCORERS = [
    QueueScorer,
    RunningRequestsScorer,
    KVCacheUtilizationScorer,
    PrefixCacheScorer,
    lora_affinity_scorer,
]

every_scorer = pytest.mark.parametrize("make", SCORERS, ids=lambda one: one.__name__)


@every_scorer
def test_scores_are_in_range_and_in_the_order_of_the_endpoints(make: Callable[[], Scorer]) -> None:
    assert_conforms(make)


@every_scorer
def test_equal_endpoints_score_alike(make: Callable[[], Scorer]) -> None:
    asked = request("hello", model="m")
    asked.attributes.put(PREFIX_MATCH, PrefixMatch([2, 2, 2], 4, 256))
    metrics = {"waiting": 3, "running": 2, "kv_usage": 0.4, "max_adapters": 2}
    pool = EndpointView([endpoint(name, **metrics) for name in "abc"])

    scores = make().score(asked, pool)

    assert len(set(scores)) == 1


@every_scorer
def test_a_stale_endpoint_is_not_the_favourite(make: Callable[[], Scorer]) -> None:
    """Its metrics read zero, which would make it look idle (a new endpoint, or one unreachable)."""
    busy = {"waiting": 5, "running": 8, "kv_usage": 0.9, "max_adapters": 1}
    known = [endpoint("a", **busy, running_adapters=frozenset({"x"})), endpoint("b", **busy)]
    unknown = endpoint("c", stale=True, running_adapters=frozenset({"m"}))

    *scores, of_unknown = make().score(request(model="m"), EndpointView([*known, unknown]))

    assert of_unknown <= max(scores)
