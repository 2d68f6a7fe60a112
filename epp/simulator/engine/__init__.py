"""
The engine of the simulated model server: scheduling, cache and time model, sans-I/O.

It knows neither HTTP nor a clock. `vllm-sim serve` drives it in real time, studies and the lab in
virtual time.
"""

from epp.simulator.engine.batch import (
    Admission,
    Batch,
    Emission,
    EngineLoad,
    Lookups,
    Step,
    Stretch,
)
from epp.simulator.engine.cache_events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    CacheEvent,
)
from epp.simulator.engine.engine import Engine
from epp.simulator.engine.options import ClassLimit, EngineOptions
from epp.simulator.engine.request import Adapter, EngineRequest, FinishReason
from epp.simulator.engine.timing import PROFILES, StepTiming

__all__ = [
    "PROFILES",
    "Adapter",
    "Admission",
    "AllBlocksCleared",
    "Batch",
    "BlockRemoved",
    "BlockStored",
    "CacheEvent",
    "ClassLimit",
    "Emission",
    "Engine",
    "EngineLoad",
    "EngineOptions",
    "EngineRequest",
    "FinishReason",
    "Lookups",
    "Step",
    "StepTiming",
    "Stretch",
]
