"""
Say how many tokens a prompt has: four bytes of text are taken for one, token ids are counted.
"""

from typing import Any

from epp.framework import (
    PROMPT_TOKENS,
    AttributeKey,
    DataProducer,
    EndpointView,
    InferenceRequest,
)

BYTES_PER_TOKEN = 4
"""Of English text, on average; a token id is as many bytes, so that its number is exact."""

_LATER = "is not supported yet: tokens are estimated, and nothing is asked for them"


class TokenProducer(DataProducer[int]):
    """
    Writes `prompt-tokens`: the bytes of the prompt over four, which is exact for token ids.

    Tools and all turns of a conversation count; an image counts as its digest, four tokens. Of the
    field's backends only `estimate` exists, and nothing in it can be set.
    """

    def __init__(
        self,
        *,
        estimate: dict[str, Any] | None = None,
        model_name: str = "",
        vllm: dict[str, Any] | None = None,
        uds_tokenizer_config: dict[str, Any] | None = None,
    ) -> None:
        later: dict[str, Any] = {
            "modelName": model_name or None,
            "vllm": vllm,
            "udsTokenizerConfig": uds_tokenizer_config,
        }
        later |= {f"estimate.{name}": value for name, value in (estimate or {}).items()}
        for name, value in later.items():
            if value is not None:
                message = f"parameters.{name} {_LATER}"
                raise ValueError(message)

    @property
    def produces(self) -> AttributeKey[int]:
        """The key under which the number is kept."""
        return PROMPT_TOKENS

    def produce(self, request: InferenceRequest, endpoints: EndpointView) -> int:
        """Return the number of tokens, a rest of less than four bytes counted as one."""
        return -(-len(request.prompt) // BYTES_PER_TOKEN)
