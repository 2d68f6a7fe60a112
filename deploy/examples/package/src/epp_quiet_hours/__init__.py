"""Keep endpoints out of sight while their label says that they rest."""

from collections.abc import Sequence
from datetime import UTC, datetime

from epp.framework import Endpoint, EndpointView, InferenceRequest


class QuietHoursFilter:
    """
    Removes endpoints in the hours (UTC) that their label names, as `quiet-hours: 22-6`.

    One whose label is absent, or no two hours, never rests. Where all rest, none does.
    """

    def __init__(self, *, label: str = "quiet-hours", hour: int | None = None) -> None:
        self._label = label
        self._hour = hour

    def filter(self, request: InferenceRequest, endpoints: EndpointView) -> Sequence[Endpoint]:
        """Return those that do not rest now, in their order."""
        hour = datetime.now(UTC).hour if self._hour is None else self._hour
        awake = [one for one in endpoints if not rests(one.labels.get(self._label, ""), hour)]
        return awake or list(endpoints)


def rests(hours: str, hour: int) -> bool:
    """Whether an hour is within `FROM-TO`, which may go past midnight; TO itself is not."""
    first, _, last = hours.partition("-")
    if not (first.isdecimal() and last.isdecimal()):
        return False
    start, end = int(first), int(last)
    return start <= hour < end if start <= end else hour >= start or hour < end
