"""
Acceptance cases as data: read from tests/data/cases, and accounted for one by one.

Each area's test module says of every case that binds (`must`, `should`) either how it is tested, or
why this picker differs or has no room for it yet; `unaccounted` names those it forgot.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parents[1] / "data" / "cases"

Check = Callable[..., Any]


class Checks(dict[str, Check]):
    """How the cases of an area are checked, by their id."""

    def register(self, *names: str) -> Callable[[Check], Check]:
        """Register the decorated function for cases that have no check yet."""

        def register(check: Check) -> Check:
            assert not self.keys() & set(names), f"{names} have a check already"
            self.update(dict.fromkeys(names, check))
            return check

        return register


def load(area: str) -> dict[str, dict[str, Any]]:
    """Return the cases of an area by their id."""
    return {case["id"]: case for case in yaml.safe_load((FOLDER / f"{area}.yaml").read_text())}


def binding(cases: dict[str, dict[str, Any]]) -> set[str]:
    """Return the ids of the cases that bind."""
    return {name for name, case in cases.items() if case["binding"] in ("must", "should")}


def unaccounted(
    cases: dict[str, dict[str, Any]], tested: Iterable[str], differing: Iterable[str]
) -> set[str]:
    """Return the binding cases that are neither tested nor given a reason."""
    return binding(cases) - set(tested) - set(differing)
