import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from epp.simulator.replay_command import replay_command

SCENARIO = Path(__file__).parents[2] / "data" / "engine_traces" / "preempt_fcfs.scenario.json"


def test_the_trace_of_a_file_is_printed():
    result = CliRunner().invoke(replay_command, [str(SCENARIO)])

    assert result.exit_code == 0
    assert json.loads(result.output) == json.loads(
        SCENARIO.with_name("preempt_fcfs.trace.json").read_bytes()
    )


def test_the_scenario_may_come_from_stdin_and_the_trace_go_to_a_file(tmp_path: Path):
    trace = tmp_path / "trace.json"

    result = CliRunner().invoke(
        replay_command, ["-", "-o", str(trace), "--indent", "2"], input=SCENARIO.read_bytes()
    )

    assert result.exit_code == 0
    assert trace.read_text().startswith('{\n  "config": {')


def test_what_is_wrong_is_said_with_its_place():
    result = CliRunner().invoke(replay_command, ["-"], input=b'{"requests": [{"id": 1}]}')

    assert result.exit_code == 1
    assert result.output == (
        "Error: the scenario cannot be replayed:"
        " Expected `str`, got `int` - at `$.requests[0].id`\n"
    )


def test_a_file_that_is_not_there_is_named():
    result = CliRunner().invoke(replay_command, ["nowhere.json"])

    assert result.exit_code == 2
    assert "nowhere.json" in result.output


@pytest.mark.parametrize(
    ("request_field", "complaint"),
    [
        ('"max_tokens": 3000000000', "max_tokens"),
        ('"max_tokens": 2049', "max_tokens 2049; max_model_len leaves room for 2048 at most"),
        ('"max_tokens": 1, "priority": %s' % ("9" * 5000), "priority"),
    ],
    ids=["more than tokens there are", "more than the context", "thousands of digits"],
)
def test_numbers_beyond_all_bounds_are_refused(request_field: str, complaint: str):
    given = f'{{"requests": [{{"id": "a", "prompt": [1], {request_field}}}]}}'

    result = CliRunner().invoke(replay_command, ["-"], input=given)

    assert result.exit_code == 1
    assert complaint in result.output
    assert result.output.count("\n") == 1


@pytest.mark.parametrize("to", ["stdout", "file"])
def test_a_trace_that_finds_no_room_is_said_in_a_line(to: str):
    command = [sys.executable, "-m", "epp.simulator", "replay", str(SCENARIO)]
    with Path("/dev/full").open("wb") as full:
        if to == "file":
            command += ["-o", "/dev/full"]
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)

    assert done.returncode == 1
    assert done.stderr.startswith("Error: the trace cannot be written to ")
    assert done.stderr.count("\n") == 1
