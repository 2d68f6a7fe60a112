"""The command line: flags and variables to options, and errors a person can act on."""

from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from epp import cli
from epp.app import Options


def options(*argv: str) -> Options:
    """The options that a command line makes of itself and the environment."""
    given = dict(cli.serve.make_context("serve", list(argv)).params)
    del given["verbosity"]
    return Options(**given)


def test_the_flags_default_to_the_options_own_defaults() -> None:
    assert options() == Options()


@pytest.mark.parametrize(
    ("argv", "field", "expected"),
    [
        (["--grpc-port", "1"], "grpc_port", 1),
        (["--grpc-port=1"], "grpc_port", 1),
        (["--secure-serving=false"], "secure_serving", False),
        (["--secure-serving"], "secure_serving", True),
        (["--drain-timeout", "1m30s"], "drain_timeout", 90.0),
        (["--drain-timeout", "5"], "drain_timeout", 5.0),
        (["--refresh-metrics-interval", "50ms"], "refresh_metrics_interval", 0.05),
        (["--max-request-bytes", "10Mi"], "max_request_bytes", 10 << 20),
        (["--max-request-bytes", "25MB"], "max_request_bytes", 25_000_000),
        (["--endpoints-file", "x.yaml"], "endpoints_file", Path("x.yaml")),
        (["--bind-address", "::1"], "bind_address", "::1"),
    ],
)
def test_a_flag_sets_its_option(argv: list[str], field: str, expected: Any) -> None:
    assert expected == getattr(options(*argv), field)


def test_every_flag_has_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EPP_GRPC_PORT", "7")
    monkeypatch.setenv("EPP_SECURE_SERVING", "false")
    monkeypatch.setenv("EPP_DRAIN_TIMEOUT", "2s")

    made = options()

    assert (made.grpc_port, made.secure_serving, made.drain_timeout) == (7, False, 2.0)
    assert all(
        parameter.envvar == "EPP_" + parameter.opts[-1].lstrip("-").replace("-", "_").upper()
        for parameter in cli.serve.params
        if isinstance(parameter, click.Option) and parameter.name != "help"
    )


@pytest.mark.parametrize(("asked", "used"), [("50ms", 0.05), ("10ms", 0.05), ("1s", 1.0)])
def test_a_refresh_interval_below_the_least_is_raised_to_it(asked: str, used: float) -> None:
    assert used == options("--refresh-metrics-interval", asked).scrape_interval


def test_a_flag_wins_over_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EPP_GRPC_PORT", "7")

    assert options("--grpc-port", "8").grpc_port == 8


@pytest.mark.parametrize("argv", [["-v", "4"], ["-v4"], ["-v=4"], ["--v=4"]])
def test_verbosity_is_written_as_go_does(argv: list[str]) -> None:
    context = cli.serve.make_context("serve", list(argv))

    assert context.params["verbosity"] == 4


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--grpc-port", "70000"], "70000 is not in the range"),
        (["--drain-timeout", "soon"], "'soon' is no duration such as 30s"),
        (["--drain-timeout", "1m30"], "'1m30' is no duration"),
        (["--drain-timeout", "-1s"], "'-1s' is no duration"),
        (["--max-request-bytes", "many"], "'many' is no size such as"),
        (["--refresh-metrics-interval", "0"], "'0' is too short: at least 0.001 s"),
        (["--scrape-timeout", "0s"], "'0s' is too short"),
        (["--answer-timeout", "0"], "'0' is too short"),
        (["--max-request-bytes", "0"], "'0' is not between 1 byte and 1 GiB"),
        (["--max-request-bytes", "2Gi"], "'2Gi' is not between 1 byte and 1 GiB"),
        (["--secure-serving=perhaps"], "'perhaps' is not a valid boolean"),
        (["--nope"], "No such option"),
    ],
)
def test_a_wrong_value_is_refused_with_its_reason(argv: list[str], says: str) -> None:
    result = CliRunner().invoke(cli.main, ["serve", *argv])

    assert result.exit_code == 2
    assert says in result.output


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["serve"], "epp: nothing says where the endpoints are: give --endpoints-file"),
        (["serve", "--config-file", "no.yaml"], "epp: --config-file: no.yaml: No such file"),
        (["serve", "--endpoints-file", "no.yaml"], "no.yaml"),
        (["metrics", "parse", "no.txt"], "epp: no.txt: No such file"),
        (["metrics", "parse", "ftp://x"], "epp: ftp://x: expected http:// or https://"),
        (["metrics", "parse", "http://127.0.0.1:1/"], "epp: http://127.0.0.1:1/: "),
        (["metrics", "parse", "-", "--engine", "nope"], "nope"),
        (["send", "--grpc", "nowhere"], "epp: 'nowhere' is not HOST:PORT"),
        (["send", "--grpc", "127.0.0.1:1"], "epp: 127.0.0.1:1: no TLS there"),
        (["send", "--grpc", "127.0.0.1:1", "--plaintext"], "epp: 127.0.0.1:1: UNAVAILABLE"),
        (["send", "--grpc", "x:1", "--header", "novalue"], "'novalue' is not of the form K=V"),
    ],
)
def test_a_failure_is_one_line_and_exit_2(argv: list[str], says: str) -> None:
    result = CliRunner().invoke(cli.main, argv)

    assert result.exit_code == 2
    assert says in result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize("command", [[], ["serve"], ["demo"], ["send"], ["metrics", "parse"]])
def test_help_explains(command: list[str]) -> None:
    result = CliRunner().invoke(cli.main, [*command, "--help"])

    assert result.exit_code == 0
    assert "Usage:" in result.output


def test_a_real_page_is_printed_as_json() -> None:
    page = Path(__file__).parents[1] / "data" / "vllm" / "metrics_under_load.txt"

    result = CliRunner().invoke(cli.main, ["metrics", "parse", str(page)])

    assert result.exit_code == 0, result.output
    assert '"waiting": 18' in result.output
    assert '"running": 4' in result.output
