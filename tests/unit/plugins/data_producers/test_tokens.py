"""The number of tokens that a prompt is taken to have."""

from typing import Any

import pytest

from epp.framework import PROMPT_TOKENS, DataProducer, EndpointView
from epp.testing import request
from epp_plugins.data_producers.tokens import TokenProducer
from epp_plugins.parsers.openai import OpenAIParser


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [(b"", 0), (b"a", 1), (b"abcd", 1), (b"abcde", 2), (b"hello world", 3)],
    ids=str,
)
def test_four_bytes_of_text_are_a_token(prompt: bytes, expected: int) -> None:
    assert expected == TokenProducer().produce(request(prompt), EndpointView([]))


@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        ("/v1/completions", b'{"model":"m","prompt":[11,22,33]}', 3),
        ("/v1/embeddings", b'{"model":"m","input":[4,5]}', 2),
    ],
)
def test_token_ids_are_counted(path: str, body: bytes, expected: int) -> None:
    prompt = OpenAIParser().parse_request(path, {}, body).prompt

    assert expected == TokenProducer().produce(request(prompt), EndpointView([]))


def test_it_is_a_producer_of_prompt_tokens() -> None:
    producer = TokenProducer(estimate={})

    assert isinstance(producer, DataProducer)
    assert PROMPT_TOKENS is producer.produces


@pytest.mark.parametrize(
    ("parameters", "name"),
    [
        ({"vllm": {"url": "http://localhost:8000"}}, "vllm"),
        ({"vllm": {}}, "vllm"),
        ({"model_name": "m"}, "modelName"),
        ({"uds_tokenizer_config": {}}, "udsTokenizerConfig"),
        ({"estimate": {"image": {"mode": "static"}}}, "estimate.image"),
        ({"estimate": {"video": {}}}, "estimate.video"),
    ],
)
def test_what_is_not_there_yet_is_refused_by_name(parameters: dict[str, Any], name: str) -> None:
    with pytest.raises(ValueError, match=f"parameters.{name} is not supported yet"):
        TokenProducer(**parameters)
