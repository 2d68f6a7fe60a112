"""Discoveries: where endpoints come from."""
