"""
Prefer, or keep only, the endpoints that are meant for prompts of the request's length.

A pool may have endpoints tuned for short prompts beside some for long ones. Each says by a label,
`min-max` in tokens, which it is meant for.
"""

from collections.abc import Mapping, Sequence

from epp.framework import (
    PROMPT_TOKENS,
    Endpoint,
    EndpointView,
    Filter,
    InferenceRequest,
    Scorer,
)

DEFAULT_LABEL = "llm-d.ai/context-length-range"
BYTES_PER_TOKEN = 4
"""What a token is taken for where no producer says how many there are."""

UNLABELLED_SCORE = 0.5
OUTSIDE_SCORE = 0.3
"""The best that an endpoint outside the range can score, and the least within."""

_Range = tuple[int, int]


class ContextLengthScorer(Scorer, Filter):
    """
    Within its range an endpoint scores from 0.3 to 1, outside below 0.3, unlabelled 0.5.

    Within, a narrow range is better than a wide one, and one with much room above the prompt better
    than one with little; outside, a range is the worse the farther it is. A label that is no range
    scores 0. With `enableFiltering` the plugin is a filter too: it keeps the endpoints whose range
    has the length, both ends included, and those without a label. Without it the filter keeps all.

    The length is the attribute `prompt-tokens`, or a quarter of the prompt's bytes without it.
    """

    consumes = (PROMPT_TOKENS,)

    def __init__(self, *, label: str = DEFAULT_LABEL, enable_filtering: bool = False) -> None:
        if not label:
            raise ValueError("parameters.label must name a label, got ''")
        self._label = label
        self._filters = enable_filtering
        self._ranges = _Ranges((), label)

    def score(self, request: InferenceRequest, endpoints: EndpointView) -> Sequence[float]:
        """Return how well the length fits the range of each endpoint."""
        length = _length(request)
        ranges = self._ranges_of(endpoints)
        scores = {text: _score(one, length) for text, one in ranges.parsed.items()}
        scores[None] = UNLABELLED_SCORE
        return [scores[text] for text in ranges.texts]

    def filter(self, request: InferenceRequest, endpoints: EndpointView) -> Sequence[Endpoint]:
        """Return the endpoints whose range has the length, and those without a label."""
        if not self._filters:
            return endpoints
        length = _length(request)
        ranges = self._ranges_of(endpoints)
        fits = {text: _fits(text, one, length) for text, one in ranges.parsed.items()}
        if all(fits.values()):
            return endpoints
        return [one for one, text in zip(endpoints, ranges.texts, strict=True) if fits[text]]

    def _ranges_of(self, endpoints: EndpointView) -> "_Ranges":
        if self._ranges.rows is not endpoints.rows:
            self._ranges = _Ranges(endpoints.rows, self._label)
        return self._ranges


class _Ranges:
    """The labels of a pool as it is now, and each different one parsed."""

    def __init__(self, rows: tuple[Endpoint, ...], label: str) -> None:
        self.rows = rows
        self.texts = [one.labels.get(label) for one in rows]
        self.parsed: Mapping[str | None, _Range | None] = {
            text: None if text is None else _parse(text) for text in set(self.texts)
        }


def _parse(text: str) -> _Range | None:
    """Return the range that a label says, None where it says none."""
    ends = [end.strip() for end in text.split("-")]
    if len(ends) != 2 or not all(
        end.isascii() and end.isdecimal() and len(end) < 16 for end in ends
    ):
        return None
    least, most = int(ends[0]), int(ends[1])
    return (least, most) if least <= most else None


def _score(one: _Range | None, length: int) -> float:
    if one is None:
        return 0.0
    least, most = one
    if not least <= length <= most:
        distance = least - length if length < least else length - most
        return OUTSIDE_SCORE / (1.0 + distance / 1000)
    width = most - least
    if not width:
        return 1.0
    narrow = 1.0 / (1.0 + width / 10_000)
    room = (most - length) / width
    return OUTSIDE_SCORE + (1.0 - OUTSIDE_SCORE) * (0.7 * narrow + 0.3 * room)


def _fits(text: str | None, one: _Range | None, length: int) -> bool:
    return text is None or (one is not None and one[0] <= length <= one[1])


def _length(request: InferenceRequest) -> int:
    tokens = request.attributes.get(PROMPT_TOKENS)
    return -(-len(request.prompt) // BYTES_PER_TOKEN) if tokens is None else tokens
