"""
A profile run: filter, then score, then pick, over one view of the candidates.

A plain function of its arguments. A filter that raises fails the run, for it is a constraint; a
scorer that raises, or returns the wrong number of scores, counts 0 for every endpoint; where the
picker raises or picks nothing, the first of the best scores is taken.
"""

import math
from collections.abc import Sequence

from epp.config.loader import BuiltProfile
from epp.framework import (
    EndpointView,
    EPPError,
    Filter,
    InferenceRequest,
    Picker,
    ProfileResult,
    Saturated,
    ScoredEndpoint,
    ScoredView,
    Scorer,
)
from epp.observability.metrics import Metrics, PluginCall


class SchedulerProfile:
    """The plugins of one profile, each with the timer that contains its failures."""

    def __init__(self, built: BuiltProfile, metrics: Metrics) -> None:
        self.name = built.name
        self._filters: list[tuple[Filter, PluginCall]] = [
            (one.plugin, metrics.plugin("filter", one)) for one in built.filters
        ]
        self._scorers: list[tuple[Scorer, PluginCall, str, float]] = [
            (one.plugin, metrics.plugin("scorer", one), one.name, weight)
            for one, weight in built.scorers
        ]
        self._picker: Picker = built.picker.plugin
        self._picker_call = metrics.plugin("picker", built.picker)

    def run(self, request: InferenceRequest, endpoints: EndpointView) -> ProfileResult:
        """
        Return what this profile chooses.

        Raises Saturated where the filters keep nothing, PluginFailed where a filter fails.
        """
        kept = self.keep(request, endpoints)
        scores: dict[str, Sequence[float]] = {}
        # What is the same for all changes no choice: only columns that differ cost a pass.
        alike = 0.0
        differing: list[tuple[float, Sequence[float]]] = []
        for scorer, call, name, weight in self._scorers:
            column, is_alike = _scores(scorer, call, request, kept)
            scores[name] = column
            if is_alike:
                alike += weight * column[0]
            else:
                differing.append((weight, column))
        scored = ScoredView(kept, _totals(alike, differing, len(kept)))
        return ProfileResult(self._pick(request, scored), kept, scores)

    def keep(self, request: InferenceRequest, endpoints: EndpointView) -> EndpointView:
        """Return the endpoints that the filters keep; raises as `run` does."""
        for plugin, call in self._filters:
            with call:
                kept = plugin.filter(request, endpoints)
            if not kept:
                raise Saturated("no endpoint may serve the request: its filters removed all")
            if len(kept) != len(endpoints):
                endpoints = EndpointView(kept)
        return endpoints

    def _pick(self, request: InferenceRequest, scored: ScoredView) -> Sequence[ScoredEndpoint]:
        try:
            with self._picker_call:
                picked = self._picker.pick(request, scored)
                if not picked:
                    raise ValueError("the picker picked nothing")
        except EPPError:
            return [scored[scored.scores.index(max(scored.scores))]]
        return picked


def _totals(
    alike: float, differing: Sequence[tuple[float, Sequence[float]]], count: int
) -> list[float]:
    """Return the weighted sum of the columns, and of what is alike, for each endpoint."""
    if not differing:
        return [alike] * count
    weight, column = differing[0]
    if len(differing) == 1:
        return [alike + weight * score for score in column]
    # Two columns in one pass: that is the usual case, and a pass is what costs.
    second, other = differing[1]
    totals = [alike + weight * one + second * two for one, two in zip(column, other, strict=True)]
    for weight, column in differing[2:]:
        totals = [total + weight * score for total, score in zip(totals, column, strict=True)]
    return totals


def _scores(
    scorer: Scorer, call: PluginCall, request: InferenceRequest, endpoints: EndpointView
) -> tuple[Sequence[float], bool]:
    """Return the scorer's scores, each in [0, 1], all 0 if it fails; and whether all are alike."""
    count = len(endpoints)
    try:
        with call:
            scores = scorer.score(request, endpoints)
            if len(scores) != count:
                message = f"{len(scores)} scores for {count} endpoints"
                raise ValueError(message)
            if scores.count(scores[0]) == count:
                alike = _clamped(scores[0])
                return scores if alike == scores[0] else [alike] * count, True
            # What is no number may hide from min and max, but makes the sum none.
            if not 0.0 <= min(scores) <= max(scores) <= 1.0 or math.isnan(sum(scores)):
                scores = [_clamped(score) for score in scores]
    except EPPError:
        return [0.0] * count, True
    return scores, False


def _clamped(score: float) -> float:
    return 0.0 if math.isnan(score) else min(1.0, max(0.0, score))
