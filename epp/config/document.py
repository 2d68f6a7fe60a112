"""
The configuration document: bytes to sections, checked as far as that goes without any plugin.

Strict everywhere: a key given twice, a key nobody knows, a value of another type, a section that
this version lacks. Each refusal is a ConfigError that says where, what stands there and what could.
"""

import re
from typing import Any

import msgspec
import yaml

from epp.config import later, schema
from epp.framework import ConfigError
from epp.framework.validation import described, near


def read(document: bytes) -> schema.EndpointPickerConfig:
    """Return the sections of a YAML document; raises ConfigError."""
    tree = _without_nothing(strict_tree(document))
    _refuse_what_comes_later(tree)
    _move_deprecated(tree)
    try:
        config = msgspec.convert(tree, schema.EndpointPickerConfig)
    except msgspec.ValidationError as error:
        raise ConfigError(described(error, tree, schema.EndpointPickerConfig)) from error
    _check_version(config)
    _check_gates(config.feature_gates)
    return config


def strict_tree(document: bytes, what: str = "the configuration") -> dict[str, Any]:
    """Return the mapping that a YAML document is; ConfigError where it is none."""
    try:
        tree = yaml.load(document, _UniqueKeys)
    except RecursionError as error:
        message = f"{what} is nested too deeply"
        raise ConfigError(message) from error
    except _YAML_ERRORS as error:
        message = f"{what} is not YAML: {' '.join(str(error).split())}"
        raise ConfigError(message) from error
    _check_text(tree, what)
    if not isinstance(tree, dict):
        message = f"{what} is {type(tree).__name__}, expected a mapping"
        raise ConfigError(message)
    return tree


def _check_text(tree: object, what: str) -> None:
    """Refuse text that no text can be, and documents that aliases blow up beyond all measure."""
    nodes = [tree]
    for seen in range(MAX_NODES):
        if not nodes:
            return
        node = nodes.pop()
        if isinstance(node, dict):
            nodes += [*node.keys(), *node.values()]
        elif isinstance(node, list):
            nodes += node
        elif isinstance(node, str) and not _is_text(node):
            message = f"{what} has text that is no Unicode: {node[:40]!a}"
            raise ConfigError(message)
        if len(nodes) + seen > MAX_NODES:
            break
    message = f"{what} has more than {MAX_NODES:,} values"
    raise ConfigError(message)


def _is_text(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _refuse_what_comes_later(tree: dict[str, Any]) -> None:
    for key, what in later.SECTIONS.items():
        if key in tree:
            message = f"{key}: this version has no {what} yet; remove the section"
            raise ConfigError(message)
    layer = tree.get("dataLayer")
    for key, what in later.DATA_LAYER.items():
        if isinstance(layer, dict) and key in layer:
            message = f"dataLayer.{key}: this version has no {what} yet; remove it"
            raise ConfigError(message)


def _without_nothing(tree: Any) -> Any:
    """Return a tree without keys that nothing was written behind: they count as left out."""
    if isinstance(tree, dict):
        return {
            key: value if key == "parameters" and value else _without_nothing(value)
            for key, value in tree.items()
            if value is not None
        }
    return [_without_nothing(one) for one in tree] if isinstance(tree, list) else tree


def _move_deprecated(tree: dict[str, Any]) -> None:
    """Put the one parser of the older form where parsers are now."""
    parser = tree.pop("parser", None)
    if parser is not None:
        if "requestHandler" in tree:
            raise ConfigError("parser: the older form of requestHandler.parsers; give one of them")
        tree["requestHandler"] = {"parsers": [parser]}


def _check_version(config: schema.EndpointPickerConfig) -> None:
    if config.kind != schema.KIND:
        message = f"kind: {config.kind!r}, expected {schema.KIND!r}"
        raise ConfigError(message)
    if config.api_version not in (schema.API_VERSION, *schema.DEPRECATED_API_VERSIONS):
        message = f"apiVersion: {config.api_version!r}, expected {schema.API_VERSION!r}"
        raise ConfigError(message)


def _check_gates(gates: list[str]) -> None:
    """Refuse gates that are not known, and those that would switch on what is not here."""
    known = later.FEATURE_GATES | later.OTHER_GATES
    for at, gate in enumerate(gates):
        name, has_value, value = gate.partition("=")
        place = f"featureGates[{at}]"
        if name not in known:
            message = f"{place}: unknown feature gate {name!r}{near(name, known)}"
            raise ConfigError(message)
        if has_value and value not in ("true", "false"):
            message = f"{place}: {gate!r}, expected {name}=true or {name}=false"
            raise ConfigError(message)
        if value != "false":
            message = f"{place}: this version has no {known[name]} yet; remove it"
            raise ConfigError(message)


MAX_NODES = 100_000
"""Values in a document, each use of an alias counted."""

_YAML_ERRORS = (yaml.YAMLError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError)
"""PyYAML lets through whatever Python raises over a bad date or number."""


class _UniqueKeys(yaml.SafeLoader):
    """A SafeLoader that refuses a key given twice, instead of dropping the first."""

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:  # noqa: FBT001, FBT002
        keys = [key.value for key, _ in node.value if key.tag != "tag:yaml.org,2002:merge"]
        for key in keys:
            if isinstance(key, str) and keys.count(key) > 1:
                message = f"the key {key!r} is given twice"
                raise yaml.constructor.ConstructorError(None, None, message, node.start_mark)
        return super().construct_mapping(node, deep=deep)


# YAML 1.1 takes 1e3 for text; the field's reader, and everybody else, takes it for a number.
_UniqueKeys.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)[eE][-+]?\d+"),
    list("-+.0123456789"),
)


def written(tree: dict[str, Any]) -> str:
    """Return a tree as YAML, in its own order."""
    text: str = yaml.safe_dump(tree, sort_keys=False, default_flow_style=False, width=100)
    return text
