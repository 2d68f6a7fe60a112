"""
The HTTP API of vLLM 0.32 as bytes: bodies in, jobs and answers out.

Everything that reads or writes a body is here, without a socket and without a clock of its own, so
that each shape can be held against a capture of the real server. `decoding` turns bytes into
`bodies`, `jobs` turns these into work for the engine, and one module for each API writes what comes
of it.
"""

VERSION = "0.32.0"
"""The version of vLLM whose API this is."""
