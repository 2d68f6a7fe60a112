"""Pickers: the choice among scored endpoints."""
