"""
Embeddings: a unit vector for each prompt, made from its tokens and from nothing else.

Equal prompts get equal vectors on every server and every day; what is alike in meaning is not near
each other.
"""

import base64
import math
import random
import time
from array import array
from collections.abc import Sequence

import msgspec
import xxhash

from epp.simulator.api.jobs import EmbeddingJob


def vector(prompt: "array[int]", dimensions: int) -> Sequence[float]:
    """Return the embedding of a prompt: of length 1, in a direction of its own."""
    drawn = random.Random(xxhash.xxh3_64_intdigest(prompt.tobytes()))
    raw = [drawn.gauss(0.0, 1.0) for _ in range(dimensions)]
    length = math.hypot(*raw)
    return [one / length for one in raw]


def answer(job: EmbeddingJob) -> bytes:
    """Return the body of an answer."""
    data = [
        {"index": index, "object": "embedding", "embedding": _said(choice.prompt, job)}
        for index, choice in enumerate(job.choices)
    ]
    return msgspec.json.encode(
        {
            "id": f"embd-{job.request_id}",
            "object": "list",
            "created": int(time.time()),
            "model": job.model,
            "data": data,
            "usage": {
                "prompt_tokens": job.prompt_tokens,
                "total_tokens": job.prompt_tokens,
                "completion_tokens": 0,
                "prompt_tokens_details": None,
            },
        }
    )


def _said(prompt: "array[int]", job: EmbeddingJob) -> Sequence[float] | str:
    values = vector(prompt, job.dimensions)
    if job.base64:
        return base64.b64encode(array("f", values).tobytes()).decode()
    return values
