"""
Reloading: another configuration between two requests, or none if it is wrong.

The new document is read, built and checked whole before anything changes; then the director gets
its policies in one step. Plugins that the new document would make alike are taken over with their
memory, so that a new weight does not cost the prefix index. What cannot be exchanged while the
picker runs (where endpoints come from, how they are scraped) must stay as it is. A document that
does not load is counted and told in the log, and the last good one goes on.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import structlog

from epp.config import loader, watch
from epp.framework import ConfigError
from epp.observability.metrics import Metrics
from epp.requestcontrol.decisions import RecentDecisions
from epp.requestcontrol.director import Director
from epp.requestcontrol.policies import Policies

_log = structlog.get_logger("epp")

Load = Callable[[bytes, loader.Configuration], loader.Configuration]


def scorer_weights(configuration: loader.Configuration) -> Mapping[str, Mapping[str, float]]:
    """Return the weight of each scorer, by profile and name."""
    return {
        profile.name: {scorer.name: weight for scorer, weight in profile.scorers}
        for profile in configuration.profiles
    }


class Reloader:
    """Holds the configuration in force, and exchanges it when its file changes."""

    def __init__(
        self,
        configuration: loader.Configuration,
        *,
        load: Load,
        build: Callable[[loader.Configuration], Policies],
        director: Director,
        decisions: RecentDecisions,
        metrics: Metrics,
    ) -> None:
        """`load` reads a document, given the configuration whose plugins it may take over."""
        self.configuration = configuration
        self._load = load
        self._build = build
        self._director = director
        self._decisions = decisions
        self._metrics = metrics

    async def run(
        self,
        path: Path,
        document: bytes,
        plugin_files: Callable[[], Iterable[Path]],
        *,
        interval: float,
    ) -> None:
        """Reload for ever, whenever the file or one of the plugin files is no longer as it was."""

        def files() -> list[Path]:
            return [path, *plugin_files()]

        async for contents in watch.changes(files, {path: document}, interval=interval):
            await self.reload(contents[path])

    async def reload(self, document: bytes) -> bool:
        """Put a document in force; False, with nothing changed, where it does not load."""
        try:
            # In a thread, for plugin files are read and compiled.
            configuration = await asyncio.to_thread(self._load, document, self.configuration)
            self._check_fixed(configuration)
            policies = self._build(configuration)
        except ConfigError as error:
            return self._refused(str(error))
        except Exception as error:  # noqa: BLE001  # whatever is wrong, the last good one goes on
            return self._refused(f"{type(error).__name__} while it was built")
        self._director.use(policies)
        self._decisions.weigh(scorer_weights(configuration))
        self.configuration = configuration
        self._metrics.config_reloaded(success=True)
        for warning in configuration.warnings:
            _log.warning("configuration", warning=warning)
        _log.info("configuration reloaded", plugins=len(configuration.plugins))
        return True

    def _refused(self, reason: str) -> bool:
        self._metrics.config_reloaded(success=False)
        _log.error("configuration not reloaded, the last good one stays", error=reason)
        return False

    def _check_fixed(self, new: loader.Configuration) -> None:
        old = self.configuration
        for place, before, after in (
            ("dataLayer.sources", old.source, new.source),
            ("dataLayer.sources' extractors", old.extractor, new.extractor),
            ("dataLayer.discovery", old.discovery, new.discovery),
        ):
            if before is not after:
                message = f"{place} cannot change while the picker runs: restart it"
                raise ConfigError(message)
