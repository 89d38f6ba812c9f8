"""What other packages bring: search spaces and metrics, found by the entry points that they declare.

Names are known without importing anything of a package, so that a broken one is in nobody's way until it is asked for.
Built-in names always go before those of packages.
"""

from __future__ import annotations

from enum import StrEnum
from importlib.metadata import EntryPoint, entry_points
from typing import TypeVar

T = TypeVar("T")


class PluginGroup(StrEnum):
    """The groups of entry points that are looked at."""

    METRICS = "vitailor.metrics"  # of a function that makes a scorer (workers.stages.custom_metric)
    SPACES = "vitailor.spaces"  # of a search.presets.Preset


class PluginError(Exception):
    """A plug-in that was asked for cannot be used; the message names it, its package and what happened."""


def plugin_names(group: PluginGroup) -> tuple[str, ...]:
    """What installed packages offer, in alphabetical order."""
    return tuple(sorted(set(entry_points(group=group.value).names)))


def load_plugin(group: PluginGroup, name: str, kind: type[T]) -> T:
    """The object that a plug-in's entry point names.

    Raises:
        PluginError: there is none of this name or there are two, it cannot be imported, or it is of another kind.
    """
    found = list(entry_points(group=group.value, name=name))
    if len(found) != 1:
        places = ", ".join(map(_place, found)) or "none"
        raise PluginError(f"Plug-in {name!r} of group {group}: found {places}, needed is exactly one.")
    (point,) = found
    try:
        plugin = point.load()
    # Importing a package runs all of its code, which may fail in any way.
    except Exception as error:
        reason = f"{type(error).__name__} when it was imported"
        raise PluginError(f"Plug-in {name!r} of group {group} ({_place(point)}) failed: {reason}.") from error
    if not isinstance(plugin, kind):
        kinds = f"it is {type(plugin).__name__}, needed is {kind.__name__}"
        raise PluginError(f"Plug-in {name!r} of group {group} ({_place(point)}) cannot be used: {kinds}.")
    return plugin


def _place(point: EntryPoint) -> str:
    package = f"package {point.dist.name} {point.dist.version}" if point.dist is not None else "unknown package"
    return f"{package}, {point.value}"
