"""Scorers: preferences, 0 to 1 for each endpoint."""
