"""
The field's acceptance cases of the area prefix, from their data.

Tokens are given as ids, which the parser turns into bytes and the producer cuts into blocks; what
is looked at is the attribute that scorers read.
"""

import inspect
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from epp.framework import (
    PREFIX_MATCH,
    ConfigError,
    Endpoint,
    EndpointId,
    EndpointRemoved,
    EndpointView,
    InferenceRequest,
    PluginContext,
    PrefixMatch,
    RawRequest,
    Registry,
    TerminationCause,
)
from epp.requestcontrol.understanding import understand
from epp.testing import choice, endpoint, request
from epp_plugins.data_producers.approximate_prefix import ApproximatePrefixProducer
from epp_plugins.data_producers.approximate_prefix.blocks import BYTES_PER_TOKEN, hashes
from epp_plugins.data_producers.tokens import TokenProducer
from support import cases, wire
from support.core import Core

Case = dict[str, Any]

CASES = cases.load("prefix")

DIFFERING = {
    "prefix-006-trailing-partial-block": "only whole blocks are indexed, since engines cache no"
    " others; what is ours is tested below",
    "prefix-012-autotune-block-size": "the engine's block size and cache size win here too, but the"
    " trailing partial block does not count; what is ours is tested below",
}

DIFFERING_ROWS = {
    "prefix-017-token-input-used-as-is": {
        "/inference/v1/generate token_ids [7,8,9]": "the parser of vLLM's token-in, token-out API"
        " comes later",
    },
}
"""Rows of tested cases where this picker differs, or has no room for them yet."""

CHECKS = cases.Checks()
case = CHECKS.register


def test_every_binding_case_is_tested_or_has_a_reason() -> None:
    assert cases.unaccounted(CASES, CHECKS, DIFFERING) == set()
    assert set(CHECKS) | set(DIFFERING) <= set(CASES)
    assert not set(CHECKS) & set(DIFFERING)
    for name, rows in DIFFERING_ROWS.items():
        assert rows.keys() <= set(CASES[name]["when"]["table"])


def rows_of(data: Case) -> Iterable[tuple[Any, Any]]:
    """Rows of the case's one table, with what is expected of each."""
    (when,) = [rows for key, rows in data["when"].items() if key.startswith("table")]
    (then,) = [rows for key, rows in data["then"].items() if key.startswith("table")]
    return zip(when, then, strict=True)


def build(plugin_type: str, parameters: Mapping[str, Any]) -> Any:
    return Registry().build(plugin_type, "mine", parameters).plugin


def understood(body: Mapping[str, Any], path: str = "/v1/completions") -> InferenceRequest:
    """What the real parser makes of a body."""
    raw = RawRequest({":method": "POST", ":path": path}, json.dumps(body).encode())
    return understand(raw, Core().app.director._policies.parsers).request


def asked(tokens: Sequence[int], model: str = "m", salt: str = "") -> InferenceRequest:
    """A request whose prompt are these token ids."""
    if not tokens:
        return request(model=model)
    salted = {"cache_salt": salt} if salt else {}
    return understood({"model": model, "prompt": list(tokens), **salted})


class Index:
    """A producer with a pool, sent requests to as the director would."""

    def __init__(self, pool: Sequence[Endpoint], **parameters: Any) -> None:
        parameters.setdefault("min_block_size_tokens", 1)
        context = PluginContext("prefix", clock=lambda: 0.0)
        self.producer = ApproximatePrefixProducer(context=context, **parameters)
        self.pool = pool

    def match(self, one: InferenceRequest) -> PrefixMatch:
        return self.producer.produce(one, EndpointView(self.pool))

    def send(self, one: InferenceRequest, to: Endpoint) -> None:
        """Route a request, and let its response come to its end."""
        one.attributes.put(PREFIX_MATCH, self.match(one))
        result = choice(to)
        self.producer.pre_request(one, result)
        self.producer.on_first_byte(one, result)
        self.producer.on_response_complete(one, result, TerminationCause.COMPLETED, None)

    def blocks(self, tokens: Sequence[int]) -> int:
        return self.match(asked(tokens)).total_blocks


# The scorer


@case("prefix-001-score-ratio", "prefix-002-match-length-weight")
def score_ratio(data: Case) -> None:
    given = data["given"]
    weighing = {key: value for key, value in given.items() if key.startswith("matchLength")}
    scorer = build(given["scorer"], weighing)
    view = EndpointView([endpoint()])
    for row, wanted in rows_of(data):
        one = request("hello")
        if row.get("info") != "missing":
            size = given.get("block_size_tokens", 16) * BYTES_PER_TOKEN
            one.attributes.put(
                PREFIX_MATCH, PrefixMatch([row["matched"]], row["total"], size, view)
            )

        assert list(scorer.score(one, view)) == pytest.approx([wanted])

    scale = "matchLengthScaleTokens"
    errors: Mapping[str, dict[str, Any]] = {
        "matchLengthWeight below 0": {"matchLengthWeight": -0.1},
        "matchLengthWeight above 1": {"matchLengthWeight": 1.1},
        f"{scale} <= 0 while the weight is positive": {"matchLengthWeight": 0.5, scale: 0},
    }
    for error in data["then"].get("config_errors", []):
        with pytest.raises(ConfigError, match=r"parameters\.matchLength"):
            build(given["scorer"], errors[error])
    defaults = Registry().build(given["scorer"], "mine", {}).parameters
    assert data["then"].get("defaults", {}).items() <= defaults.items()


# Blocks


@case("prefix-003-cold")
def cold(data: Case) -> None:
    given, sent = data["given"], data["when"][0]
    pool = [endpoint(name) for name in given["pods"]]
    index = Index(pool, auto_tune=False, block_size_tokens=given["block_size_tokens"])

    match = index.match(asked(sent["tokens"], sent["model"]))

    wanted = {name: data["then"][name] for name in given["pods"]}
    found = {
        one.id.name: {"matched": matched, "total": match.total_blocks}
        for one, matched in zip(pool, match.matched_blocks, strict=True)
    }
    assert found == wanted


@case("prefix-007-model-and-salt")
def model_and_salt(data: Case) -> None:
    given = data["given"]
    size = given["block_size_tokens"] * BYTES_PER_TOKEN
    found = [
        hashes(asked(given["tokens"], row["model"], row["salt"]), size, None)
        for row in data["when"]["table"]
    ]

    assert {len(one) for one in found} == {len(given["tokens"]) // given["block_size_tokens"]}
    assert all(len(set(same_place)) == len(found) for same_place in zip(*found, strict=True))


@case("prefix-011-caps")
def caps(data: Case) -> None:
    given = data["given"]
    names = {
        "maxPrefixTokensToMatch": "max_prefix_tokens_to_match",
        "maxPrefixBlocksToMatch": "max_prefix_blocks_to_match",
    }
    for row, wanted in rows_of(data):
        index = Index(
            [endpoint()],
            auto_tune=False,
            block_size_tokens=given["block_size_tokens"],
            **{names[key]: value for key, value in row.items()},
        )

        assert index.blocks(given["tokens"]) == wanted


@case("prefix-013-min-block-clamp")
def least_block(data: Case) -> None:
    for row, wanted in rows_of(data):
        size = row.get("pod_block_size", 0)
        index = Index(
            [endpoint(block_size=size, num_blocks=1000 if size else 0)],
            auto_tune=row["autoTune"],
            block_size_tokens=row["configured"],
            min_block_size_tokens=int(data["given"]["minimum"].split()[0]),
        )
        match = index.match(asked(range(1000)))

        assert match.block_bytes == wanted * BYTES_PER_TOKEN


def test_a_trailing_partial_block_is_not_indexed() -> None:
    data = CASES["prefix-006-trailing-partial-block"]
    size = data["given"]["block_size_tokens"]
    index = Index([endpoint()], auto_tune=False, block_size_tokens=size)
    counts = data["when"]["table_tokens"]

    found = [index.blocks(range(count)) for count in counts]

    assert found == [count // size for count in counts]
    # No more than the partial block is what the field has beyond it.
    assert [whole + bool(count % size) for whole, count in zip(found, counts, strict=True)] == (
        data["then"]["table_blocks"]
    )


def test_the_engines_own_block_and_cache_size_win() -> None:
    data = CASES["prefix-012-autotune-block-size"]
    metrics = data["given"]["pod_metrics"]
    size, capacity = metrics["block_size"], metrics["num_blocks"]
    one = endpoint(**metrics)
    index = Index(
        [one],
        auto_tune=data["given"]["autoTune"],
        block_size_tokens=data["given"]["configured_block_size_tokens"],
        min_block_size_tokens=64,
    )
    tokens = int(data["when"][0]["tokens"].split()[0])

    match = index.match(asked(range(tokens)))

    assert match.block_bytes == size * BYTES_PER_TOKEN
    assert match.total_blocks == tokens // size == data["then"]["blocks"] - 1
    prompts = [at.to_bytes(2, "big") * (size * BYTES_PER_TOKEN // 2) for at in range(capacity + 1)]
    for prompt in prompts:
        index.send(request(prompt), one)
    held = [sum(index.match(request(prompt)).matched_blocks) for prompt in prompts]

    # The least recent went, a little more of them than had to: eviction is not done one by one.
    assert held == sorted(held)
    assert 0.98 * capacity <= sum(held) <= capacity


# What endpoints are taken to hold


@case("prefix-014-lru-capacity")
def least_recent(data: Case) -> None:
    given = data["given"]
    pool = [endpoint(name) for name in given["pods"]]
    index = Index(
        pool,
        auto_tune=given["autoTune"],
        block_size_tokens=given["block_size_tokens"],
        lru_capacity_per_server=given["lruCapacityPerServer"],
    )
    prompts = data["when"][0]["requests_routed_to_pod1"]
    for tokens in prompts:
        index.send(asked(tokens), pool[0])

    evicted = re.findall(r"\d+", data["then"]["index"].partition("evicted")[0])
    for tokens in prompts:
        held = list(index.match(asked(tokens)).matched_blocks)

        assert held == [0 if str(tokens[0]) in evicted else 1]


PROMPT = {"model": "m", "prompt": "tell me of the sea and of all that is in it " * 20}


def written(folder: Path, scorers: Mapping[str, float]) -> Path:
    """A file that configures these scorers, with their weights."""
    path = folder / "config.yaml"
    refs = [{"pluginRef": name, "weight": weight} for name, weight in scorers.items()]
    document = {
        "apiVersion": "llm-d.ai/v1alpha1",
        "kind": "EndpointPickerConfig",
        "plugins": [{"type": name} for name in scorers],
        "schedulingProfiles": [{"name": "default", "plugins": refs}],
    }
    path.write_text(yaml.safe_dump(document))
    return path


async def served(core: Core, hint: Sequence[str] | None = None) -> str:
    """Where a request with the prompt goes, once its response has ended."""
    raw = RawRequest(wire.POST, json.dumps(PROMPT).encode(), tuple(hint) if hint else None)
    routed = await core.app.director.handle_request(raw)
    core.app.director.on_response_body(routed, b"{}")
    core.app.director.finish(routed, TerminationCause.COMPLETED)
    return routed.endpoint.id.name


@case("prefix-015-pod-removed")
async def pod_removed(data: Case, folder: Path) -> None:
    pods = re.findall(r"pod\d", data["given"]["index"])
    gone = data["when"][0]["event"].split()[0]
    core = Core([{"name": pod} for pod in pods], config=written(folder, {"prefix-cache-scorer": 1}))
    for at in range(len(pods)):
        await served(core, [f"192.168.1.{at + 1}:8000"])

    async def holders() -> list[str]:
        """Who is expected to hold all of the prompt; to ask changes nothing."""
        routed = await core.app.director.handle_request(
            RawRequest(wire.POST, json.dumps(PROMPT).encode())
        )
        core.app.director.finish(routed, TerminationCause.CLIENT_DISCONNECTED)
        [profile] = routed.result.profiles.values()
        [column] = profile.scores.values()
        return [
            one.id.name for one, score in zip(profile.candidates, column, strict=True) if score == 1
        ]

    before = await holders()
    core.app.datastore.apply(EndpointRemoved(EndpointId("default", gone)))
    after = await holders()
    core.add(pods.index(gone), {"name": gone})
    again = await holders()

    assert before == pods
    assert after == data["then"]["holders_of_h"]
    assert again == data["then"]["holders_of_h"]


@case("prefix-019-routing-sticks")
async def routing_sticks(data: Case, folder: Path) -> None:
    names = {
        "queue": "queue-scorer",
        "kv": "kv-cache-utilization-scorer",
        "prefix": "prefix-cache-scorer",
    }
    weights = [one.split() for one in data["given"]["scorers"]]
    config = written(folder, {names[name]: float(weight) for name, weight in weights})
    for _ in range(20):
        core = Core([{}, {}, {}], config=config)
        first = await served(core)

        assert await served(core) == first

    # Also while the first request is still being answered.
    for _ in range(20):
        core = Core([{}, {}, {}], config=config)
        raw = RawRequest(wire.POST, json.dumps(PROMPT).encode())
        one = await core.app.director.handle_request(raw)
        other = await core.app.director.handle_request(raw)

        assert other.endpoint.id == one.endpoint.id


# Tokens


@case("prefix-017-token-input-used-as-is")
def token_input(data: Case) -> None:
    completion, embedding = "/v1/completions", "/v1/embeddings"
    bodies: Mapping[str, tuple[str, str, list[Any]]] = {
        "completions prompt given as token ids [11,22,33]": (completion, "prompt", [[11, 22, 33]]),
        "embeddings input given as token ids [4,5]": (embedding, "input", [[4, 5]]),
        "completions prompt 'hello world' twice": (completion, "prompt", ["hello world"] * 2),
        "prompts 'hello world' and 'hello there'": (
            completion,
            "prompt",
            ["hello world", "hello there"],
        ),
    }
    for row, wanted in rows_of(data):
        if row in DIFFERING_ROWS[data["id"]]:
            continue
        path, field, values = bodies[row]
        found = [understood({"model": "m", field: value}, path) for value in values]
        if wanted.startswith("tokens"):
            ids = json.loads(wanted.removeprefix("tokens "))
            # An id is four bytes, so that its number is exact and blocks are of whole tokens.
            assert found[0].prompt == b"".join(one.to_bytes(4, "little") for one in ids)
            assert TokenProducer().produce(found[0], EndpointView(())) == len(ids)
        else:
            equal = {"equal tokens": True, "different tokens": False}[wanted]
            assert (found[0].prompt == found[1].prompt) is equal


OF_A_PICKER = [name for name, check in CHECKS.items() if inspect.iscoroutinefunction(check)]


@pytest.mark.parametrize("name", sorted(set(CHECKS) - set(OF_A_PICKER)))
def test_case(name: str) -> None:
    CHECKS[name](CASES[name])


@pytest.mark.parametrize("name", sorted(OF_A_PICKER))
async def test_case_of_a_running_picker(name: str, tmp_path: Path) -> None:
    await CHECKS[name](CASES[name], tmp_path)
