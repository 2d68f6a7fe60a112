"""
Strict YAML: documents in which nothing means something else than it seems to.

YAML reads `010` as 8 and `1:30` as 90, and of two equal keys it drops the first. Here whole numbers
are decimal, dates and clock times are text, and a key that is there twice is refused. Anchors and
merge keys keep their meaning: a merged key may be overridden.
"""

import re
from typing import TYPE_CHECKING

import yaml

from epp.framework import ConfigError

if TYPE_CHECKING:
    from yaml import SafeLoader as _SafeLoader
else:
    # The one that libyaml drives is ten times as fast, and bounds how deep a document may nest.
    _SafeLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_TAG = "tag:yaml.org,2002:"
_DECIMAL = re.compile(r"[-+]?(?:0|[1-9][0-9]*)")
_FRACTION = re.compile(r"[-+]?[0-9]*\.[0-9]+(?:[eE][-+]?[0-9]+)?")


def load(document: bytes) -> object:
    """Return the one document, None where it is empty; raise ConfigError where it is not strict."""
    loader = None
    try:
        loader = _Loader(document)
        root = loader.get_single_node()
        if root is None:
            return None
        _refuse_equal_keys(root)
        return loader.construct_document(root)
    except yaml.YAMLError as error:
        message = f"expected YAML: {' '.join(str(error).split())}"
        raise ConfigError(message) from error
    # What PyYAML lets through where a tag is on a value that it cannot be of: `!!int x`.
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError) as error:
        message = f"expected YAML whose values are of their tags: {type(error).__name__}"
        raise ConfigError(message) from error
    except RecursionError as error:
        raise ConfigError("expected YAML that is not so deeply nested") from error
    finally:
        if loader is not None:
            loader.dispose()


class _Loader(_SafeLoader):
    """PyYAML's safe loader with resolvers of its own for what is a number."""

    def construct_decimal(self, node: yaml.ScalarNode) -> int:
        text = self.construct_scalar(node)
        if not _DECIMAL.fullmatch(text):
            message = f"expected a decimal number, got {text!r}"
            raise yaml.constructor.ConstructorError(None, None, message, node.start_mark)
        return int(text)


_Loader.yaml_implicit_resolvers = {
    first: [
        (tag, pattern)
        for tag, pattern in resolvers
        if tag.removeprefix(_TAG) not in ("int", "float", "timestamp")
    ]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    f"{_TAG}int", re.compile(f"(?:{_DECIMAL.pattern})\\Z"), list("-+0123456789")
)
_Loader.add_implicit_resolver(
    f"{_TAG}float", re.compile(f"(?:{_FRACTION.pattern})\\Z"), list("-+.0123456789")
)
_Loader.add_constructor(f"{_TAG}int", _Loader.construct_decimal)


def _refuse_equal_keys(root: yaml.Node) -> None:
    """Raise ConfigError where a mapping has a key twice, before merging makes that legitimate."""
    seen: set[int] = set()
    left = [root]
    while left:
        node = left.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            _check_keys(node)
            left += [part for pair in node.value for part in pair]
        elif isinstance(node, yaml.SequenceNode):
            left += node.value


def _check_keys(mapping: yaml.MappingNode) -> None:
    lines: dict[tuple[str, str], int] = {}
    for key, _ in mapping.value:
        if isinstance(key, yaml.ScalarNode):
            line = key.start_mark.line + 1
            if (first := lines.get((key.tag, key.value))) is not None:
                message = f"key {key.value!r} is there twice, on line {first} and on line {line}"
                raise ConfigError(message)
            lines[key.tag, key.value] = line
