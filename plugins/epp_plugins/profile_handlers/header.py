"""
Run the profile that a request's header names.

For a front service that drives a request through its stages itself, and comes back through the
gateway for each of them.
"""

import re
from collections.abc import Collection, Mapping, Sequence

from epp.framework import (
    BadRequest,
    InferenceRequest,
    ProfileHandler,
    ProfileResult,
    SchedulingResult,
)

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
"""What RFC 9110 allows as a header's name, which leaves out HTTP/2's `:path` and its like."""


class HeaderProfileHandler(ProfileHandler):
    """
    The value of `headerName`, without spaces around it, is the name of the profile that runs.

    Without the header, or with an empty one, it is `defaultProfile`. Where there is but one profile
    it runs, whatever the header says. A header that names no profile is the client's mistake and
    answered with 400; the field answers 429, after which clients would try the same again.
    """

    def __init__(
        self, *, header_name: str = "EPP-Profile", default_profile: str = "decode"
    ) -> None:
        if not _TOKEN.fullmatch(header_name):
            message = f"parameters.headerName must name a header, got {header_name!r}"
            raise ValueError(message)
        if not default_profile:
            raise ValueError("parameters.defaultProfile must name a profile, got ''")
        self._header = header_name.lower()
        self._default = default_profile
        self.required_profiles: Sequence[str] = (default_profile,)
        """Profiles that must exist where there are several, which the loader checks."""

    def pick_profiles(
        self,
        request: InferenceRequest,
        profiles: Collection[str],
        results: Mapping[str, ProfileResult],
    ) -> Collection[str]:
        """Return the profile that the header names, and nothing once it has run."""
        if results:
            return ()
        if len(profiles) == 1:
            return profiles
        named = request.headers.get(self._header, "").strip()
        if named and named not in profiles:
            message = f"the header {self._header} names no scheduling profile"
            raise BadRequest(message)
        return (named or self._default,)

    def process_results(
        self, request: InferenceRequest, results: Mapping[str, ProfileResult]
    ) -> SchedulingResult:
        """Return the result of the profile as that of the whole run."""
        return SchedulingResult(results, next(iter(results)))
