"""
Plugin files: a plugin that is a Python file named in the configuration, and no package.

`scorers/mine.py:MyScorer` as a plugin's type names a class in a file, relative to the folder of the
configuration; without a class, the file's only public one is meant. The file is read anew whenever
a configuration is loaded, and its class is a new one only where the text has changed.
"""

import hashlib
import inspect
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from epp.framework.errors import ConfigError

_FILE = re.compile(r"(?P<path>.+\.py)(?::(?P<name>\w+))?")


def names_a_file(plugin_type: str) -> bool:
    """Whether a plugin's type is a file's path and perhaps a class."""
    return _FILE.fullmatch(plugin_type) is not None


class PluginFiles:
    """The files that configurations of one folder name, and the modules that they became."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._modules: dict[Path, tuple[bytes, ModuleType]] = {}
        self.paths: set[Path] = set()
        """Every file that a configuration named, whether it could be loaded or not."""

    def load(self, plugin_type: str) -> type[Any]:
        """Return the class that a type names; ConfigError where there is none, or it fails."""
        match = _FILE.fullmatch(plugin_type)
        assert match is not None
        path = self._folder / match["path"]
        module = self._module(path)
        classes = {
            name: one
            for name, one in vars(module).items()
            if inspect.isclass(one) and one.__module__ == module.__name__ and name[0] != "_"
        }
        if match["name"] is None and len(classes) == 1:
            return next(iter(classes.values()))
        if match["name"] in classes:
            return classes[match["name"]]
        listed = ", ".join(classes) or "none"
        if match["name"] is None:
            message = f"plugin file {path} has these public classes: {listed}; name one of them"
        else:
            message = f"plugin file {path} has no public class {match['name']!r}; it has {listed}"
        raise ConfigError(message)

    def _module(self, path: Path) -> ModuleType:
        self.paths.add(path)
        try:
            source = path.read_bytes()
        except (OSError, ValueError) as error:  # a path with a zero byte is no OSError
            reason = getattr(error, "strerror", None) or error
            message = f"plugin file {path} cannot be read: {reason}"
            raise ConfigError(message) from error
        known = self._modules.get(path)
        if known is not None and known[0] == source:
            return known[1]
        module = _executed(path, source)
        self._modules[path] = (source, module)
        return module


def _executed(path: Path, source: bytes) -> ModuleType:
    """Return the module that a file's text makes."""
    digest = hashlib.sha256(str(path).encode() + b"\0" + source).hexdigest()[:16]
    name = f"epp_plugin_file_{path.stem}_{digest}"
    module = ModuleType(name)
    module.__file__ = str(path)
    sys.modules[name] = module  # annotations are looked up by the module's name
    try:
        exec(compile(source, str(path), "exec"), vars(module))
    except (Exception, SystemExit) as error:  # the file is its author's: it may raise anything
        del sys.modules[name]
        message = f"plugin file {path} cannot be loaded: {_told(error, path)}"
        raise ConfigError(message) from error
    return module


def _told(error: BaseException, path: Path) -> str:
    """Return an error with the line of the file that it came from."""
    if isinstance(error, SyntaxError):
        return f"line {error.lineno}: {error.msg}"
    line, trace = None, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == str(path):
            line = trace.tb_lineno
        trace = trace.tb_next
    where = "" if line is None else f"line {line}: "
    try:
        said = str(error)
    except Exception:  # noqa: BLE001  # an exception of theirs, and so is its text
        said = "it cannot be told"
    return f"{where}{type(error).__name__}: {said}"
