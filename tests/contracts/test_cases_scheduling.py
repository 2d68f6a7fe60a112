"""
The field's acceptance cases of the area scheduling, from their data.

Tables of scores run as `epp schedule` does: a pool that is written down, a configuration, and the
real path of a request. What that cannot say is asked of the plugins themselves.
"""

import base64
import inspect
import itertools
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from epp.commands import schedule
from epp.config import loader
from epp.config.loader import BuiltProfile
from epp.framework import (
    INFLIGHT_LOAD,
    PREFIX_MATCH,
    PROMPT_TOKENS,
    ConfigError,
    Endpoint,
    EndpointId,
    EndpointRemoved,
    EndpointView,
    InferenceRequest,
    InFlightLoad,
    PluginContext,
    PluginInstance,
    PrefixMatch,
    RawRequest,
    Registry,
    Saturated,
    TerminationCause,
)
from epp.observability.metrics import Metrics
from epp.scheduling.profile import SchedulerProfile
from epp.testing import choice, endpoint, request
from epp_plugins.data_producers.inflight_load import InFlightLoadProducer
from epp_plugins.filters.prefix_cache_affinity import PrefixCacheAffinityFilter
from epp_plugins.pickers.max_score import MaxScorePicker
from epp_plugins.scorers.no_hit_lru import NoHitLRUScorer
from support import cases, wire
from support.core import Core

Case = dict[str, Any]

CASES = cases.load("scheduling")
FIELD_CONFIG = Path(__file__).parents[1] / "data" / "field-config.yaml"

DIFFERING = {
    "sched-063-disagg-headers": "prefill/decode disaggregation comes later: refused by name",
    "sched-066-pd-results": "prefill/decode disaggregation comes later: refused by name",
}

DIFFERING_ROWS = {
    "sched-070-inflight-release": {
        "evicted": "there is no eviction yet",
        "stream never completes (janitor timeout)": "nothing is released by time: a request whose"
        " stream is open is in flight, and the end of the stream is what releases it",
    },
}
"""Rows of tested cases where this picker differs, or has no room for them yet."""

CHECKS = cases.Checks()
case = CHECKS.register


def test_every_binding_case_is_tested_or_has_a_reason() -> None:
    assert cases.unaccounted(CASES, CHECKS, DIFFERING) == set()
    assert set(CHECKS) | set(DIFFERING) <= set(CASES)
    assert not set(CHECKS) & set(DIFFERING)
    assert set(DIFFERING) <= set(LATER) <= set(CASES) - set(CHECKS)
    for name, rows in DIFFERING_ROWS.items():
        assert rows.keys() <= set(CASES[name]["when"]["table"])


# A decision over a pool that is written down


def decide(
    plugins: Sequence[Mapping[str, Any]],
    endpoints: Sequence[Mapping[str, Any]],
    *,
    prompt: str | list[int] = "hello",
    headers: Mapping[str, str] | None = None,
    profiles: Sequence[str] = (),
    unless: int | None = None,
) -> Any:
    """
    Return what `epp schedule` says, or None where the request is refused with the status `unless`.

    Unnamed endpoints are called 0, 1, and so on.
    """
    document: dict[str, Any] = {
        "apiVersion": "llm-d.ai/v1alpha1",
        "kind": "EndpointPickerConfig",
        "plugins": plugins,
    }
    if profiles:
        document["schedulingProfiles"] = [{"name": name} for name in profiles]
    named = [{"name": str(at), **one} for at, one in enumerate(endpoints)]
    configuration = loader.load(json.dumps(document).encode(), Registry())
    state = schedule.read_state(json.dumps({"endpoints": named}).encode())
    body = json.dumps({"model": "m", "prompt": prompt}).encode()
    raw = schedule.read_request(body, headers or {})
    try:
        return schedule.run(configuration, state, raw, draws=1, seed=1)
    except ConfigError as refused:
        if unless is None or f"status {unless}:" not in str(refused):
            raise
        return None


def candidates(found: Any) -> dict[str, Any]:
    """The candidates of the one profile, by their names, in the order of names."""
    listed = found["profiles"]["default"]["candidates"]
    by_name = {one["endpoint"].partition("/")[2]: one for one in listed}
    return {name: by_name[name] for name in sorted(by_name)}


def scores(
    scorer: str,
    endpoints: Sequence[Mapping[str, Any]],
    parameters: Mapping[str, Any] | None = None,
    **asked: Any,
) -> list[float]:
    """The scores of one scorer, in the order of the endpoints."""
    found = decide([{"type": scorer, "parameters": parameters or {}}], endpoints, **asked)
    return [one["scores"][scorer] for one in candidates(found).values()]


def kept(found: Any) -> list[str]:
    return list(candidates(found))


def rows_of(data: Case, name: str = "table") -> Iterable[tuple[Any, Any]]:
    """Rows of the case's one table, with what is expected of each, but for those that differ."""
    skipped = DIFFERING_ROWS.get(data["id"], {})
    (when,) = [rows for key, rows in data["when"].items() if key.startswith(name)]
    (then,) = [rows for key, rows in data["then"].items() if key.startswith(name)]
    for row, wanted in zip(when, then, strict=True):
        if not isinstance(row, str) or row not in skipped:
            yield row, wanted


def build(plugin_type: str, parameters: Mapping[str, Any]) -> Any:
    return Registry().build(plugin_type, "mine", parameters).plugin


# Scorers


@case("sched-001-queue-scorer", "sched-002-running-scorer", "sched-003-kv-scorer")
@case("sched-004-load-aware")
def scores_of_one_signal(data: Case) -> None:
    key = next(iter(data["when"])).removeprefix("table_")
    signal = {"q": "waiting", "run": "running", "kv": "kvUsage"}[key]
    given = data["given"]
    parameters = {"threshold": given["threshold"]} if "threshold" in given else {}
    for values, wanted in rows_of(data):
        pool = [{"metrics": {signal: value}} for value in values]

        assert scores(given["scorer"], pool, parameters) == pytest.approx(wanted)


@case("sched-005-token-load")
def token_load(data: Case) -> None:
    threshold = data["given"]["threshold_tokens"]
    for row, wanted in rows_of(data):
        in_flight = 0 if row["in_flight"] == "none" else row["in_flight"]
        # A prompt that nobody has cached; the request of a row that says nothing of it is one
        # token long, for there is no shorter one.
        pool = [{"open": [{"prompt": [1] * in_flight}] if in_flight else []}]
        found = scores(
            data["given"]["scorer"],
            pool,
            {"queueThresholdTokens": threshold},
            prompt=[2] * row.get("uncached", 1),
        )

        a_token = 0.0 if "uncached" in row else 1 / threshold
        assert found == pytest.approx([wanted], abs=1e-9 + a_token)


@case("sched-006-active-request")
def active_requests(data: Case) -> None:
    for row, wanted in rows_of(data):
        parameters = {} if row["params"] == "default" else row["params"]
        pool = [{} if count == "none" else {"inFlight": count} for count in row["counts"]]

        found = scores(data["given"]["scorer"], pool, parameters)

        assert found == pytest.approx(wanted, abs=1e-4)


@case("sched-010-no-hit-lru-edges")
def no_hit_lru_edges(data: Case) -> None:
    found = {
        "one candidate": str(scores(data["given"]["scorer"], [{}])[0]),
        "no candidates": {},
        "null candidates": {},  # there is no null: a pool is a sequence of endpoints
    }
    empty = NoHitLRUScorer().score(request("hello"), EndpointView(()))

    assert list(empty) == []
    for row, wanted in rows_of(data):
        assert found[row] == ({} if wanted.startswith("empty map") else wanted)


@case("sched-011-no-hit-lru-rotation")
def no_hit_lru_rotation(data: Case) -> None:
    scorer, pods = data["given"]["scorer"], data["given"]["pods_in_order"]
    routed = data["when"][0]["cold_requests_routed_to"]
    then = data["then"]

    def after(count: int) -> dict[str, float]:
        """The scores once so many cold requests went where the case sends them."""
        pool = [
            {"name": pod, "served": [{"prompt": f"cold {pod}"}] if pod in routed[:count] else []}
            for pod in pods
        ]
        return dict(zip(pods, scores(scorer, pool), strict=True))

    best = [max(found, key=found.__getitem__) for found in map(after, range(len(routed) + 1))]
    assert best == [*then["best_before_each"], then["best_after"]]
    assert after(1) == pytest.approx(then["after_first"])


FITS: Mapping[str, Callable[[Sequence[float], float], bool]] = {
    "> 0.3 and above the wider range": lambda found, wider: found[0] > max(0.3, wider),
    "> 0.3": lambda found, _: found[0] > 0.3,
    "in (0, 0.3)": lambda found, _: 0 < found[0] < 0.3,
    "exactly 0.5": lambda found, _: found[0] == 0.5,
    "both in (0,0.3), second higher": lambda found, _: 0 < found[0] < found[1] < 0.3,
    "first > 0.3, second < 0.3": lambda found, _: found[0] > 0.3 > found[1],
}


@case("sched-017-context-length")
def context_length(data: Case) -> None:
    scorer = data["given"]["scorer"]
    label = data["given"]["label"].split()[0]

    def labelled(text: str) -> dict[str, Any]:
        return {} if text == "unlabelled" else {"labels": {label: text}}

    def found(row: Case) -> list[float]:
        ranges = row.get("ranges") or [row["range"]]
        return scores(scorer, [labelled(one) for one in ranges], prompt=[7] * row["len"] or "")

    wider = found(data["when"]["table"][1])[0]
    for row, wanted in rows_of(data):
        assert FITS[wanted](found(row), wider), row

    bad = data["then"]["bad_ranges"]
    assert scores(scorer, [labelled(one) for one in bad]) == [0.0] * len(bad)
    pool = ["unlabelled", "0-100", "100-200", "0-99", "101-200", *bad]
    filtering = {"type": scorer, "parameters": {"enableFiltering": True}}
    names = [{"name": f"{at:02}", **labelled(one)} for at, one in enumerate(pool)]

    assert kept(decide([filtering], names, prompt=[7] * 100)) == ["00", "01", "02"]


# Filters


def token(name: str) -> str:
    return base64.b64encode(f"default/{name}".encode()).decode()


@case("sched-013-session-filter")
def session_filter(data: Case) -> None:
    header = "x-session-token"
    mine = {"encodedEndpointHeaderConfig": {"header": "x-mine"}}
    asked: Mapping[str, tuple[dict[str, Any], dict[str, str]]] = {
        "token for endpoint-b": ({}, {header: token("endpoint-b")}),
        "no token": ({}, {}),
        "undecodable token": ({}, {header: "%%%"}),
        "token for a pod not among candidates": ({}, {header: token("endpoint-z")}),
        "custom header configured, token only in the default header": (
            mine,
            {header: token("endpoint-b")},
        ),
    }
    pool = [{"name": name} for name in data["given"]["pods"]]
    for row, wanted in rows_of(data):
        parameters, headers = asked[row]
        plugin = {"type": data["given"]["filter"], "parameters": parameters}

        assert kept(decide([plugin], pool, headers=headers)) == wanted


@case("sched-014-session-token-written")
async def session_token(data: Case, folder: Path) -> None:
    wanted = data["then"]["set"]["x-session-token"]
    name = re.fullmatch(r"base64\(default/(.*)\)", wanted)
    assert name is not None
    pod = name[1].replace("<pod>", "pod-7")
    sent = [wire.headers(), wire.body(), wire.response_headers(), wire.response_body(b"", end=True)]
    for plugin in data["given"]["plugin"].split(" or "):
        core = Core([{"name": pod}], config=written(folder, [{"type": plugin}]))

        replies = await core.play(sent)

        [head] = [one for one in replies if one.WhichOneof("response") == "response_headers"]
        assert wire.set_headers(head)["x-session-token"] == token(pod)


@case("sched-015-session-id-strategy")
async def session_ids(data: Case, folder: Path) -> None:
    # The other source, an attribute made of agents' headers, comes later and is refused.
    sources = [one for one in data["given"]["sources"] if "header" in one]
    parameters = {
        "strategy": data["given"]["strategy"],
        "sessionIdConfig": {"sources": sources},
    }
    plugin = {"type": data["given"]["plugin"], "parameters": parameters}
    core = Core([{}] * 3, config=written(folder, [plugin]))
    pods = {f"192.168.1.{at}:8000" for at in (1, 2, 3)}

    async def to(session: str = "", hint: Sequence[str] | None = None) -> set[str | None]:
        """Where requests go; each answers the next row of the case."""
        pairs = {**wire.POST, **({sources[0]["header"]: session} if session else {})}
        return {await core.pick(pairs=pairs, hint=hint) for _ in range(40)}

    new = {str(*await to(f"new-{at}")) for at in range(40)}
    first = await to("s1")
    others = pods - first
    without = await to("s1", sorted(others))

    assert new == pods
    assert len(first) == 1
    assert len(without) == 1
    assert without <= others
    assert await to("s1") == without
    assert await to() == pods


@case("sched-040-by-label")
def by_label(data: Case) -> None:
    given = data["given"]
    label, values = given["label"], given["validValues"]
    labels = [*values, "another", None]
    pool = [{"labels": {label: one}} if one else {} for one in labels]
    keeps = {
        "pods labelled a or b": ["0", "1"],
        "pods labelled a or b plus unlabelled ones": ["0", "1", "3"],
    }
    for row, wanted in rows_of(data):
        plugin = {"type": given["filter"], "parameters": {"label": label, "validValues": values}}
        plugin["parameters"] |= row

        assert kept(decide([plugin], pool)) == keeps[wanted]

    errors: Mapping[str, list[dict[str, Any]]] = {
        "empty label name": [{"label": "", "validValues": values}],
        "no validValues with allowsNoLabel false": [{"label": label, "allowsNoLabel": False}],
        "wrong JSON types": [
            {"label": 1, "validValues": values},
            {"label": label, "validValues": "a"},
            {"label": label, "validValues": values, "allowsNoLabel": "yes"},
        ],
    }
    refuses(given["filter"], data["then"]["config_errors"], errors)


def refuses(
    plugin_type: str, names: Sequence[str], errors: Mapping[str, list[dict[str, Any]]]
) -> None:
    """Fail where a plugin can be built with what a case calls an error."""
    for name in names:
        for parameters in errors[name]:
            with pytest.raises(ConfigError, match="parameters"):
                build(plugin_type, parameters)


@case("sched-043-utilization-filter")
def utilization(data: Case) -> None:
    kind = data["given"]["filter"]

    def left(metric: str, most: float, pool: list[dict[str, Any]], **more: Any) -> list[str]:
        limits = {"conditions": [{"metric": metric, "maxValue": most}], **more}
        found = decide([{"type": kind, "parameters": limits}], pool, unless=429)
        return [] if found is None else kept(found)

    active = [{"inFlight": count} for count in (1, 2, 3)]
    cache = [{"metrics": {"kvUsage": usage}} for usage in (0.5, 0.8, 0.9)]
    found = [
        left("active-requests", 2, active),
        left("active-requests", 2, [*active, {}]),
        left("kv-cache-utilization", 0.8, cache),
        left("active-requests", 0, active, fallbackOnEmpty=False),
        left("active-requests", 0, active, fallbackOnEmpty=True),
    ]
    keeps = {
        "1 and 2 kept": ["0", "1"],
        "pod without count kept": ["0", "1", "3"],
        "0.5 and 0.8 kept": ["0", "1"],
        "none": [],
        "all": ["0", "1", "2"],
    }

    assert found == [keeps[wanted] for wanted in data["then"]["table"]]
    one = {"metric": "active-requests", "maxValue": 1}
    errors: Mapping[str, list[dict[str, Any]]] = {
        "no conditions": [{}, {"conditions": []}],
        "unknown metric": [{"conditions": [one | {"metric": "nope"}]}],
        "missing maxValue": [{"conditions": [{"metric": "active-requests"}]}],
        "negative maxValue": [{"conditions": [one | {"maxValue": -1}]}],
        "kv maxValue above 1": [
            {"conditions": [{"metric": "kv-cache-utilization", "maxValue": 1.1}]}
        ],
    }
    refuses(kind, data["then"]["config_errors"], errors)


@case("sched-045-prefix-affinity-filter")
def prefix_affinity(data: Case) -> None:
    pool = [endpoint(name) for name in "abc"]
    threshold = data["given"]["threshold"]

    def left(
        matched: Sequence[int], tokens: Sequence[int] = (0, 0, 0), **parameters: Any
    ) -> list[str]:
        parameters.setdefault("affinity_threshold", threshold)
        one = PrefixCacheAffinityFilter(context=PluginContext("mine"), **parameters)
        asked, view = request(), EndpointView(pool[: len(matched)])
        asked.attributes.put(PREFIX_MATCH, PrefixMatch(matched, 10, 64, view))
        load = InFlightLoad([0] * len(matched), tokens, [0] * len(matched), 100, view)
        asked.attributes.put(INFLIGHT_LOAD, load)
        return [kept_one.id.name for kept_one in one.filter(asked, view)]

    sticky = (9, 3, 0)
    found = [
        left(sticky),
        left((7, 3, 0)),
        left(sticky, affinity_threshold=0.0),
        left(sticky, exploration_probability=1.0),
        left(sticky, (2000, 0, 900), maxTTFTPenaltyMs=1000.0, peak_prefill_throughput=1000.0),
        left((3,), (0,)),
    ]
    everybody = ["a", "b", "c"]
    keeps = {
        "only the sticky pod": ["a"],
        "all": everybody,
        "all (stickiness broken)": everybody,
        "that candidate": ["a"],
    }

    assert found == [keeps[wanted] for wanted in data["then"]["table"]]


# Profiles


class Fixed:
    """Scores everybody alike."""

    def __init__(self, score: float) -> None:
        self._score = score

    def score(self, request: InferenceRequest, endpoints: EndpointView) -> Sequence[float]:
        return [self._score] * len(endpoints)


class Dropping:
    """Removes so many from the end, and notes who was asked about whom."""

    def __init__(self, name: str, count: int, asked: list[tuple[str, int]]) -> None:
        self._name, self._count, self._asked = name, count, asked

    def filter(self, request: InferenceRequest, endpoints: EndpointView) -> Sequence[Endpoint]:
        self._asked.append((self._name, len(endpoints)))
        return endpoints[: max(0, len(endpoints) - self._count)]


def profile_of(
    filters: Sequence[Any] = (), scorers: Sequence[tuple[Any, float]] = ()
) -> SchedulerProfile:
    def instance(plugin: Any, at: int) -> PluginInstance:
        return PluginInstance(type(plugin).__name__, f"{type(plugin).__name__}-{at}", plugin)

    built = BuiltProfile(
        "default",
        [instance(one, at) for at, one in enumerate(filters)],
        [(instance(one, at), weight) for at, (one, weight) in enumerate(scorers)],
        instance(MaxScorePicker(context=PluginContext("picker")), 0),
    )
    return SchedulerProfile(built, Metrics())


@case("sched-030-weighted-sum")
def weighted_sum(data: Case) -> None:
    given = data["given"]["scorers"]
    variant = re.search(r"weights (\d+) and (\d+) give (\d+)", data["then"]["variant"])
    assert variant is not None
    weights = [[one["weight"] for one in given], [float(variant[1]), float(variant[2])]]
    totals = [data["then"]["total"], float(variant[3])]
    for of_each, total in zip(weights, totals, strict=True):
        scorers = [
            (Fixed(one["score"]), weight) for one, weight in zip(given, of_each, strict=True)
        ]
        [picked] = profile_of(scorers=scorers).run(request(), EndpointView([endpoint()])).picked

        assert picked.score == pytest.approx(total)


@case("sched-033-no-candidates")
async def no_candidates(data: Case, folder: Path) -> None:
    refused = await Core(data["given"]["pods"]).pick() is None

    assert refused is data["then"]["error"]


@case("sched-034-filter-chain")
def filter_chain(data: Case) -> None:
    names = data["given"]["filters"]
    pool = EndpointView([endpoint(name) for name in "abcde"])
    asked: list[tuple[str, int]] = []
    kept_all = profile_of([Dropping(name, 1, asked) for name in names]).run(request(), pool)

    assert asked == [(name, 5 - at) for at, name in enumerate(names)]
    assert len(kept_all.candidates) == 5 - len(names)

    asked.clear()
    with pytest.raises(Saturated):
        profile_of([Dropping(name, 5, asked) for name in names]).run(request(), pool)

    assert asked == [(names[0], 5)]


@case("sched-036-random-picker")
def random_picker(data: Case) -> None:
    for row, wanted in rows_of(data):
        plugin = {"type": data["given"]["picker"], "parameters": {"maxNumOfEndpoints": row["n"]}}
        found = decide([plugin], [{}] * row["pods"])
        picked = found["profiles"]["default"]["picked"]

        assert len(set(picked)) == len(picked) == wanted


def test_the_random_picker_gives_everybody_the_same_share_whatever_the_scores() -> None:
    kind = CASES["sched-036-random-picker"]["given"]["picker"]
    plugins = [{"type": kind}, {"type": "queue-scorer"}]
    document = {"apiVersion": "llm-d.ai/v1alpha1", "kind": "EndpointPickerConfig"}
    pool = {"endpoints": [{"name": str(at), "metrics": {"waiting": at}} for at in range(3)]}

    found = schedule.run(
        loader.load(json.dumps({**document, "plugins": plugins}).encode(), Registry()),
        schedule.read_state(json.dumps(pool).encode()),
        schedule.read_request(None, {}),
        draws=3000,
        seed=1,
    )

    assert list(found["picks"].values()) == pytest.approx([1 / 3] * 3, abs=0.05)


@case("sched-038-hermetic-kv-vs-lora-totals")
def hermetic_totals(data: Case) -> None:
    model = re.search(r"-> (\S+)", data["when"][0]["request"].split(",")[0])
    assert model is not None
    pool = [
        {
            "name": pod["name"],
            "address": f"192.168.1.{at + 1}",
            "metrics": {
                "waiting": pod["q"],
                "kvUsage": pod["kv"],
                "runningAdapters": pod["loras"],
            },
        }
        for at, pod in enumerate(data["given"]["pods"])
    ]
    body = {"model": model[1], "prompt": data["when"][0]["prompt"]}
    found = schedule.run(
        loader.load(FIELD_CONFIG.read_bytes(), Registry()),
        schedule.read_state(json.dumps({"endpoints": pool}).encode()),
        schedule.read_request(json.dumps(body).encode(), {}),
        draws=10,
        seed=1,
    )

    totals = {name: one["total"] for name, one in candidates(found).items()}
    assert totals == pytest.approx(data["then"]["totals"])
    [(picked, share)] = found["picks"].items()
    assert share == 1.0
    chosen = candidates(found)[picked.partition("/")[2]]
    assert chosen["destination"] == data["then"]["endpoint"]


@case("sched-067-header-profile-handler")
def header_profile(data: Case) -> None:
    given = data["given"]
    header = re.search(r"stored as (\S+)\)", given["default_header"])
    assert header is not None
    plugins = [{"type": given["handler"]}]

    def runs(value: str, profiles: Sequence[str]) -> str:
        headers = {} if value == "(absent)" else {header[1]: value}
        found = decide(plugins, [{}], headers=headers, profiles=profiles, unless=400)
        return "none" if found is None else str(*found["profiles"])

    for value, wanted in zip(data["when"]["table_header"], data["then"]["table_runs"], strict=True):
        assert runs(value, given["profiles"]) == wanted
        assert runs(value, ["alone"]) == "alone"


# The load in flight


@case("sched-069-inflight-estimate")
def estimate(data: Case) -> None:
    for row, wanted in rows_of(data):
        producer = InFlightLoadProducer(add_estimated_output_tokens=True)
        asked = request(max_output_tokens=row.get("client_max_tokens"))
        asked.attributes.put(PROMPT_TOKENS, row["input"])
        one = endpoint()
        asked.attributes.put(INFLIGHT_LOAD, producer.produce(asked, EndpointView([one])))
        producer.pre_request(asked, choice(one))

        assert producer.dump_state()["tokens"] == wanted


@case("sched-070-inflight-release")
async def release(data: Case, folder: Path) -> None:
    core = Core([{}], config=written(folder, [{"type": "token-load-scorer"}]))
    director = core.app.director
    [held] = [
        one.plugin for one in core.app.configuration.plugins if one.type == "inflight-load-producer"
    ]
    causes = {
        "response completes": TerminationCause.COMPLETED,
        "client disconnects mid-response": TerminationCause.CLIENT_DISCONNECTED,
        "endpoint deleted then late completion": TerminationCause.COMPLETED,
        **dict.fromkeys(DIFFERING_ROWS[data["id"]], TerminationCause.DRAINED),
    }
    assert data["then"]["in_flight_after"].startswith("0 in every row")
    for row, begun in itertools.product(data["when"]["table"], (True, False)):
        routed = await director.handle_request(RawRequest(wire.POST, wire.COMPLETION))
        assert held.dump_state()["tokens"] > 0
        if begun:
            director.on_response_body(routed, b"{")
        if row.startswith("endpoint deleted"):
            core.app.datastore.apply(EndpointRemoved(EndpointId("default", "pod-0")))
            core.add(0, {})
        director.finish(routed, causes[row])
        director.finish(routed, causes[row])  # the second end is none

        assert held.dump_state() == {"endpoints": 0, "tokens": 0}
        assert routed.endpoint.load.in_flight == 0
        assert core.in_flight == 0


LATER: Mapping[str, Sequence[str]] = {
    "sched-016-agent-identity": (),
    "sched-018-endpoint-attribute-scorer": (),
    "sched-019-topology-scorer": (),
    "sched-020-mm-cache-scorer": (),
    "sched-021-header-label-affinity": (),
    "sched-022-multicluster-scorers": (),
    "sched-023-latency-scorer": (),
    "sched-044-endpoint-attribute-filter": (),
    "sched-046-slo-tier-filter": (),
    "sched-047-topology-filter": (),
    "sched-050-probabilistic-admitter": (),
    "sched-051-latency-slo-admitter": (),
    "sched-062-pd-decider-cached-blocks": ["prefix-based-pd-decider"],
    "sched-063-disagg-headers": ["disagg-headers-handler", "prefill-header-handler"],
    "sched-064-epd-stage-order": (),
    "sched-065-prefill-first-order": (),
    "sched-066-pd-results": ["disagg-profile-handler", "pd-profile-handler"],
}
"""Cases of plugins that come later, with their types where the case does not say them."""


@pytest.mark.parametrize("name", LATER)
def test_what_comes_later_is_refused_by_its_name(name: str) -> None:
    given = CASES[name]["given"]
    said = [given[key] for key in ("scorer", "filter", "plugin", "handler") if key in given]
    for plugin_type in LATER[name] or given.get("scorers") or said:
        with pytest.raises(ConfigError) as refused:
            decide([{"type": plugin_type}], [{}])

        assert f"plugin type {plugin_type!r}: this version has no" in str(refused.value)


def written(folder: Path, plugins: Sequence[Mapping[str, Any]]) -> Path:
    """A file that configures these plugins."""
    path = folder / "config.yaml"
    document = {"apiVersion": "llm-d.ai/v1alpha1", "kind": "EndpointPickerConfig"}
    path.write_text(yaml.safe_dump({**document, "plugins": list(plugins)}))
    return path


OF_A_PICKER = [name for name, check in CHECKS.items() if inspect.iscoroutinefunction(check)]


@pytest.mark.parametrize("name", sorted(set(CHECKS) - set(OF_A_PICKER)))
def test_case(name: str) -> None:
    CHECKS[name](CASES[name])


@pytest.mark.parametrize("name", sorted(OF_A_PICKER))
async def test_case_of_a_running_picker(name: str, tmp_path: Path) -> None:
    await CHECKS[name](CASES[name], tmp_path)
