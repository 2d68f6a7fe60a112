"""
The field's acceptance cases of the areas protocol, streaming, errors and subset, from their data.

A case's messages are played through the real exchange, director and plugins. What is compared is
what binds: destination, statuses, bodies, content-length, token counts; headers are not echoed.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from epp.extproc import messages
from epp.extproc.exchange import Exchange, RequestReceived
from epp.extproc.response_body import ModelRenamer
from epp.framework import EPPError, Saturated, TerminationCause, errors
from epp.requestcontrol import protocol
from support import cases, wire
from support.core import Core

AREAS = ("protocol", "streaming", "errors", "subset")
CASES = {name: case for area in AREAS for name, case in cases.load(area).items()}

DIFFERS = {
    "proto-013-get-no-pods": "an empty pool is 503 for every request, not 500 for those without a"
    " body: the protocol's own rule, and what a client can act on; tested below as 503",
    "proto-032-health-leader-election": "there is no leader election yet",
    "proto-019-dynamic-metadata-merge": "no plugin writes dynamic metadata yet",
    "proto-028-skip-response-processing": "the stream is what tells that a request has ended:"
    " closing it early would lose the count of requests in flight",
    "proto-029-eviction-immediate": "there is no eviction yet",
    "stream-008-anthropic-split-usage": "there is no parser of Anthropic's dialect yet",
    "stream-013-metadata-on-last-body-chunk": "no plugin writes dynamic metadata yet",
    "err-016-grpc-malformed": "there is no parser of vLLM's gRPC API yet",
}

ELSEWHERE = {"proto-031-health-service": "tests/integration/test_health.py"}

CHECKS = cases.Checks()
case = CHECKS.register


def test_every_binding_case_is_tested_or_has_a_reason() -> None:
    assert cases.unaccounted(CASES, {*CHECKS, *ELSEWHERE}, DIFFERS) == set()
    assert set(CHECKS) | set(DIFFERS) <= set(CASES)


# From a case's data to messages, and from replies to its expectations


def played(when: list[dict[str, Any]]) -> list[Any]:
    """The messages of a case; response headers follow requests by themselves where it says so."""
    sent = []
    for step in when:
        end = step.get("eos", False)
        hint = (step.get("filter_metadata") or {}).get(protocol.SUBSET_NAMESPACE, {})
        if "req_headers" in step:
            message = wire.headers(step["req_headers"], end=end)
        elif "req_body" in step:
            message = wire.body(step["req_body"].encode(), end=end)
        elif "req_trailers" in step:
            message = wire.trailers()
        elif "resp_headers" in step:
            message = wire.response_headers(end=end)
            del message.response_headers.headers.headers[:]
            for key, value in step["resp_headers"].items():
                message.response_headers.headers.headers.add(key=key, raw_value=value.encode())
            message.protocol_config.response_body_mode = messages.FULL_DUPLEX_STREAMED
        else:
            message = wire.response_body(step["resp_body"].encode(), end=end)
        sent.append(wire.with_hint(message, hint[protocol.SUBSET]) if hint else message)
    return sent


def field_config_file() -> Path:
    return Path(__file__).parents[1] / "data" / "field-config.yaml"


def same_body(expected: str, actual: bytes) -> bool:
    """JSON is compared as JSON: peers re-serialise what they change."""
    try:
        return bool(json.loads(expected) == json.loads(actual))
    except ValueError:
        return expected.encode() == actual


@case("proto-001-basic-route", "proto-003-content-length-of-mutated-body")
@case("proto-012-get-headers-only")
@case("proto-014-split-body-reassembled")
@case("stream-001-json-buffered", "stream-003-json-empty-eos-chunk", "stream-004-sse-per-chunk")
async def messages_and_replies(data: dict[str, Any]) -> None:
    pods = data["given"].get("pods", [{}])
    when, then = data["when"], data["then"]
    if data["given"].get("fixture") == "server":  # its director sends all to one place, as "v1"
        pods = [{"ip": "1.2.3.4", "port": 5678}]
        when = [dict(step) for step in when]
        when[0]["req_headers"] = {**when[0]["req_headers"], "x-llm-d-model-name-rewrite": "v1"}
    core = Core(pods, config=field_config_file())

    replies = await core.play(played(when))

    expected = then.get("responses")
    if expected is None:
        assert wire.destination(replies[0]) == then["endpoint"]
        assert same_body(then["body"], wire.streamed(replies, "request_body")[0])
        return
    assert len(replies) == len(expected)
    for reply, wanted in zip(replies, expected, strict=True):
        check_reply(reply, wanted)


def check_reply(reply: Any, wanted: dict[str, Any]) -> None:
    kind = wire.kinds([reply])[0]
    assert kind in wanted
    parts = wanted[kind]
    if parts == "any":
        return
    if "streamed_body" in parts:
        body, ends = wire.streamed([reply], kind)
        assert same_body(parts["streamed_body"], body)
        assert ends == (1 if parts["eos"] else 0)
        return
    headers = wire.set_headers(reply)
    if kind == "request_headers":
        wanted_headers = {key.lower(): value for key, value in parts["set"].items()}
        assert wire.common(reply).clear_route_cache is parts.get("clear_route_cache", True)
        assert wire.destination(reply) == wanted_headers[protocol.DESTINATION]
        if "content-length" in wanted_headers:
            assert headers["content-length"] == wanted_headers["content-length"]
        absent = {name.lower() for name in parts.get("absent", [])}
        assert not absent & headers.keys()
        assert absent - {"content-length"} <= wire.removed(reply)
    else:
        assert headers["x-went-into-resp-headers"] == "true"


# protocol


@case("proto-006-system-owned-header-set")
async def system_owned(data: dict[str, Any]) -> None:
    names = data["when"][0]["classify_headers"]

    assert all(protocol.is_system_owned(name) for name in names)
    assert not protocol.is_system_owned("x-request-id")


@case("proto-008-raw-value-preferred")
async def raw_value_preferred(data: dict[str, Any]) -> None:
    name, value = next(iter(data["when"][0]["req_headers"].items()))
    message = wire.headers({})
    message.request_headers.headers.headers.add(
        key=name, raw_value=value["raw_value"].encode(), value=value["value"]
    )

    headers = messages.headers_of(message.request_headers)

    assert protocol.first_of(headers, protocol.OBJECTIVE) == data["then"]["objective"]


@case("proto-016-chunk-preserves-bytes")
async def pieces_preserve_bytes(data: dict[str, Any]) -> None:
    body = bytes(range(256)) * 1000

    replies = wire.parsed(messages.streamed_body("request_body", body, end_of_stream=True))

    assert wire.streamed(replies, "request_body") == (body, 1)


@case("proto-018-ipv6-bracketed")
async def ipv6(data: dict[str, Any]) -> None:
    destination = await Core(data["given"]["pods"]).pick()

    assert destination == data["then"]["destination_header"]


@case("proto-035-get-ipv6")
async def ipv6_of_a_get(data: dict[str, Any]) -> None:
    replies = await Core(data["given"]["pods"]).play(played(data["when"]))

    assert wire.destination(replies[0]) == data["then"]["destination"]


@case("proto-022-unmutated-body-verbatim")
async def verbatim(data: dict[str, Any]) -> None:
    body = data["when"][0]["req_body"]

    replies = await Core().play([wire.headers(), wire.body(body.encode())])

    assert wire.streamed(replies, "request_body")[0] == data["then"]["body"].encode()


@case("proto-023-request-trailers-ignored")
async def trailers_after_the_end(data: dict[str, Any]) -> None:
    replies = await Core().play([wire.headers(), wire.body(), wire.trailers()])

    assert wire.kinds(replies).count("request_trailers") == data["then"]["responses_for_trailers"]


@case("proto-025-client-eof-and-cancel")
async def the_end_at_any_phase(data: dict[str, Any]) -> None:
    sent = [
        wire.headers(),
        wire.body(b'{"model":"m",', end=False),
        wire.body(b'"prompt":"p"}'),
        wire.response_headers(),
        wire.response_body(b"{"),
        wire.response_body(b"}", end=True),
    ]
    for until in range(len(sent) + 1):
        core = Core()

        await core.play(sent[:until])

        assert core.in_flight == 0
        assert core.total("epp_requests_running") == 0
        assert core.total("epp_requests_finished_total") == (1 if until >= 3 else 0)


@case("proto-034-get-respects-subset")
async def subset_of_a_get(data: dict[str, Any]) -> None:
    for _ in range(10):
        replies = await Core(data["given"]["pods"]).play(played(data["when"]))

        assert wire.destination(replies[0]) == data["then"]["ours"]


async def test_an_empty_pool_is_503_with_and_without_a_body() -> None:
    core = Core([])

    for sent in ([wire.headers(end=True)], [wire.headers(), wire.body()]):
        reply = (await core.play(sent))[0].immediate_response

        assert reply.status.code == 503


# subset


@case("subset-002-all-listed", "subset-003-only-loaded-pod-listed")
async def subset_choice(data: dict[str, Any]) -> None:
    hint = data["when"][0]["filter_metadata"][protocol.SUBSET_NAMESPACE][protocol.SUBSET]
    core = Core(data["given"]["pods"], config=field_config_file())
    body = wire.with_hint(wire.body(b'{"model":"sql-lora-1fdg2","prompt":"test"}'), hint)

    replies = await core.play([wire.headers(), body])

    assert wire.destination(replies[0]) == data["then"]["endpoint"]


@case("subset-006-empty-list-is-not-absent")
async def empty_subset(data: dict[str, Any]) -> None:
    replies = await Core(data["given"]["pods"]).play([wire.headers(hint=[]), wire.body()])

    assert replies[0].immediate_response.status.code == data["then"]["status"]


@case("subset-010-string-form")
async def subset_strings(data: dict[str, Any]) -> None:
    pods = data["given"]["pods"]
    for row, wanted in zip(data["when"]["table"], data["then"]["table"], strict=True):
        text = re.search(r"'(.*)'$", row)
        value: Any = text[1] if text else row.removeprefix("string ")
        hint = [value] if row.startswith("list") else value

        assert await destinations(pods, hint) == set(wanted)


@case("subset-011-no-colon-and-ipv6")
async def subset_addresses(data: dict[str, Any]) -> None:
    table = zip(data["when"]["table_subset"], data["then"]["table"], strict=True)
    for hint, wanted in table:
        assert await destinations(data["given"]["pods"], hint) == set(wanted)


async def test_a_hint_with_ports_allows_these_ports_alone() -> None:
    data = CASES["subset-009-port-handling-differs"]
    for hint, wanted in zip(data["when"]["table_subset"], data["then"]["gie_1_6"], strict=True):
        found = await destinations(data["given"]["pods"], hint, with_port=True)

        assert found == set(wanted)


async def destinations(pods: Any, hint: Any, *, with_port: bool = False) -> set[str]:
    """Every address that requests with this hint go to."""
    core = Core(pods)
    found = set()
    for _ in range(40):
        destination = await core.pick(hint=hint)
        if destination is not None:
            address = destination.rpartition(":")[0].strip("[]")
            found.add(destination if with_port else address)
    return found


# errors


@case("err-002-missing-model")
async def missing_model(data: dict[str, Any]) -> None:
    replies = await Core(data["given"]["pods"]).play(
        played([{"req_headers": wire.POST}, *data["when"][1:]])
    )

    reply = replies[0].immediate_response
    wanted = data["then"]["immediate"]
    assert reply.status.code == wanted["status"]
    assert json.loads(reply.body)["error"]["message"] == wanted["body"].partition(" - ")[2]


@case("err-003-prompt-missing")
async def missing_prompt(data: dict[str, Any]) -> None:
    completion, chat = data["when"]["table"]
    for path, body in (("/v1/completions", completion), ("/v1/chat/completions", chat)):
        head = wire.headers({**wire.POST, ":path": path})
        replies = await Core().play([head, wire.body(body.encode())])

        assert replies[0].immediate_response.status.code == 400


@case("err-004-code-to-status")
async def code_to_status(data: dict[str, Any]) -> None:
    table = dict(zip(data["when"]["table_code"], data["then"]["table_status"], strict=True))
    ours = [one for one in vars(errors).values() if isinstance(one, type)]
    known = {one.code: one.status for one in ours if issubclass(one, EPPError)}

    agreed = {code for code in known if code in table}
    assert agreed == {"BadRequest", "ResourceExhausted", "Internal", "ServiceUnavailable"}
    assert all(known[code] == table[code] for code in agreed)


@case("err-005-error-headers")
async def error_headers(data: dict[str, Any]) -> None:
    reply = wire.parsed([messages.immediate(Saturated("full"))])[0]

    wanted = data["then"]["immediate"]
    assert reply.immediate_response.status.code == wanted["status"]
    assert wanted["set"].items() <= wire.set_headers(reply).items()


@case("err-007-scheduler-empty-result")
async def empty_result(data: dict[str, Any]) -> None:
    # The field fails such a request; here a picker that picks nothing is answered for.
    core = Core([{}])
    profile = core.app.director._policies.scheduler._profiles["default"]
    profile._picker = type("Nothing", (), {"pick": lambda *_: []})()

    assert await core.pick() == "192.168.1.1:8000"


@case("err-011-producer-failure-ignored")
async def producer_failure(data: dict[str, Any]) -> None:
    core = Core([{}])

    def fail(*_: object) -> None:
        raise ValueError("no")

    core.app.director._policies.producers._computing[0][0].produce = fail

    assert (await core.pick() is not None) is data["then"]["routed"]
    assert core.total("epp_plugin_errors_total") == 1


@case("err-014-unknown-path")
async def unknown_path(data: dict[str, Any]) -> None:
    config = Path(__file__).parents[1] / "data" / "openai-only-config.yaml"
    replies = await Core(config=config).play(played(data["when"]))

    reply = replies[0].immediate_response
    wanted = data["then"]["immediate"]
    assert reply.status.code == wanted["status"]
    assert wanted["body_contains"] in reply.body.decode()


# streaming


@case("stream-007-usage-not-lost-by-done")
async def usage_and_done(data: dict[str, Any]) -> None:
    for pieces, wanted in zip(data["when"]["table"], data["then"]["table"], strict=True):
        core = Core()
        head = wire.response_headers({"content-type": "text/event-stream"})
        bodies = [wire.response_body(piece.encode()) for piece in pieces]

        await core.play(
            [wire.headers(), wire.body(), head, *bodies, wire.response_body(b"", end=True)]
        )

        assert (core.metric("epp_prompt_tokens_sum", model="m") or 0) == wanted["prompt"]
        assert (core.metric("epp_completion_tokens_sum", model="m") or 0) == wanted["completion"]


@case("stream-009-model-name-restored")
async def name_restored(data: dict[str, Any]) -> None:
    given = data["given"]
    for sent, wanted in zip(data["when"]["table"], data["then"]["table"], strict=True):
        renamer = ModelRenamer(given["target_model"], given["incoming_model"])

        assert renamer.feed(sent.encode(), last=True) == wanted.encode()


@case("stream-011-model-name-end-to-end")
async def name_end_to_end(data: dict[str, Any]) -> None:
    asked, target = data["given"]["body_model"], data["given"]["rewrite_header"]
    body = json.dumps({"model": asked, "prompt": "x"}).encode()
    answer = json.dumps({"model": target}).encode()
    tail = [wire.body(body), wire.response_headers(), wire.response_body(answer, end=True)]
    rewritten = wire.headers({**wire.POST, "x-llm-d-model-name-rewrite": target})

    with_header = await Core().play([rewritten, *tail])
    without = await Core().play([wire.headers(), *tail])

    assert json.loads(wire.streamed(with_header, "request_body")[0])["model"] == target
    assert json.loads(wire.streamed(with_header, "response_body")[0])["model"] == asked
    assert wire.streamed(without, "request_body")[0] == body
    assert wire.streamed(without, "response_body")[0] == answer


@case("stream-012-response-headers-sanitised")
async def response_sanitised(data: dict[str, Any]) -> None:
    replies = await Core().play(played(data["when"]))

    present = wire.set_headers(replies[0]).keys()
    absent = set(data["then"]["set_absent"])
    assert "x-went-into-resp-headers" in present
    assert not absent & present
    assert absent - {"content-length"} <= wire.removed(replies[0])


@case("stream-022-chunk-hook-order")
async def observers_see_the_end_once(data: dict[str, Any]) -> None:
    pieces = [b"data: %d\n\n" % at for at in range(50)]
    head = wire.response_headers({"content-type": "text/event-stream"})

    replies = await Core().play(
        [
            wire.headers(),
            wire.body(),
            head,
            *[wire.response_body(piece) for piece in pieces],
            wire.response_body(b"", end=True),
        ]
    )

    assert wire.streamed(replies, "response_body") == (b"".join(pieces), 1)


@case("stream-023-duplicate-request-ids")
async def equal_request_ids(data: dict[str, Any]) -> None:
    core = Core()
    head = {**wire.POST, "x-request-id": "same"}
    exchanges = [Exchange(max_body_bytes=1 << 20) for _ in range(2)]
    routed = []
    for exchange in exchanges:
        exchange.receive(wire.headers(head))
        event = exchange.receive(wire.body())
        assert isinstance(event, RequestReceived)
        routed.append(await core.app.director.handle_request(event.raw))

    core.app.director.finish(routed[0], TerminationCause.COMPLETED)
    after_one = core.in_flight
    core.app.director.finish(routed[1], TerminationCause.COMPLETED)

    assert (after_one, core.in_flight) == (1, 0)


@case("stream-024-served-endpoint-from-response-metadata")
async def served(data: dict[str, Any]) -> None:
    exchange = Exchange(max_body_bytes=1 << 20)
    wanted = data["then"]["served_endpoint_visible_to_hooks"]

    event = exchange.receive(wire.response_headers(served=wanted))

    assert getattr(event, "served", None) == wanted


@pytest.mark.parametrize("name", sorted(CHECKS))
async def test_case(name: str) -> None:
    await CHECKS[name](CASES[name])
