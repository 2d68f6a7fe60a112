"""
Statistics of a sample: percentiles, and the mean over seeds with its spread.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev


@dataclass(frozen=True, slots=True)
class Spread:
    """A figure over several seeds: its mean and its standard deviation, 0 for one seed."""

    mean: float
    std: float


def spread(values: Iterable[float]) -> Spread:
    """Return the mean and the standard deviation of at least one value."""
    values = list(values)
    return Spread(fmean(values), stdev(values) if len(values) > 1 else 0.0)


def percentile(values: Sequence[float], percent: float) -> float:
    """Return a percentile, interpolated between the values around it; 0 of none at all."""
    if not values:
        return 0.0
    ordered = sorted(values)
    below, rest = divmod((len(ordered) - 1) * percent / 100, 1)
    low = ordered[int(below)]
    return low + (ordered[min(int(below) + 1, len(ordered) - 1)] - low) * rest


def mean(values: Sequence[float]) -> float:
    """Return the mean; 0 of none at all."""
    return fmean(values) if values else 0.0
