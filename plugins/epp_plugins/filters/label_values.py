"""
Keep the endpoints that have one of the given values in a label.

The older way to select by one label; `label-selector-filter` can say all that this one can.
"""

from collections.abc import Sequence

from epp.framework import Endpoint, EndpointView, Filter, InferenceRequest


class LabelValuesFilter(Filter):
    """
    An endpoint is kept where the value of `label` is among `validValues`.

    With `allowsNoLabel` those without the label are kept too. Where none is left, the request is
    rejected.
    """

    def __init__(
        self, *, label: str, valid_values: list[str] | None = None, allows_no_label: bool = False
    ) -> None:
        if not label:
            raise ValueError("parameters.label must name a label, got ''")
        if not valid_values and not allows_no_label:
            raise ValueError("parameters.validValues must not be empty without allowsNoLabel")
        # Every value is a string, so None stands for a label that is not there.
        self._values = {*(valid_values or []), *([None] if allows_no_label else [])}
        self._label = label
        self._rows: tuple[Endpoint, ...] | None = None
        self._kept: tuple[Endpoint, ...] = ()

    def filter(self, request: InferenceRequest, endpoints: EndpointView) -> Sequence[Endpoint]:
        """Return the endpoints with one of the values; the same for the same candidates."""
        if endpoints.rows is not self._rows:
            label, values = self._label, self._values
            self._kept = tuple([one for one in endpoints if one.labels.get(label) in values])
            self._rows = endpoints.rows
        return self._kept
