"""The handler that runs the profile which a header names."""

import pytest

from epp.framework import BadRequest, SchedulingResult
from epp.testing import assert_conforms, choice, endpoint, request
from epp_plugins.profile_handlers.header import HeaderProfileHandler

PROFILES = ["encode", "decode"]


def test_it_keeps_the_promises_of_a_handler() -> None:
    assert_conforms(HeaderProfileHandler)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        pytest.param("encode", "encode", id="a-profile"),
        pytest.param("  encode  ", "encode", id="with-spaces"),
        pytest.param(None, "decode", id="no-header"),
        pytest.param("   ", "decode", id="an-empty-one"),
    ],
)
def test_the_profile_that_the_header_names_runs(value: str | None, expected: str) -> None:
    asked = request(headers={} if value is None else {"epp-profile": value})

    assert list(HeaderProfileHandler().pick_profiles(asked, PROFILES, {})) == [expected]


@pytest.mark.parametrize("value", ["prefill", "Encode"])
def test_a_profile_that_is_none_is_the_clients_mistake(value: str) -> None:
    asked = request(headers={"epp-profile": value})

    with pytest.raises(BadRequest, match="the header epp-profile names no scheduling profile"):
        HeaderProfileHandler().pick_profiles(asked, PROFILES, {})


def test_the_only_profile_runs_whatever_the_header_says() -> None:
    asked = request(headers={"epp-profile": "prefill"})

    assert list(HeaderProfileHandler().pick_profiles(asked, ["mine"], {})) == ["mine"]


def test_header_and_default_can_be_others() -> None:
    handler = HeaderProfileHandler(header_name="X-Stage", default_profile="encode")

    named = handler.pick_profiles(request(headers={"x-stage": "decode"}), PROFILES, {})
    default = handler.pick_profiles(request(headers={"epp-profile": "decode"}), PROFILES, {})

    assert (list(named), list(default)) == (["decode"], ["encode"])


def test_the_profile_runs_once_and_its_result_is_the_result() -> None:
    handler, results = HeaderProfileHandler(), choice(endpoint()).profiles

    assert list(handler.pick_profiles(request(), PROFILES, results)) == []
    assert handler.process_results(request(), results) == SchedulingResult(results, "default")


@pytest.mark.parametrize("name", ["header_name", "default_profile"])
def test_an_empty_name_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"must name a (header|profile), got ''"):
        HeaderProfileHandler(**{name: ""})


@pytest.mark.parametrize("name", [":path", "a b", "a\n", "ä"])
def test_a_name_that_http_does_not_know_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"parameters\.headerName must name a header, got"):
        HeaderProfileHandler(header_name=name)


def test_the_default_profile_is_one_that_must_exist() -> None:
    assert HeaderProfileHandler(default_profile="encode").required_profiles == ("encode",)
