"""YAML as a way to write JSON: the same scalars, no repeated keys, no references."""

from __future__ import annotations

import math
import re
from typing import Any

import yaml


class StrictLoader(yaml.SafeLoader):
    """Reads the core schema of YAML 1.2 in place of PyYAML's YAML 1.1.

    There ``1e-3`` is a string, ``no`` is false, ``12:30`` is 750 and ``010`` is 8: all of them surprises in a file of
    hyperparameters. A repeated key would silently win over the first, and a reference can make a document endless.
    """

    yaml_implicit_resolvers: dict[str, list[Any]] = {}  # noqa: RUF012 - PyYAML reads this class attribute

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Read the next node; PyYAML calls this."""
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(None, None, "references (*name) are not supported", mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Make a dictionary of a node; PyYAML calls this."""
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(None, None, "a key must be a word", key.start_mark)
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key.value!r} is given twice", key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def _integer(loader: StrictLoader, node: yaml.ScalarNode) -> int:
    try:
        return int(loader.construct_scalar(node))
    except ValueError:
        raise _unreadable("a whole number has letters or too many digits", node) from None


def _number(loader: StrictLoader, node: yaml.ScalarNode) -> float:
    try:
        value = float(loader.construct_scalar(node))
    except ValueError:
        raise _unreadable("a number has letters", node) from None
    if not math.isfinite(value):
        raise _unreadable("a number is too large", node)
    return value


def _unreadable(problem: str, node: yaml.Node) -> yaml.MarkedYAMLError:
    return yaml.constructor.ConstructorError(None, None, problem, node.start_mark)


_TAG = "tag:yaml.org,2002:"
_JSON_TAGS = frozenset(f"{_TAG}{kind}" for kind in ("null", "bool", "int", "float", "str", "seq", "map"))
StrictLoader.yaml_constructors = {
    tag: constructor for tag, constructor in yaml.SafeLoader.yaml_constructors.items() if tag in {*_JSON_TAGS, None}
}
_DIGITS = list("-+0123456789")
_NUMBER = r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?$"
StrictLoader.add_implicit_resolver(f"{_TAG}null", re.compile(r"(?:null|~|)$"), ["n", "~", ""])
StrictLoader.add_implicit_resolver(f"{_TAG}bool", re.compile(r"(?:true|false)$"), ["t", "f"])
StrictLoader.add_implicit_resolver(f"{_TAG}int", re.compile(r"[-+]?[0-9]+$"), _DIGITS)
StrictLoader.add_implicit_resolver(f"{_TAG}float", re.compile(_NUMBER), [*_DIGITS, "."])
StrictLoader.add_constructor(f"{_TAG}int", _integer)
StrictLoader.add_constructor(f"{_TAG}float", _number)


def load(text: str) -> Any:
    """The JSON-like value of a YAML document.

    Raises:
        yaml.YAMLError: with the place, as ``problem_mark``, where the text cannot be read.
        RecursionError: bottomless nesting.
    """
    return yaml.load(text, Loader=StrictLoader)
