"""A vLLM-like model server without a GPU: an island that imports nothing of the picker."""
