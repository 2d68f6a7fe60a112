"""
The OpenAI dialect: chat and text completions, responses, embeddings and their relatives.

`parser` is the plugin; `bodies` says what each API takes, `prompt` what of it is hashed, `usage`
reads token counts, `model_name` replaces the model in a body. Only the parser is for others.
"""

from epp_plugins.parsers.openai.parser import OpenAIParser

__all__ = ["OpenAIParser"]
