"""
Idle options: those of `vllm-sim serve` that make no difference beside the others.

Who gives such an option believes that it does something, and would measure the wrong server; so it
is refused, in one line. Only what stands on the command line counts: an environment variable may be
meant for another server. What could make a difference later, by `POST /faults`, is no idle option.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import click
from click.core import ParameterSource

from epp.simulator.engine import PROFILES

_Given = Mapping[str, Any]


class _Rule(NamedTuple):
    """Some options, when they are idle, and why."""

    options: Sequence[str]
    idle: Callable[[_Given], bool]
    why: str


def _fetches_for_nothing(given: _Given) -> bool:
    cost = given["lora_fetch_ms"]
    return not (PROFILES[given["profile"]].lora_fetch_seconds if cost is None else cost)


_RULES = [
    _Rule(
        ["priority_preemption"],
        lambda given: given["scheduling_policy"] == "fcfs",
        "under --scheduling-policy fcfs",
    ),
    _Rule(
        ["ageing_seconds"],
        lambda given: given["scheduling_policy"] != "ageing",
        "without --scheduling-policy ageing",
    ),
    _Rule(
        ["qoe_pace", "qoe_first_token_seconds"],
        lambda given: given["scheduling_policy"] != "qoe",
        "without --scheduling-policy qoe",
    ),
    _Rule(
        ["num_cpu_blocks", "swap_block_ms"],
        lambda given: given["preemption_mode"] != "swap",
        "without --preemption-mode swap",
    ),
    _Rule(
        [
            "max_loras",
            "max_cpu_loras",
            "lora_waiting",
            "lora_info",
            "lora_load_ms",
            "lora_fetch_ms",
        ],
        lambda given: not (given["lora_modules"] or given["runtime_lora_updating"]),
        "without --lora-module or --enable-runtime-lora-updating",
    ),
    _Rule(
        ["max_cpu_loras"],
        _fetches_for_nothing,
        "without --lora-fetch-ms: an adapter that is not in the CPU's memory costs no more time",
    ),
    _Rule(
        ["kv_events_encoding", "kv_events_int_hashes"],
        lambda given: given["kv_events"] is None or not given["kv_events"].publishes,
        "without a --kv-events-config that enables KV events",
    ),
    _Rule(
        ["prefix_caching_hash_algorithm", "hash_seed"],
        lambda given: not given["prefix_caching"],
        "under --no-enable-prefix-caching",
    ),
]


def refuse(context: click.Context) -> None:
    """Raise UsageError for an option that was asked for and makes no difference."""
    for rule in _RULES:
        if not rule.idle(context.params):
            continue
        for option in context.command.params:
            if option.name in rule.options and _asked_for(context, option):
                raise click.UsageError(f"{_name(option)} has no effect {rule.why}", context)


def _asked_for(context: click.Context, option: click.Parameter) -> bool:
    """Say whether an option stands on the command line, and not to switch off what is off."""
    name = option.name or ""
    switched_off = option.default is False and context.params[name] is False
    return context.get_parameter_source(name) is ParameterSource.COMMANDLINE and not switched_off


def _name(option: click.Parameter) -> str:
    return "/".join([option.opts[0], *option.secondary_opts])
