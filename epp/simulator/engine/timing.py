"""
Timing: how long one engine step takes.

A linear model of a step: a fixed cost, a cost a token, a cost a sequence, a cost for each token of
context that is read, and the moving of adapters and of swapped blocks. The profiles' figures were
fitted to published runs of vLLM with 500 requests and eight adapters of Llama-2-7b, whose numbers
match one A100.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTiming:
    """The parts of a step's duration."""

    base_seconds: float = 0.0135
    token_seconds: float = 75e-6
    sequence_seconds: float = 0.147e-3
    context_token_seconds: float = 0.0
    """For each token that the scheduled requests have computed so far."""
    lora_load_seconds: float = 0.235
    """For each adapter that must be brought into the accelerator's memory."""
    lora_fetch_seconds: float = 0.0
    """More for each of these that was not in the CPU's memory either."""
    swap_block_seconds: float = 0.33e-3
    """For each block copied to or from the CPU: 8 MiB (16 tokens of a 7B model) at 25 GB/s."""

    def duration(
        self,
        *,
        tokens: int,
        sequences: int,
        context_tokens: int = 0,
        lora_loads: int = 0,
        lora_fetches: int = 0,
        swapped_blocks: int = 0,
    ) -> float:
        """Return the seconds of a step that does all this."""
        return (
            self.base_seconds
            + self.token_seconds * tokens
            + self.sequence_seconds * sequences
            + self.context_token_seconds * context_tokens
            + self.lora_load_seconds * lora_loads
            + self.lora_fetch_seconds * lora_fetches
            + self.swap_block_seconds * swapped_blocks
        )


PROFILES = {
    "a100-7b": StepTiming(),
    "a100-7b-context": StepTiming(
        base_seconds=0.01347,
        token_seconds=75.5e-6,
        sequence_seconds=0.104e-3,
        context_token_seconds=0.138e-6,
        lora_load_seconds=0.231,
    ),
    "instant": StepTiming(
        base_seconds=0,
        token_seconds=0,
        sequence_seconds=0,
        lora_load_seconds=0,
        swap_block_seconds=0,
    ),
}
"""Named timings: the fit above, the same fit with the reading of the KV cache told apart (equally
good), and one that costs nothing."""
