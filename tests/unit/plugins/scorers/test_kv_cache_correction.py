"""The KV cache's usage, corrected by what this picker sent and saw end since the scrape."""

import pytest

from epp.framework import PREFIX_MATCH, Endpoint, EndpointView, PrefixMatch, TerminationCause
from epp.testing import assert_conforms, choice, endpoint, request
from epp_plugins.scorers.kv_cache_utilization import KVCacheUtilizationScorer


def cache(name: str = "a", **fields: object) -> Endpoint:
    """An endpoint whose cache holds 1,000 tokens, half of it in use."""
    known = {"kv_usage": 0.5, "num_blocks": 10, "block_size": 100, "in_flight_at_update": 0}
    return endpoint(name, **(known | fields))


def after_sending(prompt: int, *sent: Endpoint) -> KVCacheUtilizationScorer:
    """A scorer that saw requests of so many tokens go."""
    scorer = KVCacheUtilizationScorer()
    for one in sent:
        scorer.pre_request(request(b"x" * 4 * prompt), choice(one))
        one.load.in_flight += 1
    return scorer


def test_it_keeps_the_promises_of_its_extension_points() -> None:
    assert_conforms(KVCacheUtilizationScorer)


def test_with_fresh_metrics_and_nothing_sent_the_scraped_usage_stands() -> None:
    pool = EndpointView([cache(kv_usage=used) for used in (0.8, 0.5, 0.0)])

    scores = after_sending(100).score(request(), pool)

    assert pytest.approx([0.2, 0.5, 1.0]) == scores


def test_requests_sent_since_the_scrape_take_their_share() -> None:
    busy, idle = cache("a"), cache("b")

    scores = after_sending(100, busy, busy).score(request(), EndpointView([busy, idle]))

    assert pytest.approx([0.3, 0.5]) == scores


def test_the_share_follows_each_request_between_two_scrapes() -> None:
    one = cache()
    pool = EndpointView([one])
    scorer = after_sending(100, one)
    before = scorer.score(request(), pool)
    scorer.pre_request(request(b"x" * 400), choice(one))
    one.load.in_flight += 1
    between = scorer.score(request(), pool)
    one.load.in_flight -= 2
    scorer.on_response_complete(request(), choice(one), TerminationCause.COMPLETED, None)

    after = scorer.score(request(), pool)

    assert pytest.approx([0.4, 0.3, 0.5]) == [*before, *between, *after]


def test_a_request_to_an_endpoint_that_is_gone_changes_nothing() -> None:
    pool = EndpointView([cache()])
    scorer = after_sending(100)
    before = scorer.score(request(), pool)
    scorer.on_response_complete(request(), choice(cache()), TerminationCause.COMPLETED, None)

    assert scorer.score(request(), pool) == before == [0.5]


def test_requests_that_ended_since_the_scrape_leave_theirs() -> None:
    one = cache(in_flight_at_update=3)

    scores = after_sending(100, one).score(request(), EndpointView([one]))

    assert pytest.approx([0.7]) == scores


@pytest.mark.parametrize("sent", [50, 0])
def test_the_share_stays_within_the_cache(sent: int) -> None:
    one = cache(in_flight_at_update=0 if sent else 50)

    scores = after_sending(100, *[one] * sent or [cache()]).score(request(), EndpointView([one]))

    assert scores == [0.0 if sent else 1.0]


def test_a_cached_prefix_takes_nothing_new() -> None:
    one = cache()
    scorer = KVCacheUtilizationScorer()
    asked = request(b"x" * 400)
    asked.attributes.put(PREFIX_MATCH, PrefixMatch([3], 4, 100, [one]))
    scorer.pre_request(asked, choice(one))
    one.load.in_flight += 1

    scores = scorer.score(request(), EndpointView([one]))

    assert pytest.approx([0.475]) == scores


@pytest.mark.parametrize("unknown", ["num_blocks", "block_size"])
def test_a_cache_of_unknown_size_is_left_as_scraped(unknown: str) -> None:
    one = cache(**{unknown: 0})

    scores = after_sending(100, one).score(request(), EndpointView([one]))

    assert scores == [0.5]


def test_nothing_is_kept_where_nobody_asks_for_scores() -> None:
    one = cache()
    scorer = after_sending(100)
    before = scorer.score(request(), EndpointView([one]))
    for sent in (one, *[cache() for _ in range(50)]):
        scorer.pre_request(request(b"x" * 400), choice(sent))
        sent.load.in_flight += 1

    assert len(scorer._touched) <= 1
    assert (before, scorer.score(request(), EndpointView([one]))) == ([0.5], [0.4])


def test_a_pool_that_changed_is_scored_anew() -> None:
    scorer = after_sending(100)
    scorer.score(request(), EndpointView([cache(kv_usage=0.9), cache()]))

    assert scorer.score(request(), EndpointView([])) == []
    assert scorer.score(request(), EndpointView([cache()])) == [0.5]
