"""The field's own cases for parsers, row by row, as far as the parsers here speak the dialect."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from epp.framework import BadRequest, Usage
from epp_plugins.parsers.openai import OpenAIParser

FILE = Path(__file__).parents[3] / "data" / "cases" / "parser.yaml"
CASES = {case["id"]: case for case in yaml.safe_load(FILE.read_text())}

COVERED = {
    "parse-006-completions-prompt-shapes",
    "parse-009-api-paths",
    "parse-010-cache-salt",
    "parse-011-max-output-tokens",
    "parse-013-usage-json",
    "parse-014-usage-malformed-fields",
}
NOT_HERE = {
    "parse-001-path-resolution": "the core chooses the parser",
    "parse-003-passthrough-fallback": "the core chooses the parser",
    "parse-018-anthropic-count-tokens": "no parser of the Anthropic dialect yet",
    "parse-019-anthropic-usage": "no parser of the Anthropic dialect yet",
    "parse-022-vllm-grpc": "no parser of vLLM's gRPC API yet",
    "parse-023-vllm-grpc-routing": "no parser of vLLM's gRPC API yet",
    "parse-024-grpc-frame": "no parser of vLLM's gRPC API yet",
}
OTHER_DIALECTS = {
    "/v1/messages": "no parser of the Anthropic dialect yet",
    "anthropic": "no parser of the Anthropic dialect yet",
    "/inference/v1/generate": "no parser of vLLM's token API yet",
    "generate": "no parser of vLLM's token API yet",
    "/generate": "no parser of the SGLang dialect yet",
    "sglang": "no parser of the SGLang dialect yet",
}

MESSAGES = [{"role": "user", "content": "hello"}]
WHOLE_BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": MESSAGES},
    "/v1/completions": {"prompt": "hello"},
    "/v1/embeddings": {"input": "hello"},
    "/v1/responses": {"input": "hello"},
}
PATHS = {
    "chat": "/v1/chat/completions",
    "completions": "/v1/completions",
    "responses": "/v1/responses",
}


def rows(name: str, table: str = "table") -> list[Any]:
    """Return a parameter for each row of the case that is of this dialect: given, expected."""
    case = CASES[name]
    given, then = case["when"][table], case["then"]
    expected = then.get("table", [then] * len(given))
    found = []
    for at, (row, want) in enumerate(zip(given, expected, strict=True)):
        named = {row.get("path"), *row} if isinstance(row, dict) else set()
        if not named & OTHER_DIALECTS.keys():
            found.append(pytest.param(row, want, id=f"{name[:9]}-{at}"))
    return found


def outcome(path: str, document: dict[str, Any]) -> Any:
    """Return the facts of the body, or "400"."""
    try:
        return OpenAIParser().parse_request(path, {}, json.dumps(document).encode())
    except BadRequest as error:
        return str(error.status)


def test_every_binding_case_is_covered_or_accounted_for() -> None:
    binding = {name for name, case in CASES.items() if case["binding"] in {"must", "should"}}

    assert binding == COVERED | NOT_HERE.keys()


@pytest.mark.parametrize(
    ("prompt", "expected"), rows("parse-006-completions-prompt-shapes", "table_prompt")
)
def test_prompt_shapes(prompt: str, expected: str) -> None:
    meant = {
        "raw text": b"test prompt",
        "one string": b"hello",
        "two strings (a batch)": b"hello",
        "token ids": b"\1\0\0\0\2\0\0\0\3\0\0\0",
        "400": "400",
    }
    given = {} if prompt == "(missing)" else {"prompt": json.loads(prompt)}

    seen = outcome("/v1/completions", {"model": "m"} | given)

    assert meant[expected] == (seen if seen == "400" else seen.prompt)


@pytest.mark.parametrize(("row", "expected"), rows("parse-009-api-paths"))
def test_api_paths(row: dict[str, Any], expected: str) -> None:
    words = {"null_value": None, "empty": "", "list": MESSAGES}
    fields: dict[str, Any] = {"model": "m"} | row
    path, body = fields.pop("path"), fields.pop("body", "")
    fields |= {"chat": {"messages": MESSAGES}, "prompt": {"prompt": "hello"}}.get(body, {})
    document = {
        name: words.get(value, value) if isinstance(value, str) else value
        for name, value in fields.items()
        if value != "missing"
    }

    seen = outcome(path, document)

    if expected == "token ids":
        assert seen.prompt == b"\1\0\0\0\2\0\0\0"
    else:
        assert (expected == "400") == (seen == "400")


@pytest.mark.parametrize(("row", "expected"), rows("parse-010-cache-salt"))
def test_cache_salt(row: dict[str, Any], expected: dict[str, str]) -> None:
    seen = outcome(row["path"], WHOLE_BODIES[row["path"]] | {"cache_salt": row["cache_salt"]})

    assert expected["salt"].startswith(seen.cache_salt)
    assert seen.cache_salt == "s"


@pytest.mark.parametrize(("row", "expected"), rows("parse-011-max-output-tokens"))
def test_max_output_tokens(row: dict[str, dict[str, int]], expected: str) -> None:
    [(api, fields)] = row.items()

    seen = outcome(PATHS[api], WHOLE_BODIES[PATHS[api]] | fields)

    assert expected == ("none" if seen.max_output_tokens is None else str(seen.max_output_tokens))


@pytest.mark.parametrize(("document", "expected"), rows("parse-013-usage-json"))
def test_usage(document: str, expected: Any) -> None:
    wanted = None
    if isinstance(expected, dict):
        wanted = Usage(expected["p"], expected["c"], expected.get("cached"))

    usage = OpenAIParser().parse_usage(document.encode())

    assert wanted == usage


@pytest.mark.parametrize(("document", "expected"), rows("parse-014-usage-malformed-fields"))
def test_malformed_usage(document: str, expected: dict[str, Any]) -> None:
    readable = {
        '{"usage":{"prompt_tokens":1,"prompt_tokens_details":5}}': Usage(prompt_tokens=1),
        '{"usage":{"prompt_tokens":"12"}}': Usage(prompt_tokens=12),
    }

    usage = OpenAIParser().parse_usage(document.encode())

    assert readable.get(document) == usage
    assert expected["no_crash"]
