"""Parsers: bytes to facts and back, one API dialect each."""
