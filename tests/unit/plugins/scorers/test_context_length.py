"""Endpoints for prompts of certain lengths, as a preference and as a constraint."""

import pytest

from epp.framework import PROMPT_TOKENS, EndpointView, InferenceRequest
from epp.testing import assert_conforms, endpoint, request
from epp_plugins.scorers.context_length import DEFAULT_LABEL, ContextLengthScorer


def pool(*ranges: str | None) -> EndpointView:
    return EndpointView(
        [
            endpoint(str(at), labels={} if one is None else {DEFAULT_LABEL: one})
            for at, one in enumerate(ranges)
        ]
    )


def of_length(tokens: int) -> InferenceRequest:
    asked = request()
    asked.attributes.put(PROMPT_TOKENS, tokens)
    return asked


def score(tokens: int, *ranges: str | None) -> list[float]:
    return list(ContextLengthScorer().score(of_length(tokens), pool(*ranges)))


@pytest.mark.parametrize("filters", [False, True])
def test_it_keeps_the_promises_of_its_extension_points(*, filters: bool) -> None:
    assert_conforms(lambda: ContextLengthScorer(enable_filtering=filters))


@pytest.mark.parametrize(
    ("tokens", "text", "expected"),
    [
        pytest.param(0, "0-10000", 0.3 + 0.7 * (0.35 + 0.3), id="the-formula-within"),
        pytest.param(9999, "0-10000", 0.3 + 0.7 * (0.35 + 0.3 / 10000), id="little-room"),
        pytest.param(7, "7-7", 1.0, id="a-range-of-one-length"),
        pytest.param(0, "1000-2000", 0.15, id="the-formula-below"),
        pytest.param(3000, "0-2000", 0.15, id="the-formula-above"),
        pytest.param(0, None, 0.5, id="unlabelled"),
    ],
)
def test_the_score_is_the_fit(tokens: int, text: str | None, expected: float) -> None:
    assert score(tokens, text) == [pytest.approx(expected)]


def test_a_narrow_range_is_better_than_a_wide_one() -> None:
    narrow, wide = score(0, "0-20", "0-10000")

    assert narrow > wide > 0.3


@pytest.mark.parametrize(
    ("tokens", "ranges"),
    [(9000, ("0-2048", "0-8192")), (50, ("500-2048", "100-1024"))],
)
def test_outside_the_nearer_range_is_better(tokens: int, ranges: tuple[str, str]) -> None:
    far, near = score(tokens, *ranges)

    assert 0.0 < far < near < 0.3


def test_inside_is_better_than_outside() -> None:
    inside, outside = score(14999, "0-15000", "15001-20000")

    assert inside > 0.3 > outside


@pytest.mark.parametrize("text", ["", "0-100-200", "100-50", "abc-100", "-5-10", "5", "1-²"])
def test_a_label_that_is_no_range_scores_nothing_and_is_filtered_out(text: str) -> None:
    bad = pool(text, "0-10")

    assert score(5, text) == [0.0]
    assert list(ContextLengthScorer(enable_filtering=True).filter(of_length(5), bad)) == [bad[1]]


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [(0, [0, 3]), (100, [0, 1, 3]), (101, [1, 3]), (200, [1, 2, 3]), (999, [3])],
)
def test_the_filter_keeps_ranges_with_the_length_and_the_unlabelled(
    tokens: int, expected: list[int]
) -> None:
    endpoints = pool("0-100", " 100 - 200 ", "200-300", None)

    kept = ContextLengthScorer(enable_filtering=True).filter(of_length(tokens), endpoints)

    assert [endpoints[at] for at in expected] == list(kept)


def test_without_filtering_everybody_is_kept() -> None:
    endpoints = pool("0-10", "nonsense")

    assert list(ContextLengthScorer().filter(of_length(99), endpoints)) == list(endpoints)


def test_without_a_producer_the_length_is_a_quarter_of_the_prompts_bytes() -> None:
    scores = ContextLengthScorer().score(request("x" * 399), pool("100-100", "99-99"))

    assert scores[0] == 1.0 > scores[1]


def test_another_label_can_be_read() -> None:
    endpoints = EndpointView([endpoint("a", labels={"range": "3-3"}), endpoint("b")])

    assert ContextLengthScorer(label="range").score(of_length(3), endpoints) == [1.0, 0.5]


def test_no_label_is_refused() -> None:
    with pytest.raises(ValueError, match=r"parameters\.label must name a label, got ''"):
        ContextLengthScorer(label="")
