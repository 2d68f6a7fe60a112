"""Sessions stay with the endpoint that served them: by the client's token, or by a session's id."""

import base64
from typing import Any

import pytest

from epp.framework import (
    Endpoint,
    EndpointView,
    InferenceRequest,
    PluginContext,
    ProfileResult,
    SchedulingResult,
    ScoredEndpoint,
    TerminationCause,
)
from epp.testing import assert_conforms, choice, endpoint, request
from epp_plugins.scorers.session_affinity import (
    MAX_SESSIONS,
    EncodedEndpointHeaderConfig,
    SessionAffinityFilter,
    SessionAffinityScorer,
    SessionIdConfig,
    Source,
)

A, B = endpoint("endpoint-a"), endpoint("endpoint-b", port=8001)
POOL = EndpointView([A, B])


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def session_filter(clock: Clock | None = None, **parameters: Any) -> SessionAffinityFilter:
    return SessionAffinityFilter(
        context=PluginContext("sessions", clock=clock or Clock()), **parameters
    )


def by_id(clock: Clock | None = None, **config: Any) -> SessionAffinityFilter:
    return session_filter(clock, strategy="session_id", session_id_config=SessionIdConfig(**config))


def token(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def asked(**headers: str) -> InferenceRequest:
    return request(headers={name.replace("_", "-"): value for name, value in headers.items()})


def kept(plugin: SessionAffinityFilter, session: str, *pool: Endpoint) -> list[Endpoint]:
    return list(plugin.filter(asked(x_session_id=session), EndpointView(pool or POOL)))


def send(plugin: SessionAffinityFilter, session: str, to: Endpoint, *pool: Endpoint) -> None:
    plugin.pre_request(asked(x_session_id=session), choice(to, pool or POOL))


@pytest.mark.parametrize("strategy", ["encoded_endpoint_header", "session_id"])
@pytest.mark.parametrize("plugin", [SessionAffinityFilter, SessionAffinityScorer])
def test_it_keeps_the_promises_of_its_extension_points(plugin: Any, strategy: Any) -> None:
    assert_conforms(lambda: plugin(context=PluginContext("sessions"), strategy=strategy))


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        pytest.param({"x_session_token": token("default/endpoint-b")}, [B], id="its-endpoint"),
        pytest.param({}, [A, B], id="no-token"),
        pytest.param({"x_session_token": "%%%"}, [A, B], id="no-base64"),
        pytest.param({"x_session_token": "ä"}, [A, B], id="no-ascii"),
        pytest.param({"x_session_token": "//79"}, [A, B], id="no-text"),
        pytest.param({"x_session_token": token("endpoint-b")}, [A, B], id="no-namespace"),
        pytest.param({"x_session_token": token("default/gone")}, [A, B], id="no-candidate"),
        pytest.param({"x_session_token": token("other/endpoint-b")}, [A, B], id="elsewhere"),
        pytest.param({"x_session_token": token("default/" + "b" * 2000)}, [A, B], id="too-long"),
    ],
)
def test_a_token_leads_to_its_endpoint(headers: dict[str, str], expected: list[Endpoint]) -> None:
    assert list(session_filter().filter(asked(**headers), POOL)) == expected


def test_a_token_in_the_default_header_is_nothing_where_another_is_configured() -> None:
    plugin = session_filter(encoded_endpoint_header_config=EncodedEndpointHeaderConfig("X-Mine"))
    name = token("default/endpoint-b")

    assert list(plugin.filter(asked(x_session_token=name), POOL)) == [A, B]
    assert list(plugin.filter(asked(x_mine=name), POOL)) == [B]


def test_the_scorer_prefers_what_the_filter_would_keep() -> None:
    scorer = SessionAffinityScorer(context=PluginContext("sessions"))

    assert scorer.score(asked(x_session_token=token("default/endpoint-b")), POOL) == [0.0, 1.0]
    assert scorer.score(asked(), POOL) == [0.0, 0.0]


def test_namespaces_tell_endpoints_of_one_name_apart() -> None:
    twin = Endpoint(type(A.id)("other", "endpoint-a"), "10.0.0.9", 8000)

    twins = EndpointView([A, twin])

    assert list(session_filter().filter(asked(x_session_token=token(str(twin.id))), twins)) == [
        twin
    ]


def test_the_response_names_the_endpoint_chosen() -> None:
    rank = endpoint("pod-rank-0")

    headers = session_filter().response_headers(asked(), choice(rank))

    assert headers == {"x-session-token": token("default/pod-rank-0")}


@pytest.mark.parametrize(
    ("profile", "expected"),
    [
        pytest.param("", "default/endpoint-a", id="of-the-profile-routed-to"),
        pytest.param("second", "default/endpoint-b", id="of-the-profile-named"),
        pytest.param("third", None, id="not-of-a-profile-that-did-not-run"),
    ],
)
def test_the_token_is_of_one_profile(profile: str, expected: str | None) -> None:
    profiles = {
        name: ProfileResult([ScoredEndpoint(one, 1.0)], POOL, {})
        for name, one in (("first", A), ("second", B))
    }
    plugin = session_filter(profile_name=profile)

    headers = plugin.response_headers(asked(), SchedulingResult(profiles, "first"))

    assert headers == ({} if expected is None else {"x-session-token": token(expected)})


def test_a_session_stays_where_it_was_first_sent() -> None:
    plugin = by_id()
    first = kept(plugin, "s1")
    send(plugin, "s1", B)

    assert first == [A, B]
    assert kept(plugin, "s1") == [B]
    assert kept(plugin, "s2") == [A, B]
    assert plugin.response_headers(asked(), choice(B)) == {}


def test_a_request_without_an_id_belongs_to_no_session() -> None:
    plugin = by_id()
    plugin.pre_request(asked(), choice(A))

    assert list(plugin.filter(asked(), POOL)) == [A, B]
    assert plugin.dump_state() == {"sessions": 0}


def test_a_session_moves_where_its_endpoint_is_no_candidate() -> None:
    plugin = by_id()
    send(plugin, "s1", B)
    without = kept(plugin, "s1", A)
    send(plugin, "s1", A, A)

    assert without == [A]
    assert kept(plugin, "s1") == [A]


def test_a_choice_made_for_other_reasons_does_not_move_it() -> None:
    plugin = by_id()
    send(plugin, "s1", B)
    send(plugin, "s1", A)

    assert kept(plugin, "s1") == [B]


def test_a_new_process_under_the_name_is_another_endpoint() -> None:
    plugin = by_id()
    send(plugin, "s1", B)
    again = endpoint("endpoint-b", port=8001)

    assert kept(plugin, "s1", A, again) == [A, again]


@pytest.mark.parametrize(
    ("cause", "expected"),
    [
        (TerminationCause.MODEL_SERVER_ERROR, [A, B]),
        (TerminationCause.COMPLETED, [B]),
        (TerminationCause.CLIENT_DISCONNECTED, [B]),
    ],
)
def test_a_server_error_lets_the_session_go(
    cause: TerminationCause, expected: list[Endpoint]
) -> None:
    plugin = by_id()
    send(plugin, "s1", B)
    plugin.on_response_complete(asked(x_session_id="s1"), choice(B), cause, None)

    assert kept(plugin, "s1") == expected


def test_a_late_error_of_a_former_endpoint_does_not_unbind() -> None:
    plugin = by_id()
    send(plugin, "s1", A, A)
    send(plugin, "s1", B, B)
    result, error = choice(A), TerminationCause.MODEL_SERVER_ERROR
    plugin.on_response_complete(asked(x_session_id="s1"), result, error, None)

    assert kept(plugin, "s1") == [B]


def test_each_request_of_a_session_prolongs_it() -> None:
    clock = Clock()
    plugin = by_id(clock)
    send(plugin, "s1", B)
    clock.now += 299.0
    send(plugin, "s1", B)
    clock.now += 299.0

    assert kept(plugin, "s1") == [B]


def test_a_session_ends_without_requests() -> None:
    clock = Clock()
    plugin = by_id(clock)
    send(plugin, "s1", B)
    clock.now += 301.0

    assert kept(plugin, "s1") == [A, B]


def test_sessions_that_ended_are_swept() -> None:
    clock = Clock()
    plugin = by_id(clock, eviction_ttl_seconds=5.0, eviction_sweep_seconds=10.0)
    send(plugin, "s1", B)
    clock.now += 6.0
    send(plugin, "s2", B)
    before = plugin.dump_state()
    clock.now += 4.0
    send(plugin, "s3", B)

    assert (before, plugin.dump_state()) == ({"sessions": 2}, {"sessions": 2})
    assert kept(plugin, "s2") == [B]


def test_sessions_are_bounded_in_number() -> None:
    plugin = by_id()
    for at in range(MAX_SESSIONS + 10):
        send(plugin, str(at), B)

    assert plugin.dump_state() == {"sessions": MAX_SESSIONS}
    assert (kept(plugin, "9"), kept(plugin, "10")) == ([A, B], [B])


def test_the_first_source_that_says_something_counts() -> None:
    plugin = by_id(sources=[Source("X-First"), Source("x-second")])
    plugin.pre_request(asked(x_second="s1"), choice(B, POOL))

    assert list(plugin.filter(asked(x_first="", x_second="s1"), POOL)) == [B]
    assert list(plugin.filter(asked(x_first="other", x_second="s1"), POOL)) == [A, B]


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        pytest.param(
            {"strategy": "session_id", "session_id_config": SessionIdConfig(sources=[])},
            r"sessionIdConfig\.sources must not be empty",
            id="no-sources",
        ),
        pytest.param(
            {
                "strategy": "session_id",
                "session_id_config": SessionIdConfig([Source(attribute="agent-identity")]),
            },
            r"sources\[0\]\.attribute: .* by a request header only, got 'agent-identity'",
            id="an-attribute",
        ),
        pytest.param(
            {"strategy": "session_id", "session_id_config": SessionIdConfig([Source()])},
            r"sources\[0\]\.header must name a header",
            id="a-source-of-nothing",
        ),
        pytest.param(
            {
                "strategy": "session_id",
                "session_id_config": SessionIdConfig(eviction_ttl_seconds=0.0),
            },
            r"evictionTtlSeconds must be above 0 and at most 1e\+09, got 0\.0",
            id="no-time",
        ),
        pytest.param(
            {"session_id_config": SessionIdConfig()},
            r"sessionIdConfig must not be given where the strategy is encoded_endpoint_header",
            id="the-other-strategys-section",
        ),
        pytest.param(
            {
                "strategy": "session_id",
                "encoded_endpoint_header_config": EncodedEndpointHeaderConfig(),
            },
            r"encodedEndpointHeaderConfig must not be given where the strategy is session_id",
            id="the-one-strategys-section",
        ),
        pytest.param(
            {"encoded_endpoint_header_config": EncodedEndpointHeaderConfig("")},
            r"encodedEndpointHeaderConfig\.header must name a header",
            id="no-header",
        ),
        pytest.param(
            {
                "strategy": "session_id",
                "session_id_config": SessionIdConfig([Source(":authority")]),
            },
            r"sources\[0\]\.header must name a header, got ':authority'",
            id="a-pseudo-header",
        ),
    ],
)
def test_a_parameter_that_makes_no_sense_is_refused(
    parameters: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        session_filter(**parameters)


@pytest.mark.parametrize("header", [":path", "x\ny", "x y", "x:", "hé", "x-session-token\n"])
def test_a_header_that_http_does_not_know_is_refused(header: str) -> None:
    with pytest.raises(ValueError, match=r"encodedEndpointHeaderConfig\.header must name a header"):
        session_filter(encoded_endpoint_header_config=EncodedEndpointHeaderConfig(header))


@pytest.mark.parametrize("to", [A, B], ids=["there", "elsewhere"])
def test_a_session_whose_first_request_is_refused_is_bound_to_nobody(to: Endpoint) -> None:
    plugin = by_id()
    first = asked(x_session_id="s")
    plugin.pre_request(first, choice(to, POOL))
    plugin.on_response_complete(first, choice(to, POOL), TerminationCause.REFUSED, None)

    assert kept(plugin, "s") == [A, B]


def test_a_session_that_was_served_stays_where_a_later_request_is_refused() -> None:
    plugin = by_id()
    for cause in (TerminationCause.COMPLETED, TerminationCause.REFUSED):
        turn = asked(x_session_id="s")
        plugin.pre_request(turn, choice(B, POOL))
        plugin.on_response_complete(turn, choice(B, POOL), cause, None)

    assert kept(plugin, "s") == [B]


def test_a_session_goes_where_the_gateway_took_its_request() -> None:
    plugin = by_id()
    send(plugin, "s", A)
    turn = asked(x_session_id="s")
    plugin.pre_request(turn, choice(A, POOL))
    plugin.on_response_complete(turn, choice(A, POOL), TerminationCause.MOVED, None)
    plugin.pre_request(turn, choice(B, POOL))

    assert kept(plugin, "s") == [B]


def test_a_session_stays_where_one_of_its_requests_went_elsewhere_twice() -> None:
    """It was not sent to the session's endpoint, so that the gateway's turn says nothing of it."""
    plugin = by_id()
    pool = [A, B, endpoint("c")]
    send(plugin, "s", A, *pool)
    turn = asked(x_session_id="s")
    plugin.pre_request(turn, choice(B, pool))
    plugin.on_response_complete(turn, choice(B, pool), TerminationCause.MOVED, None)
    plugin.pre_request(turn, choice(pool[2], pool))

    assert kept(plugin, "s", *pool) == [A]
