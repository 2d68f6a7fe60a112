"""
A profile run: filter, then score, then pick, over one view of the candidates.

A plain function of its arguments. A filter that raises fails the run, for it is a constraint; a
scorer that raises, or returns the wrong number of scores, counts 0 for every endpoint; where the
picker raises or picks nothing, the first of the best scores is taken.
"""

import math
from collections.abc import Sequence
from operator import add

from epp.config.loader import BuiltProfile
from epp.framework import (
    Endpoint,
    EndpointView,
    EPPError,
    Filter,
    InferenceRequest,
    Picker,
    PluginInstance,
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
        self._filters: list[tuple[Filter, PluginCall, str]] = [
            (one.plugin, metrics.plugin("filter", one), one.name) for one in built.filters
        ]
        self._scorers = [_Scorer(one, weight, metrics) for one, weight in built.scorers]
        self._views: dict[str, EndpointView] = {}
        self._picker: Picker = built.picker.plugin
        self._picker_call = metrics.plugin("picker", built.picker)

    def run(self, request: InferenceRequest, endpoints: EndpointView) -> ProfileResult:
        """
        Return what this profile chooses.

        Raises Saturated where the filters keep nothing, PluginFailed where a filter fails.
        """
        removed: dict[str, Sequence[Endpoint]] = {}
        kept = self.keep(request, endpoints, removed)
        scores: dict[str, Sequence[float]] = {}
        # What is the same for all changes no choice: only columns that differ cost a pass.
        alike = 0.0
        differing: list[_Scorer] = []
        count = len(kept)
        for scorer in self._scorers:
            column, is_alike = scorer.scores(request, kept, count)
            scores[scorer.name] = column
            if is_alike:
                alike += scorer.weight * column[0]
            else:
                differing.append(scorer)
        scored = ScoredView(kept, _totals(alike, differing, count))
        return ProfileResult(self._pick(request, scored), kept, scores, removed)

    def keep(
        self,
        request: InferenceRequest,
        endpoints: EndpointView,
        removed: dict[str, Sequence[Endpoint]],
    ) -> EndpointView:
        """Return those that the filters keep, and note the others; raises as `run` does."""
        for plugin, call, name in self._filters:
            with call:
                kept = plugin.filter(request, endpoints)
                if len({*map(id, kept)}) != len(kept):
                    raise ValueError("the filter returned an endpoint twice")
            if not kept:
                message = f"no endpoint may serve the request: filter {name} removed all"
                raise Saturated(message)
            if len(kept) != len(endpoints):
                stay = set(map(id, kept))
                removed[name] = [one for one in endpoints if id(one) not in stay]
                endpoints = self._views[name] = self._view(name, kept)
        return endpoints

    def _view(self, name: str, kept: Sequence[Endpoint]) -> EndpointView:
        """Return what a filter kept as a view; with the columns of the last, if it is the same."""
        last = self._views.get(name)
        return EndpointView(kept) if last is None else last.over(kept)

    def _pick(self, request: InferenceRequest, scored: ScoredView) -> Sequence[ScoredEndpoint]:
        try:
            with self._picker_call:
                picked = self._picker.pick(request, scored)
                if not picked:
                    raise ValueError("the picker picked nothing")
                if not all(isinstance(one, ScoredEndpoint) for one in picked):
                    raise TypeError("the picker picked what is no scored endpoint")
        except EPPError:
            return [scored[scored.scores.index(max(scored.scores))]]
        return picked


def _totals(alike: float, differing: "Sequence[_Scorer]", count: int) -> list[float]:
    """Return the weighted sum of the columns, and of what is alike, for each endpoint."""
    if not differing:
        return [alike] * count
    # What is alike goes into the first column, and the others, which may be of an earlier request,
    # are added as they are.
    first, *others = differing
    weight = first.weight
    totals = [alike + weight * score for score in first.checked]
    for scorer in others:
        totals = list(map(add, totals, scorer.weighted()))
    return totals


class _Scorer:
    """One scorer of a profile, with its weight and what its last scores were found to be."""

    __slots__ = ("_alike", "_call", "_copy", "_plugin", "_weighted", "checked", "name", "weight")

    def __init__(self, instance: PluginInstance, weight: float, metrics: Metrics) -> None:
        self.name = instance.name
        self.weight = weight
        self._plugin: Scorer = instance.plugin
        self._call = metrics.plugin("scorer", instance)
        self.checked: Sequence[float] = ()
        """The last scores, each in [0, 1]."""
        self._copy: Sequence[float] = ()
        self._weighted: Sequence[float] | None = None
        self._alike = False

    def scores(
        self, request: InferenceRequest, endpoints: EndpointView, count: int
    ) -> tuple[Sequence[float], bool]:
        """Return so many scores, each in [0, 1], all 0 if it fails; and whether all are alike."""
        try:
            with self._call:
                scores = self._plugin.score(request, endpoints)
                if scores is self.checked and scores == self._copy and len(scores) == count:
                    return scores, self._alike
                if len(scores) != count:
                    message = f"{len(scores)} scores for {count} endpoints"
                    raise ValueError(message)
                checked, alike = _checked(scores, count)
        except EPPError:
            return [0.0] * count, True
        # A scorer may return the same again, but may also have changed it.
        self.checked, self._copy, self._alike = checked, checked[:], alike
        self._weighted = None
        return checked, alike

    def weighted(self) -> Sequence[float]:
        """Return the last scores times the weight; made once where they stay the same."""
        if self._weighted is None:
            weight = self.weight
            self._weighted = [weight * score for score in self.checked]
        return self._weighted


def _checked(scores: Sequence[float], count: int) -> tuple[Sequence[float], bool]:
    """Return scores with what is out of range made to fit, and whether all are alike."""
    first = scores[0]
    if scores[-1] == first and scores.count(first) == count:
        alike = _clamped(first)
        return scores if alike == first else [alike] * count, True
    # What is no number may hide from min and max, but makes the sum none.
    if not 0.0 <= min(scores) <= max(scores) <= 1.0 or math.isnan(sum(scores)):
        scores = [_clamped(score) for score in scores]
    return scores, False


def _clamped(score: float) -> float:
    return 0.0 if math.isnan(score) else min(1.0, max(0.0, score))
