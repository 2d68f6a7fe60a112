"""
Placement: where an adapter goes that nobody has run lately.

Rendezvous hashing: each endpoint draws a number from the adapter's name and its own destination,
and the highest takes it. Every picker, and one that restarted, draws the same; an endpoint that
comes or goes moves only its own adapters. The load is bounded: an endpoint with a quarter more
adapters than the average steps back, so that no endpoint is crowded while others have none.
"""

import math
from collections.abc import Collection, Sequence

from xxhash import xxh64_intdigest

from epp_plugins.scorers.lora_affinity.ledger import Holding

BOUND = 1.25
"""An endpoint may have so many times the average number of adapters."""


def home(
    adapter: str,
    holdings: Sequence[Holding],
    levels: Sequence[float],
    stale: Collection[int],
) -> int:
    """
    Return the place of the endpoint that is to take the adapter, of those at the best level.

    Stale endpoints are nobody's home, for their adapters are not known; -1 where there is no other.
    """
    known = [one for one in holdings if one.place not in stale] if stale else holdings
    if not known:
        return -1
    best = max([levels[one.place] for one in known])
    equals = [one for one in known if levels[one.place] == best]
    most = math.ceil(BOUND * (sum([one.used for one in known]) + 1) / len(known))
    name = adapter.encode("utf-8", "surrogatepass")
    seed = xxh64_intdigest(name)
    fit = [one for one in equals if one.used < most] or equals
    return max(fit, key=lambda one: (xxh64_intdigest(one.destination, seed), -one.place)).place
