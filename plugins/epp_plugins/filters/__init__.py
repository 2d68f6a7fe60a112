"""Filters: constraints on which endpoints may serve."""
