"""
The field's acceptance cases of the area lora, from their data.

The field's levels are had by parameters, so its table is one of the same scorer. The older cases,
of a picker that filters, run through the filter chain that decides as it did.
"""

import inspect
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from epp.commands import schedule
from epp.config import loader
from epp.framework import EndpointView, PluginContext, Registry
from epp.testing import request
from epp_plugins.scorers.lora_affinity import LoRAAffinityScorer
from support import cases, wire
from support.core import Core

Case = dict[str, Any]

CASES = cases.load("lora")
REGISTRY = Registry()
FIELD_CONFIG = Path(__file__).parents[1] / "data" / "field-config.yaml"

DIFFERING: dict[str, str] = {}

FIELD_LEVELS = {"graded": False, "tieScore": 0.0, "spreadRequests": 0}
"""What makes the scorer's rule the field's, beside the levels that the case gives."""

CHECKS = cases.Checks()
case = CHECKS.register


def test_every_binding_case_is_tested_or_has_a_reason() -> None:
    assert cases.unaccounted(CASES, CHECKS, DIFFERING) == set()
    assert set(CHECKS) | set(DIFFERING) <= set(CASES)
    assert not set(CHECKS) & set(DIFFERING)


def decide(
    plugins: Sequence[Mapping[str, Any]], pods: Sequence[Case], model: str, *, draws: int = 1
) -> Any:
    """Return what `epp schedule` says of pods that are written as the cases write them."""
    document = {
        "apiVersion": "llm-d.ai/v1alpha1",
        "kind": "EndpointPickerConfig",
        "plugins": plugins,
    }
    pool = [
        {
            "name": pod.get("name", f"pod-{at}"),
            "address": f"192.168.1.{at + 1}",
            "metrics": {
                "waiting": pod.get("q", 0),
                "kvUsage": pod.get("kv", 0.0),
                "runningAdapters": pod["loras"],
                "waitingAdapters": pod.get("wloras", []),
                "maxAdapters": pod.get("max", 0),
            },
        }
        for at, pod in enumerate(pods)
    ]
    body = json.dumps({"model": model, "prompt": "hello"}).encode()
    return schedule.run(
        loader.load(json.dumps(document).encode(), REGISTRY),
        schedule.read_state(json.dumps({"endpoints": pool}).encode()),
        schedule.read_request(body, {}),
        draws=draws,
        seed=1,
    )


def shares(found: Any) -> dict[str, float]:
    """How often each endpoint was picked."""
    return {name.partition("/")[2]: share for name, share in found["picks"].items()}


@case("lora-001-affinity-table")
def affinity_table(data: Case) -> None:
    given = data["given"]
    levels = re.fullmatch(
        r"active ([\d.]+); else active\+waiting < max ([\d.]+); else waiting ([\d.]+);"
        r" else ([\d.]+)",
        given["rule"],
    )
    assert levels is not None
    names = ("activeScore", "roomScore", "waitingScore", "fullScore")
    parameters = FIELD_LEVELS | dict(zip(names, map(float, levels.groups()), strict=True))
    plugin = {"type": given["scorer"], "parameters": parameters}
    rows = data["when"]["table"]

    def scores(pods: Sequence[Case]) -> list[float]:
        found = decide([plugin], pods, given["target_model"])
        listed = found["profiles"]["default"]["candidates"]
        by_name = {one["endpoint"]: one["scores"][given["scorer"]] for one in listed}
        return [by_name[f"default/pod-{at}"] for at in range(len(pods))]

    alone = [score for row in rows for score in scores([row])]
    assert alone == pytest.approx(data["then"]["table"])
    assert scores(rows) == pytest.approx(data["then"]["table"])


@case("lora-002-no-pods")
def no_pods(data: Case) -> None:
    scorer = LoRAAffinityScorer(context=PluginContext("lora"))
    asked = request(model=data["when"][0]["target_model"])

    scores = scorer.score(asked, EndpointView(data["given"]["pods"]))

    assert dict(enumerate(scores)) == data["then"]["scores"]


@case("lora-005-target-name-is-what-counts")
async def target_name(data: Case) -> None:
    pods = data["given"]["pods"]
    asked = data["when"][0]
    body = json.dumps({"model": asked["request_model"], "prompt": "hello"}).encode()
    pairs = {**wire.POST, "x-llm-d-model-name-rewrite": asked["target_model"]}

    core = Core(pods, config=FIELD_CONFIG)
    picked = {await core.pick(body, pairs=pairs) for _ in range(20)}

    preferred = [pod["name"] for pod in pods].index(data["then"]["preferred"])
    assert picked == {f"192.168.1.{preferred + 1}:8000"}


# The picker that filters

CHAIN = "legacy-filter-chain"


def chain(**parameters: Any) -> list[dict[str, Any]]:
    return [{"type": CHAIN, "parameters": parameters}, {"type": "random-picker"}]


@case("lora-006-v03-low-cost-predicate")
def low_cost(data: Case) -> None:
    # Both groups that the predicate keeps are seen where the choice between them is even.
    plugins = chain(loraAffinityThreshold=0.5)
    rows = data["when"]["table"]

    found = shares(decide(plugins, rows, data["given"]["target_model"], draws=200))

    kept = ["kept" if f"pod-{at}" in found else "dropped" for at in range(len(rows))]
    assert kept == data["then"]["table"]


@case("lora-007-v03-soft-affinity")
def soft_affinity(data: Case) -> None:
    given, asked, then = data["given"], data["when"][0], data["then"]
    plugins = chain(loraAffinityThreshold=given["threshold"])

    found = decide(plugins, given["pods"], asked["target_model"], draws=asked["draws"])

    wanted = {"affinity-pod": then["affinity_share"], "available-pod": then["available_share"]}
    assert shares(found) == pytest.approx(wanted, abs=then["tolerance"])


@case("lora-008-v05-critical-avoids-long-queue")
def long_queue(data: Case) -> None:
    pods = data["given"]["pods"]
    found = decide(chain(), pods, "sql-lora-1fdg2", draws=50)

    [(name, share)] = shares(found).items()
    place = [pod["name"] for pod in pods].index(name)
    assert share == 1.0
    assert f"192.168.1.{place + 1}:8000" == data["then"]["endpoint"]


OF_A_PICKER = [name for name, check in CHECKS.items() if inspect.iscoroutinefunction(check)]


@pytest.mark.parametrize("name", sorted(set(CHECKS) - set(OF_A_PICKER)))
def test_case(name: str) -> None:
    CHECKS[name](CASES[name])


@pytest.mark.parametrize("name", sorted(OF_A_PICKER))
async def test_case_of_a_running_picker(name: str) -> None:
    await CHECKS[name](CASES[name])
