"""Data sources: where samples of an endpoint come from."""
