"""
The lean door: a subset of HTTP/2 (RFC 9113) for ext_proc and gRPC health.

From the wire upwards: `frames` and `field_blocks` know bytes, `call` one stream, `connection` all
of a peer's, without I/O; `services` answer calls; `door` ties them to asyncio.
"""
