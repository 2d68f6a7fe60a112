"""
Keep the endpoints whose labels match a selector.

The selector is that of Kubernetes (`metav1.LabelSelector`), so that what is written in a Deployment
can be written here. It serves to give a profile its own part of the pool: one hardware, one role.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from epp.framework import Endpoint, EndpointView, Filter, InferenceRequest


class MatchExpression(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """
    One requirement on one label.

    `In` and `NotIn` compare with `values`; `Exists` and `DoesNotExist` take none. As in Kubernetes
    an endpoint without the label satisfies `NotIn`.
    """

    key: str
    operator: Literal["In", "NotIn", "Exists", "DoesNotExist"]
    values: list[str] = []

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Return whether the labels satisfy the requirement."""
        if self.operator == "Exists":
            return self.key in labels
        if self.operator == "DoesNotExist":
            return self.key not in labels
        # Every value is a string, so None stands for a label that is not there.
        listed = labels.get(self.key) in self.values
        return listed if self.operator == "In" else not listed


class LabelSelectorFilter(Filter):
    """
    An endpoint is kept where every label of `matchLabels` and every expression matches.

    A selector without requirements keeps every endpoint. Where none matches, the request is
    rejected: labels are a constraint, not a wish.
    """

    def __init__(
        self,
        *,
        match_labels: dict[str, str] | None = None,
        match_expressions: list[MatchExpression] | None = None,
    ) -> None:
        for place, one in enumerate(match_expressions or []):
            _check(one, f"parameters.matchExpressions[{place}]")
        self._requirements = [
            *(MatchExpression(key, "In", [value]) for key, value in (match_labels or {}).items()),
            *(match_expressions or []),
        ]
        self._rows: tuple[Endpoint, ...] | None = None
        self._kept: tuple[Endpoint, ...] = ()

    def filter(self, request: InferenceRequest, endpoints: EndpointView) -> Sequence[Endpoint]:
        """Return the endpoints that satisfy every requirement; the same for the same candidates."""
        if endpoints.rows is not self._rows:
            kept = endpoints.rows
            for one in self._requirements:
                kept = tuple([endpoint for endpoint in kept if one.matches(endpoint.labels)])
            self._rows, self._kept = endpoints.rows, kept
        return self._kept


def _check(expression: MatchExpression, place: str) -> None:
    """Raise ValueError where the expression says too much or too little."""
    if not expression.key:
        message = f"{place}.key must name a label, got ''"
        raise ValueError(message)
    needs_values = expression.operator in {"In", "NotIn"}
    if needs_values and not expression.values:
        message = f"{place}.values must not be empty where the operator is {expression.operator}"
        raise ValueError(message)
    if expression.values and not needs_values:
        message = f"{place}.values must be empty where the operator is {expression.operator}"
        raise ValueError(message)
