"""
The metrics of model servers: a scanner of the text format, and what routing reads with it.
"""

from epp_plugins.extractors.model_server_metrics.extractor import (
    EngineConfig,
    ModelServerMetricsExtractor,
)

__all__ = ["EngineConfig", "ModelServerMetricsExtractor"]
