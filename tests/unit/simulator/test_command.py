"""The command as its users run it: a process of its own."""

import dataclasses
import os
import shlex
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click
import pytest
from click.testing import CliRunner

from epp.simulator.__main__ import main
from epp.simulator.engine import PROFILES, ClassLimit, EngineOptions, StepTiming
from epp.simulator.faults import Faults
from epp.simulator.kv_events import KVEventsConfig
from epp.simulator.serve_command import options_of, serve_command
from epp.simulator.serve_options import GROUPS
from epp.simulator.server import SimulatorOptions


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


def test_the_process_of_an_engine_that_dies_exits_with_an_error():
    with vllm_sim("--die-at-step", "3", "--timing", "instant") as process:
        assert process.stdout is not None
        url = process.stdout.readline().removeprefix("listening on ").strip()
        body = b'{"prompt": "x", "max_tokens": 99, "stream": true}'
        asked = urllib.request.Request(
            f"{url}/v1/completions", body, {"content-type": "application/json"}
        )
        with urllib.request.urlopen(asked) as response:
            said = response.read()
        _, complaint = process.communicate()

    assert said.endswith(b"data: [DONE]\n\n")
    assert b'"code": 500' in said
    assert (process.returncode, complaint.count("\n")) == (1, 1)
    assert "died" in complaint


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        pytest.param(["--max-model-len", "999999"], "exceeds the cache", id="too long a context"),
        pytest.param(["--time-scale", "-1"], "--time-scale", id="time that runs backwards"),
        pytest.param(["--host", "192.0.2.1"], "Error", id="an address of another machine"),
        pytest.param(
            ["--lora-module", "a", "--lora-fetch-ms", "1", "--max-cpu-loras", "2"],
            "max_cpu_loras",
            id="fewer adapters on the CPU than on the accelerator",
        ),
        pytest.param(["--model", "a..b", "--host", "a..b"], "idna", id="no host name"),
        pytest.param(["--class-limit", "five"], "PRIORITY:RUNNING", id="no class limit"),
        pytest.param(["--kv-events-config", "{"], "--kv-events-config", id="no JSON"),
        pytest.param(["--fail-share", "2"], "--fail-share", id="more than all"),
        pytest.param(["--timing", "h100"], "a100-7b", id="a profile that is none"),
    ],
)
def test_what_cannot_be_served_is_said_in_a_line(arguments: list[str], complaint: str):
    result = CliRunner().invoke(main, ["serve", "--port", "0", *arguments])

    assert result.exit_code != 0
    assert complaint in result.output
    assert "Traceback" not in result.output


def options_from(*arguments: str, **environment: str) -> SimulatorOptions:
    with pytest.MonkeyPatch.context() as patch:
        for name in ("PYTHONHASHSEED", "VLLM_ALLOW_RUNTIME_LORA_UPDATING"):
            patch.delenv(name, raising=False)
        for name, value in environment.items():
            patch.setenv(name, value)
        return options_of(serve_command.make_context("serve", list(arguments)).params)


def test_without_options_all_is_as_the_options_say():
    assert options_from() == SimulatorOptions(port=8000)


KV = '{"enable_kv_cache_events": true, "endpoint": "tcp://*:5557"}'


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("--model m --seed 3 --api-key k", {"model": "m", "seed": 3, "api_key": "k"}),
        ("--lora-module a --lora-module b=/b", {"lora_modules": ("a", "b=/b")}),
        ("--data-parallel-size 2", {"data_parallel_size": 2}),
        ("--time-scale 0", {"time_scale": 0}),
        ("--max-num-queued-reqs 3", {"max_num_queued_reqs": 3}),
        ("--max-num-queued-tokens 3", {"max_num_queued_tokens": 3}),
        ("--enable-request-id-headers", {"request_id_headers": True}),
        ("--enable-prompt-tokens-details", {"prompt_tokens_details": True}),
        ("--enable-force-include-usage", {"force_include_usage": True}),
        ("--enable-per-request-metrics", {"per_request_metrics": True}),
        ("--enable-server-load-tracking", {"server_load_tracking": True}),
        ("--enable-runtime-lora-updating", {"runtime_lora_updating": True}),
        (
            "--lora-info-mode old --lora-module a",
            {"lora_info": "old", "lora_modules": ("a",)},
        ),
        (
            f"--kv-events-encoding positional --kv-events-config '{KV}'",
            {"kv_events_encoding": "positional", "kv_events": KVEventsConfig.parse(KV)},
        ),
        (
            f"--kv-events-byte-hashes --kv-events-config '{KV}'",
            {"kv_events_hashes": "bytes", "kv_events": KVEventsConfig.parse(KV)},
        ),
        ("--fail-share .1 --fail-status 503", {"faults": Faults(fail_share=0.1, fail_status=503)}),
        ("--hang-share 1 --slow-down 2", {"faults": Faults(hang_share=1, slow_down=2)}),
        ("--die-at-step 7 --fail-health", {"faults": Faults(die_at_step=7, fail_health=True)}),
        (f"--kv-events-config '{KV}'", {"kv_events": KVEventsConfig.parse(KV)}),
    ],
)
def test_options_of_the_server_are_taken(arguments: str, expected: dict[str, Any]):
    options = options_from(*shlex.split(arguments))

    assert options == SimulatorOptions(port=8000, **expected)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("--max-num-seqs 3", {"max_num_seqs": 3}),
        ("--max-num-batched-tokens 3", {"max_num_batched_tokens": 3}),
        ("--long-prefill-token-threshold 3", {"long_prefill_token_threshold": 3}),
        ("--max-model-len 3", {"max_model_len": 3}),
        ("--block-size 32", {"block_size": 32}),
        ("--num-gpu-blocks 9999", {"num_gpu_blocks": 9999}),
        ("--num-gpu-blocks-override 9999", {"num_gpu_blocks": 9999}),
        ("--no-enable-prefix-caching", {"prefix_caching": False}),
        ("--prefix-caching-hash-algo xxhash", {"prefix_caching_hash_algorithm": "xxhash"}),
        ("--hash-seed 5", {"hash_seed": "5"}),
        ("--no-reserve-full-prompt", {"reserve_full_prompt": False}),
        ("--watermark 0.1", {"watermark": 0.1}),
        ("--scheduling-policy ageing", {"scheduling_policy": "ageing"}),
        (
            "--scheduling-policy priority --priority-preemption",
            {"scheduling_policy": "priority", "priority_preemption": True},
        ),
        ("--no-priority-preemption", {}),
        (
            "--scheduling-policy ageing --ageing-seconds 3",
            {"scheduling_policy": "ageing", "ageing_seconds": 3},
        ),
        (
            "--scheduling-policy qoe --qoe-pace 3 --qoe-first-token-seconds 4",
            {"scheduling_policy": "qoe", "qoe_pace": 3, "qoe_first_token_seconds": 4},
        ),
        (
            "--class-limit 5:2 --class-limit -3:9",
            {"class_limits": (ClassLimit(5, 2), ClassLimit(-3, 9))},
        ),
        (
            "--preemption-mode swap --num-cpu-blocks 3",
            {"preemption_mode": "swap", "num_cpu_blocks": 3},
        ),
        ("--no-strict-order", {"strict_order": False}),
        ("--lora-module a --max-loras 20", {"max_loras": 20, "max_cpu_loras": 20}),
        ("--lora-module a --max-cpu-loras 20 --lora-fetch-ms 1", {"max_cpu_loras": 20}),
        ("--enable-runtime-lora-updating --lora-waiting stop", {"lora_waiting": "stop"}),
    ],
)
def test_options_of_the_engine_are_taken(arguments: str, expected: dict[str, Any]):
    options = options_from(*arguments.split())

    assert options.engine == EngineOptions(**expected)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("--timing instant", PROFILES["instant"]),
        ("--base-ms 1", StepTiming(base_seconds=0.001)),
        ("--token-us 1 --seq-ms 0", StepTiming(token_seconds=1e-6, sequence_seconds=0)),
        (
            "--lora-module a --lora-load-ms 1 --lora-fetch-ms 2",
            StepTiming(lora_load_seconds=0.001, lora_fetch_seconds=0.002),
        ),
        (
            "--context-token-us 1 --swap-block-ms 1 --preemption-mode swap",
            StepTiming(context_token_seconds=1e-6, swap_block_seconds=0.001),
        ),
        (
            "--timing instant --base-ms 5",
            dataclasses.replace(PROFILES["instant"], base_seconds=0.005),
        ),
    ],
)
def test_a_timing_is_a_profile_and_what_is_changed_of_it(arguments: str, expected: StepTiming):
    assert options_from(*arguments.split()).timing == expected


@pytest.mark.parametrize(
    ("name", "value", "option", "expected"),
    [
        ("PYTHONHASHSEED", "0", lambda options: options.engine.hash_seed, "0"),
        (
            "VLLM_ALLOW_RUNTIME_LORA_UPDATING",
            "True",
            lambda options: options.runtime_lora_updating,
            True,
        ),
        (
            "VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES",
            "0",
            lambda options: options.kv_events_hashes,
            "bytes",
        ),
        ("VLLM_API_KEY", "secret", lambda options: options.api_key, "secret"),
    ],
)
def test_the_environment_says_what_it_says_to_vllm(
    name: str, value: str, option: Callable[[SimulatorOptions], object], expected: object
):
    options = options_from(**{name: value})

    assert option(options) == expected


def without_spaces(text: str) -> str:
    """Return a text as it is whatever its lines are: click breaks them at hyphens, too."""
    return "".join(text.split())


def test_help_explains_every_option_in_its_group():
    shown = without_spaces(CliRunner().invoke(main, ["serve", "--help"]).output)

    places = [
        shown.index(without_spaces(text))
        for title, options in GROUPS.items()
        for text in (f"{title}:", *(str(option.help).partition("  [")[0] for option in options))
    ]
    assert places == sorted(places)
    assert serve_command.params == [option for group in GROUPS.values() for option in group]
    assert all(option.help for option in serve_command.params if isinstance(option, click.Option))


def test_defaults_are_shown():
    shown = " ".join(CliRunner().invoke(main, ["serve", "--help"]).output.split())

    assert "Requests that can run at once; others wait. [default: 256; x>=1]" in shown
