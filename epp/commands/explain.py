"""
`epp explain`: why a request went where it went, asked of a running picker.
"""

import json
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

from rich.console import Group, RenderableType
from rich.table import Table

from epp.framework import ConfigError

_TIMEOUT_SECONDS = 5.0


def fetch(address: str) -> list[dict[str, Any]]:
    """Return a picker's recent decisions, oldest first; `address` is HOST:PORT of its pages."""
    url = f"http://{address}/debug/decisions"
    try:
        with urlopen(url, timeout=_TIMEOUT_SECONDS) as answer:
            decisions: list[dict[str, Any]] = json.load(answer)["decisions"]
    except (URLError, OSError, ValueError, KeyError) as error:
        reason = getattr(error, "reason", None) or error
        message = f"{url}: no decisions there: {reason}"
        raise ConfigError(message) from error
    return decisions


def find(decisions: list[dict[str, Any]], request_id: str | None) -> dict[str, Any]:
    """Return the latest decision, of all or about a request; ConfigError where there is none."""
    matching = [one for one in decisions if request_id in (None, one["request_id"])]
    if matching:
        return matching[-1]
    if request_id is None:
        raise ConfigError("the picker has decided nothing yet")
    message = (
        f"no decision about {request_id!r} among the last {len(decisions)}; the picker keeps the"
        " latest ones only"
    )
    raise ConfigError(message)


def table(decision: dict[str, Any]) -> RenderableType:
    """Return a decision as tables, one for each profile that ran."""
    head = (
        f"request {decision['request_id']}, model {decision['model'] or '-'},"
        f" {decision['age_seconds']:.1f} s ago -> {decision['endpoint']}"
        f" ({decision['destination']}, profile {decision['primary']})"
    )
    parts: list[RenderableType] = [head]
    for name, profile in decision["profiles"].items():
        parts.append(profile_table(name, profile))
        parts += [
            f"filter {filter_name} removed {', '.join(gone)}"
            for filter_name, gone in profile["removed"].items()
        ]
    return Group(*parts)


def profile_table(name: str, profile: dict[str, Any]) -> Table:
    """Return the candidates of one profile run, the best first, with plain and weighted scores."""
    candidates = profile["candidates"]
    scorers = list(candidates[0]["scores"]) if candidates else []
    shown = Table(
        "",
        "endpoint",
        "total",
        *scorers,
        "metrics",
        title=f"profile {name}, {profile['candidate_count']} candidates",
    )
    for one in candidates:
        age = one["metrics_age_seconds"]
        shown.add_row(
            "*" if one["endpoint"] in profile["picked"] else "",
            one["endpoint"],
            f"{one['total']:.3f}",
            *(f"{one['scores'][key]:.3f} -> {one['weighted'][key]:.3f}" for key in scorers),
            "none" if age is None else f"{age:.1f} s old{', stale' if one['stale'] else ''}",
        )
    return shown
