"""
Limits of a connection: what a peer may ask of it before it loses its stream or the connection.
"""

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """
    How much is taken from one peer; sizes in bytes, times in seconds, rates per second.

    They are far above what gateways do: Envoy resets as many streams at once as it has clients
    that leave, and gRPC's clients measure the connection with pings.
    """

    max_streams: int = 16_384
    max_message_bytes: int = 192 << 20
    stream_window_bytes: int = 256 << 10
    connection_window_bytes: int = 16 << 20
    max_field_block_bytes: int = 64 << 10
    max_field_list_bytes: int = 128 << 10
    max_continuations: int = 16
    settings_rate: int = 100
    ping_rate: int = 1_000
    reset_rate: int = 20_000
    """Streams that the peer resets, or makes us reset (RFC 9113, section 10.5)."""
    idle_frame_rate: int = 10_000
    """Frames that carry nothing: empty DATA, PRIORITY, unknown types, updates of closed streams."""
    max_queued_bytes: int = 256 << 10
    """Output of a stream that waits for the peer's window; beyond it the exchange is paused."""
    stall_seconds: float = 30.0
    """How long a peer may leave output waiting before its stream, or connection, is cut."""
    preface_seconds: float = 10.0
    """How long a peer may take to begin, and to complete a field block that it began."""
    slice_seconds: float = 0.005
    """How long one connection is served before others have their turn."""
    look_seconds: float = 1.0
    """How often the door looks for what stalls, and for a certificate that changed."""
    goaway_seconds: float = 1.0
    """How long a drain waits for peers to have read that it has begun."""


class Rate:
    """Counts events; tells when more than so many came within a second."""

    __slots__ = ("_began", "_clock", "_count", "_most")

    def __init__(self, most: int, clock: Callable[[], float]) -> None:
        self._most = most
        self._clock = clock
        self._count = 0
        self._began = clock()

    def exceeded(self) -> bool:
        """Count one more; return whether it is one too many."""
        self._count += 1
        if self._count <= self._most:
            return False
        now = self._clock()
        if now - self._began < 1.0:
            return True
        self._count, self._began = 1, now
        return False
