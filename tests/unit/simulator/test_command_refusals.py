"""What the command refuses before anything starts: each in one line that names the option."""

import pytest
from click.testing import CliRunner

from epp.simulator.__main__ import main

KV = '{"enable_kv_cache_events": true, "endpoint": "tcp://*:65535"%s}'


def refusal(*arguments: str) -> str:
    """Return the one line that a usage error says."""
    result = CliRunner().invoke(main, ["serve", *arguments])
    usage, _, said = result.output.partition("\n\n")

    assert result.exit_code == 2
    assert usage.startswith("Usage: ")
    assert said.count("\n") == 1
    return said


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "1e300"])
@pytest.mark.parametrize(
    "option",
    [
        "--watermark", "--ageing-seconds", "--qoe-pace", "--qoe-first-token-seconds",
        "--base-ms", "--token-us", "--seq-ms", "--context-token-us", "--lora-load-ms",
        "--lora-fetch-ms", "--swap-block-ms", "--time-scale", "--fail-share", "--hang-share",
        "--slow-down",
    ],
)  # fmt: skip
def test_a_number_that_cannot_be_computed_with_is_refused(option: str, value: str):
    assert f"Invalid value for '{option}'" in refusal(option, value)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--port", "65536"),
        ("--port", "-1"),
        ("--num-gpu-blocks", "10000000000"),
        ("--max-num-seqs", "9" * 30),
        ("--seed", "9" * 30),
        ("--data-parallel-size", "100000"),
        ("--slow-down", "1000001"),
    ],
)
def test_a_number_out_of_all_bounds_is_refused(option: str, value: str):
    assert f"Invalid value for '{option}'" in refusal(option, value)


@pytest.mark.parametrize(
    "option", ["--host", "--model", "--api-key", "--lora-module", "--hash-seed"]
)
@pytest.mark.parametrize("value", ["", "a\udcff"], ids=["empty", "no UTF-8"])
def test_a_text_that_stands_for_nothing_is_refused(option: str, value: str):
    assert f"Invalid value for '{option}'" in refusal(option, value)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        pytest.param(["--class-limit", "1:2", "--class-limit", "1:3"], "class limit", id="class"),
        pytest.param(["--lora-module", "a", "--lora-module", "a=/b"], "'a' is there", id="twice"),
        pytest.param(["--lora-module", "=/b"], "without a name", id="no name"),
        pytest.param(["--model", "m", "--lora-module", "m"], "'m' is also", id="like the model"),
        pytest.param(
            ["--fail-share", ".6", "--hang-share", ".6"], "more than all", id="shares of requests"
        ),
    ],
)
def test_options_that_contradict_each_other_are_refused(arguments: list[str], complaint: str):
    assert complaint in refusal(*arguments)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        pytest.param([KV % ', "hwm": 99999999999'], "$.hwm", id="limit"),
        pytest.param([KV % ', "buffer_steps": 2147483647'], "$.buffer_steps", id="buffer"),
        pytest.param([KV % ', "max_queue_size": 1e30'], "$.max_queue_size", id="queue"),
        pytest.param([KV % "", "--data-parallel-size", "2"], "tcp://*:65536", id="port of a rank"),
        pytest.param(
            [KV % ', "replay_endpoint": "tcp://*:70000"'], "tcp://*:70000", id="port of replays"
        ),
        pytest.param(["\udcff"], "utf-8", id="no UTF-8"),
    ],
)
def test_kv_events_that_cannot_be_published_are_refused(arguments: list[str], complaint: str):
    assert complaint in refusal("--kv-events-config", *arguments)


@pytest.mark.parametrize(
    ("arguments", "lacking"),
    [
        ("--priority-preemption", "under --scheduling-policy fcfs"),
        ("--ageing-seconds 10 --scheduling-policy qoe", "without --scheduling-policy ageing"),
        ("--qoe-pace 3", "without --scheduling-policy qoe"),
        ("--qoe-first-token-seconds 3", "without --scheduling-policy qoe"),
        ("--num-cpu-blocks 3", "without --preemption-mode swap"),
        ("--swap-block-ms 3", "without --preemption-mode swap"),
        ("--max-cpu-loras 20 --lora-module a", "without --lora-fetch-ms"),
        ("--max-cpu-loras 20 --lora-module a --lora-fetch-ms 0", "without --lora-fetch-ms"),
        ("--max-loras 3", "without --lora-module or --enable-runtime-lora-updating"),
        ("--lora-waiting stop", "without --lora-module or --enable-runtime-lora-updating"),
        ("--kv-events-encoding map", "without a --kv-events-config"),
        ("--kv-events-byte-hashes --kv-events-config {}", "without a --kv-events-config"),
        ("--hash-seed 0 --no-enable-prefix-caching", "under --no-enable-prefix-caching"),
    ],
)
def test_an_option_that_makes_no_difference_beside_the_others_is_refused(
    arguments: str, lacking: str
):
    said = refusal(*arguments.split())

    assert said.startswith(f"Error: {arguments.split()[0]}") or "/--kv-events-byte" in said
    assert f"has no effect {lacking}" in said
