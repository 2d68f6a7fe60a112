"""The command as its users run it: a process of its own."""

import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import click
import pytest
from click.testing import CliRunner

from epp.simulator.__main__ import main


@contextmanager
def vllm_sim(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "epp.simulator", "serve", "--port", "0", *arguments]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_server_says_where_it_listens_and_stops_without_a_word(number: signal.Signals):
    with vllm_sim() as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        url = line.removeprefix("listening on ").strip()
        with urllib.request.urlopen(f"{url}/health") as response:
            status = response.status

        os.kill(process.pid, number)
        rest = process.communicate()

    assert line.startswith("listening on http://127.0.0.1:")
    assert status == 200
    assert rest == ("", "")
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        pytest.param(["--max-model-len", "999999"], "exceeds the cache", id="too long a context"),
        pytest.param(["--time-scale", "-1"], "--time-scale", id="time that runs backwards"),
        pytest.param(["--host", "192.0.2.1"], "Error", id="an address of another machine"),
    ],
)
def test_what_cannot_be_served_is_said_in_a_line(arguments: list[str], complaint: str):
    result = CliRunner().invoke(main, ["serve", "--port", "0", *arguments])

    assert result.exit_code != 0
    assert complaint in result.output
    assert "Traceback" not in result.output


def test_help_explains_every_option_with_its_default():
    shown = " ".join(CliRunner().invoke(main, ["serve", "--help"]).output.split())

    for option in main.commands["serve"].params:
        assert isinstance(option, click.Option)
        assert option.help
        assert option.help in shown
    assert "Milliseconds that any step takes. [default: 13.5; x>=0]" in shown
