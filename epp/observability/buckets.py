"""
Buckets: the upper bounds of the histograms.

They are llm-d-router's where it measures the same thing, so that its dashboards and alerts need no
new quantiles.
"""

DURATION_SECONDS = (
    *(0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1, 1.25, 1.5, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30),
    *(45, 60, 120, 180, 240, 300, 360, 480, 600, 900, 1200, 1800, 2700, 3600),
)
"""A whole request, from its first byte to the response's last."""

FIRST_BYTE_SECONDS = DURATION_SECONDS[:24]
"""To the first byte of a response: up to two minutes."""

FAST_SECONDS = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)
"""Work of the picker itself: a decision, a call of a plugin."""

SCRAPE_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5)
"""A scrape of one endpoint, up to its timeout."""

LAG_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 5)
"""How late the event loop is."""

REQUEST_BYTES = tuple(64 * 2**power for power in range(25))
"""64 B to 1 GiB."""

RESPONSE_BYTES = (1, *(2**power for power in range(3, 17)))
"""1 B, then 8 B to 64 KiB."""

PROMPT_TOKENS = (*RESPONSE_BYTES, 131_072, 262_144, 524_288, 1_048_576)
"""1, then 8 to a million."""

COMPLETION_TOKENS = RESPONSE_BYTES[:12]
"""1, then 8 to 8192."""
