"""
Run the one profile, once.

The handler of every pool whose endpoints do the whole work of a request.
"""

from collections.abc import Collection, Mapping

from epp.framework import InferenceRequest, ProfileHandler, ProfileResult, SchedulingResult


class SingleProfileHandler(ProfileHandler):
    """
    The only profile runs, and its result is the one routed to.

    It expects a configuration with exactly one profile, which the configuration's loader checks.
    """

    def pick_profiles(
        self,
        request: InferenceRequest,
        profiles: Collection[str],
        results: Mapping[str, ProfileResult],
    ) -> Collection[str]:
        """Return the profile, and nothing once it has run."""
        return () if results else profiles

    def process_results(
        self, request: InferenceRequest, results: Mapping[str, ProfileResult]
    ) -> SchedulingResult:
        """Return the result of the profile as that of the whole run."""
        return SchedulingResult(results, next(iter(results)))
