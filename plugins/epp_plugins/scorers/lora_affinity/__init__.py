"""
LoRA affinity: who runs which adapter, where a new one goes, and what that is worth.
"""

from epp_plugins.scorers.lora_affinity.scorer import LoRAAffinityScorer

__all__ = ["LoRAAffinityScorer"]
