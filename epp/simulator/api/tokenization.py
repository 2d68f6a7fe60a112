"""
Tokenization: prompts to tokens and back, and requests rendered without being run.

A rendered request is what vLLM would hand to an engine: its tokens and sampling parameters, in a
list for completions, whose body may hold several prompts, and by itself for a chat.
"""

from typing import Any

import msgspec

from epp.simulator.api import bodies
from epp.simulator.api.catalog import Catalog
from epp.simulator.api.decoding import decode, decoder_of
from epp.simulator.api.errors import APIError
from epp.simulator.api.jobs import Job, chat_prompt
from epp.simulator.tokens import decode as text_of
from epp.simulator.tokens import encode

_TOKENIZE = decoder_of(bodies.TokenizeBody)
_DETOKENIZE = decoder_of(bodies.DetokenizeBody)


def tokenize(body: bytes, catalog: Catalog) -> bytes:
    """Return the tokens of a text or of a chat."""
    asked = decode(_TOKENIZE, body)
    catalog.adapter(asked.model)
    if asked.messages is not None:
        tokens = chat_prompt(asked.messages)
    elif asked.prompt is not None:
        tokens = encode(asked.prompt)
    else:
        raise APIError("Either prompt or messages must be provided.", param="prompt")
    strings = [text_of([token]) for token in tokens] if asked.return_token_strs else None
    return msgspec.json.encode(
        {
            "count": len(tokens),
            "max_model_len": catalog.max_model_len,
            "tokens": tokens.tolist(),
            "token_strs": strings,
        }
    )


def detokenize(body: bytes, catalog: Catalog) -> bytes:
    """Return the text of tokens."""
    asked = decode(_DETOKENIZE, body)
    catalog.adapter(asked.model)
    return msgspec.json.encode({"prompt": text_of(asked.tokens)})


def rendered_completion(job: Job) -> bytes:
    """Return what each prompt of a completion becomes."""
    first_choices = job.choices[:: job.choices_per_prompt]
    return msgspec.json.encode(
        [
            _rendered(job, choice.prompt.tolist(), f"cmpl-{job.request_id}-{at}")
            for at, choice in enumerate(first_choices)
        ]
    )


def rendered_chat(job: Job) -> bytes:
    """Return what a chat becomes."""
    rendered = _rendered(job, job.choices[0].prompt.tolist(), f"chatcmpl-{job.request_id}")
    return msgspec.json.encode(rendered)


def _rendered(job: Job, tokens: list[int], request_id: str) -> dict[str, Any]:
    return {
        "request_id": request_id,
        "token_ids": tokens,
        "features": None,
        "sampling_params": {"n": job.choices_per_prompt, "max_tokens": job.max_tokens},
        "model": job.model,
        "stream": job.stream,
        "stream_options": {"include_usage": True} if job.include_usage else None,
        "cache_salt": job.cache_salt or None,
        "priority": job.priority,
        "kv_transfer_params": job.kv_transfer_params,
    }
