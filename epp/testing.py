"""
The test kit for plugin authors: plain data in one line, and one check that a plugin conforms.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from epp.framework import (
    Endpoint,
    EndpointId,
    EndpointMetrics,
    EndpointView,
    Filter,
    InferenceRequest,
    Picker,
    ScoredView,
    Scorer,
)


def endpoint(
    name: str = "a",
    *,
    address: str = "10.0.0.1",
    port: int = 8000,
    labels: Mapping[str, str] | None = None,
    in_flight: int = 0,
    stale: bool = False,
    **metrics: Any,
) -> Endpoint:
    """Return an endpoint; the further arguments are fields of EndpointMetrics."""
    metrics.setdefault("in_flight_at_update", in_flight)
    made = Endpoint(
        EndpointId("default", name),
        address,
        port,
        labels or {},
        EndpointMetrics(**metrics),
        stale=stale,
    )
    made.load.in_flight = in_flight
    return made


def request(prompt: bytes | str = b"", **fields: Any) -> InferenceRequest:
    """Return a request; the further arguments are fields of InferenceRequest."""
    fields.setdefault("request_id", "test-request")
    fields.setdefault("headers", {})
    return InferenceRequest(prompt=prompt.encode() if isinstance(prompt, str) else prompt, **fields)


def assert_conforms(make_plugin: Callable[[], Any]) -> None:
    """
    Fail with an AssertionError where a plugin breaks the promises of its protocol.

    Scorers, filters and pickers are tried on none, one and several endpoints, fresh and stale.
    """
    pools: Sequence[Sequence[Endpoint]] = [
        [],
        [endpoint()],
        [endpoint("a", waiting=3, running=1, kv_usage=0.5), endpoint("b", address="10.0.0.2")],
        [endpoint("a", stale=True), endpoint("b", stale=True), endpoint("c", waiting=9)],
    ]
    for pool in pools:
        plugin = make_plugin()
        checks: dict[Any, Callable[[Any, Sequence[Endpoint]], None]] = {
            Scorer: _check_scorer,
            Filter: _check_filter,
            Picker: _check_picker,
        }
        kinds = [check for kind, check in checks.items() if isinstance(plugin, kind)]
        assert kinds, f"{plugin!r} is no scorer, filter or picker"
        for check in kinds:
            check(plugin, pool)


def _check_scorer(plugin: Scorer, pool: Sequence[Endpoint]) -> None:
    scores = plugin.score(request("hello"), EndpointView(pool))
    assert len(scores) == len(pool), f"{len(scores)} scores for {len(pool)} endpoints"
    assert all(0.0 <= score <= 1.0 for score in scores), f"a score is outside [0, 1]: {scores}"


def _check_filter(plugin: Filter, pool: Sequence[Endpoint]) -> None:
    kept = list(plugin.filter(request("hello"), EndpointView(pool)))
    places = [next(at for at, one in enumerate(pool) if one is kept_one) for kept_one in kept]
    assert places == sorted(places), "the filter changed the order of the endpoints"


def _check_picker(plugin: Picker, pool: Sequence[Endpoint]) -> None:
    scored = ScoredView(pool, [at / 10 for at in range(len(pool))])
    if scored:
        picked = plugin.pick(request("hello"), scored)
        assert picked, "the picker picked nothing"
        assert all(one in scored for one in picked), "the picker picked a stranger"
        assert len({one.endpoint.id for one in picked}) == len(picked), "an endpoint picked twice"
