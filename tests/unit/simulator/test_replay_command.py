import json
from pathlib import Path

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
