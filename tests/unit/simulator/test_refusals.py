"""What is refused, in the words of a real vLLM 0.32 wherever there is a capture of them."""

from typing import Any

import pytest

from support.simulated import CHAT, COMPLETIONS, HELLO, RESPONSES, TINY, ask_once, capture, options

pytestmark = pytest.mark.looptime(False)  # noqa: FBT003  # the marker has no name for it


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        pytest.param("unknown_model", {"body": TINY | {"model": "nope"}}, id="unknown model"),
        pytest.param("missing_field", {"body": {"max_tokens": 4}}, id="no prompt"),
        pytest.param("empty_prompt", {"body": TINY | {"prompt": []}}, id="no prompts"),
        pytest.param("zero_max_tokens", {"body": TINY | {"max_tokens": 0}}, id="no tokens"),
        pytest.param("negative_max_tokens", {"body": TINY | {"max_tokens": -1}}, id="fewer"),
        pytest.param("prompt_too_long", {"body": TINY | {"prompt": [7] * 2100}}, id="too long"),
        pytest.param("prompt_exact_2048", {"body": TINY | {"prompt": [7] * 2048}}, id="no room"),
        pytest.param("cache_salt_empty", {"body": TINY | {"cache_salt": ""}}, id="empty salt"),
        pytest.param(
            "bad_json", {"body": b'{"model":"tiny-llama","prompt":'}, id="JSON that breaks off"
        ),
        pytest.param(
            "wrong_content_type", {"body": TINY, "content-type": "text/plain"}, id="content type"
        ),
        pytest.param("bad_type", {"body": TINY | {"max_tokens": "abc"}}, id="no number"),
        pytest.param("bad_temperature", {"body": TINY | {"temperature": -1}}, id="temperature"),
        pytest.param("model_max_logprobs", {"body": TINY | {"logprobs": 100}}, id="logprobs"),
        pytest.param(
            "stream_unknown_model", {"body": TINY | {"model": "nope", "stream": True}}, id="stream"
        ),
        pytest.param(
            "unknown_model_chat",
            {"path": CHAT, "body": {"model": "nope", "messages": HELLO}},
            id="unknown model of a chat",
        ),
        pytest.param(
            "chat_too_long",
            {"path": CHAT, "body": {"messages": [{"role": "user", "content": "x" * 10_000}]}},
            id="too long a chat",
        ),
        pytest.param(
            "hdr_dp_rank_bad", {"body": TINY, "X-data-parallel-rank": "3"}, id="no such rank"
        ),
        pytest.param("method_not_allowed", {"method": "GET"}, id="method"),
        pytest.param("not_found", {"path": "/v1/nothing"}, id="path"),
    ],
)
async def test_a_refusal_is_that_of_the_real_server(name: str, asked: dict[str, Any]):
    answer = await ask_once(**({"path": COMPLETIONS} | asked))

    real = capture(name)
    assert (answer.status, answer.json) == (real.status, real.json)


@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        pytest.param(
            CHAT, {"model": "a"}, ("Bad Request", "body.messages"), id="a chat without messages"
        ),
        pytest.param(
            CHAT, {"messages": []}, ("BadRequestError", "messages"), id="a chat of no messages"
        ),
        pytest.param(COMPLETIONS, [1], ("Bad Request", "body"), id="no object"),
        pytest.param(COMPLETIONS, b"[" * 100_000, ("Bad Request", "body"), id="a deep nest"),
        pytest.param(COMPLETIONS, TINY | {"n": 0}, ("BadRequestError", "n"), id="no choices"),
        pytest.param(COMPLETIONS, TINY | {"n": 1e6}, ("BadRequestError", "n"), id="too many"),
        pytest.param(
            COMPLETIONS, TINY | {"stop": [""]}, ("BadRequestError", "stop"), id="an empty stop"
        ),
        pytest.param(
            COMPLETIONS,
            TINY | {"min_tokens": 2},
            ("BadRequestError", "min_tokens"),
            id="more tokens at least than at most",
        ),
        pytest.param(
            COMPLETIONS,
            TINY | {"min_tokens": -1},
            ("BadRequestError", "min_tokens"),
            id="fewer tokens than none",
        ),
        pytest.param(
            COMPLETIONS,
            TINY | {"cache_salt": "x" * 1025},
            ("BadRequestError", "cache_salt"),
            id="a long salt",
        ),
        pytest.param(
            COMPLETIONS,
            TINY | {"priority": 2**63},
            ("Bad Request", "body.priority"),
            id="a priority that is too large",
        ),
        pytest.param(
            CHAT,
            {"messages": HELLO, "top_logprobs": 21},
            ("BadRequestError", "top_logprobs"),
            id="logprobs of a chat",
        ),
        pytest.param(
            CHAT,
            {"messages": [{"role": "user", "content": 5}]},
            ("Bad Request", "body.messages.0.content"),
            id="a number for a content",
        ),
        pytest.param(RESPONSES, {}, ("Bad Request", "body.input"), id="a response to nothing"),
        pytest.param(
            "/v1/embeddings",
            {"input": "x", "dimensions": 0},
            ("BadRequestError", "dimensions"),
            id="an embedding in no dimension",
        ),
        pytest.param(
            "/v1/embeddings", {}, ("Bad Request", "body.input"), id="an embedding of none"
        ),
        pytest.param("/tokenize", {}, ("BadRequestError", "prompt"), id="the tokens of nothing"),
        pytest.param(
            COMPLETIONS,
            TINY | {"prompt": [1, "x"]},
            ("BadRequestError", "prompt"),
            id="tokens mixed with texts",
        ),
        pytest.param(COMPLETIONS, b'{"prompt": "\xff"}', ("Bad Request", "body.15"), id="no UTF-8"),
    ],
)
async def test_other_refusals_name_what_was_wrong(path: str, body: Any, expected: tuple[str, str]):
    answer = await ask_once(path, body)

    error = answer.json["error"]
    assert (answer.status, error["type"], error["param"]) == (400, *expected)


@pytest.mark.parametrize("given", ["high", "1.5", "", str(2**63)])
async def test_a_priority_header_that_is_no_priority_is_refused(given: str):
    answer = await ask_once(COMPLETIONS, TINY, **{"X-Vllm-Priority": given})

    assert (answer.status, answer.json["error"]["param"]) == (400, "priority")


async def test_numbers_in_quotes_are_numbers():
    answer = await ask_once(COMPLETIONS, TINY | {"max_tokens": "3"})

    assert answer.json["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize(
    ("path", "key", "status"),
    [
        pytest.param("/v1/models", "Bearer secret", 200, id="the right key"),
        pytest.param("/v1/models", "Bearer other", 401, id="a wrong key"),
        pytest.param("/v1/models", "secret", 401, id="no bearer"),
        pytest.param("/v1/models", "", 401, id="no key"),
        pytest.param("/health", "", 200, id="a path that asks for none"),
    ],
)
async def test_a_server_with_a_key_asks_for_it(path: str, key: str, status: int):
    answer = await ask_once(path, served=options(api_key="secret"), Authorization=key)

    assert answer.status == status


@pytest.mark.parametrize(
    "path", ["/v1/messages", "/v1/load_lora_adapter", "/v1/unload_lora_adapter"]
)
async def test_what_is_not_served_is_not_found(path: str):
    answer = await ask_once(path, {"lora_name": "x", "lora_path": "y"})

    assert (answer.status, answer.body) == (404, b'{"detail":"Not Found"}')
