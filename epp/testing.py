"""
The test kit for plugin authors: plain data in one line, and one check that a plugin conforms.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from epp.framework import (
    DataProducer,
    Endpoint,
    EndpointId,
    EndpointMetrics,
    EndpointView,
    Filter,
    FirstByteObserver,
    InferenceRequest,
    Picker,
    PreRequest,
    ProfileHandler,
    ProfileResult,
    ResponseCompletionObserver,
    ResponseHeaderProvider,
    SchedulingResult,
    ScoredEndpoint,
    ScoredView,
    Scorer,
    TerminationCause,
)

MAX_ROUNDS = 16
"""A profile handler that asks more often than this repeats itself."""


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


def choice(chosen: Endpoint, candidates: Sequence[Endpoint] = ()) -> SchedulingResult:
    """Return the result of a scheduling run whose one profile, `default`, chose the endpoint."""
    profile = ProfileResult([ScoredEndpoint(chosen, 1.0)], candidates or [chosen], {})
    return SchedulingResult({"default": profile}, "default")


def assert_conforms(make_plugin: Callable[[], Any]) -> None:
    """
    Fail with an AssertionError where a plugin breaks the promises of its protocol.

    It is tried on none, one and several endpoints, fresh and stale. What sees requests pass by sees
    one that is answered and one that gets no answer; a producer that waits is not asked to produce.
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
            ProfileHandler: _check_profile_handler,
            **dict.fromkeys(_PASSED_BY, _check_passing_by),
        }
        # One check may stand for several kinds.
        kinds = {check: None for kind, check in checks.items() if isinstance(plugin, kind)}
        assert kinds, f"{plugin!r} has none of the verbs that this kit knows"
        for check in kinds:
            check(plugin, pool)


_PASSED_BY = (
    DataProducer,
    PreRequest,
    ResponseHeaderProvider,
    FirstByteObserver,
    ResponseCompletionObserver,
)
"""What a request passes by on its way, in this order, beside the choice itself."""


def _check_passing_by(plugin: Any, pool: Sequence[Endpoint]) -> None:
    if not pool:
        return
    result = choice(pool[0], pool)
    for answered in (True, False):
        passing = request("hello")
        if isinstance(plugin, DataProducer) and not inspect.iscoroutinefunction(plugin.produce):
            value = plugin.produce(passing, EndpointView(pool))
            passing.attributes.put(plugin.produces, value)
        if isinstance(plugin, PreRequest):
            _check_headers(plugin.pre_request(passing, result))
        if isinstance(plugin, ResponseHeaderProvider):
            _check_headers(plugin.response_headers(passing, result))
        if answered and isinstance(plugin, FirstByteObserver):
            plugin.on_first_byte(passing, result)
        if isinstance(plugin, ResponseCompletionObserver):
            cause = TerminationCause.COMPLETED if answered else TerminationCause.CLIENT_DISCONNECTED
            plugin.on_response_complete(passing, result, cause, None)


def _check_headers(headers: Mapping[str, str]) -> None:
    for name, value in headers.items():
        assert name, "a header has no name"
        assert name == name.lower(), f"the header name {name!r} is not in lower case"
        assert isinstance(value, str), f"the value of {name!r} is no string: {value!r}"


def _check_profile_handler(plugin: ProfileHandler, pool: Sequence[Endpoint]) -> None:
    if not pool:
        return
    asked = request("hello")
    known = choice(pool[0], pool).profiles
    results: dict[str, ProfileResult] = {}
    for _ in range(MAX_ROUNDS):
        names = plugin.pick_profiles(asked, known.keys(), results)
        assert set(names) <= set(known), f"unknown profiles: {sorted(set(names) - set(known))}"
        if not names:
            break
        results |= {name: known[name] for name in names}
    else:
        raise AssertionError("the handler never stops asking for profiles")
    result = plugin.process_results(asked, results)
    assert result.primary in result.profiles, f"{result.primary!r} did not run"


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
