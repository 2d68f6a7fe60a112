"""
Faults: what can be made to go wrong with a simulated server, from its start or while it runs.

A picker must cope with servers that fail some requests, never answer others, are slow, die, or say
that they are ill. Which requests are hit is drawn from the server's own seeded sequence, so that
a test meets the same ones each time.
"""

import random
from typing import Annotated, Literal

import msgspec

Share = Annotated[float, msgspec.Meta(ge=0, le=1)]


class Faults(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What goes wrong; by default nothing does."""

    fail_share: Share = 0.0
    """The share of generation requests that are answered with an error at once."""
    fail_status: Annotated[int, msgspec.Meta(ge=400, le=599)] = 500
    hang_share: Share = 0.0
    """The share of generation requests that are accepted and never answered."""
    slow_down: Annotated[float, msgspec.Meta(gt=0, le=1e6)] = 1.0
    """A factor on the duration of every step."""
    die_at_step: Annotated[int, msgspec.Meta(ge=1)] | None = None
    """The step, counted from 1, at whose beginning an engine dies, or at once if it was passed."""
    fail_health: bool = False

    def __post_init__(self) -> None:
        if self.fail_share + self.hang_share > 1:
            raise ValueError(
                f"fail_share {self.fail_share} and hang_share {self.hang_share} are more than all"
                " requests together"
            )


class FaultSwitch:
    """The faults of one server as they are now: assign others, and they hold from then on."""

    def __init__(self, faults: Faults, seed: int = 0) -> None:
        self.now = faults
        self._random = random.Random(seed)

    def draw(self) -> Literal["fail", "hang"] | None:
        """Say what happens to the next request."""
        drawn = self._random.random()
        if drawn < self.now.fail_share:
            return "fail"
        if drawn < self.now.fail_share + self.now.hang_share:
            return "hang"
        return None
