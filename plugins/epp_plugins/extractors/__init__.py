"""Extractors: samples read into updates of an endpoint."""
