"""What is known of the widths of a slimmable network: accuracies, and which widths are good enough to be offered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from models.slimmable import Slimmable

MAX_DIP = 1.5
"""Points below the line at which a width is not offered, where nobody says otherwise."""

_POINTS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Width:
    """One width.

    Attributes:
        head_dim: channels of a head.
        width: channels of a token.
        ratio: share of the whole network's width.
        accuracy: on validation images, 0..1; None where nothing was measured.
        interpolated: it is not of the grid, so that training sampled it never or rarely.
        dip: points that it lies below the line between the trained widths beside it; None of trained widths, and where
            nothing was measured.
        offered: whether it is delivered.
    """

    head_dim: int
    width: int
    ratio: float
    accuracy: float | None
    interpolated: bool
    dip: float | None
    offered: bool

    def to_json(self) -> dict[str, Any]:
        """All fields."""
        return {name: getattr(self, name) for name in self.__slots__}


def judged_widths(net: Slimmable, accuracies: Mapping[int, float | None], max_dip: float) -> tuple[Width, ...]:
    """Which widths are offered.

    Widths of the grid are. Another one is, when its accuracy is known and at most ``max_dip`` points below
    the line between the trained widths beside it.

    Args:
        net: the slimmable network.
        accuracies: by width of a head, of those to judge; None where nothing was measured.
        max_dip: in points of accuracy.
    """
    return tuple(_judged(net, head_dim, accuracies, max_dip) for head_dim in sorted(accuracies))


def _judged(net: Slimmable, head_dim: int, accuracies: Mapping[int, float | None], max_dip: float) -> Width:
    trained = net.is_trained(head_dim)
    dip = None if trained else _dip(net, head_dim, accuracies)
    return Width(
        head_dim=head_dim,
        width=net.embed_dim(head_dim),
        ratio=net.ratio(head_dim),
        accuracy=accuracies[head_dim],
        interpolated=not trained,
        dip=dip,
        offered=trained or (dip is not None and dip <= max_dip),
    )


def _dip(net: Slimmable, head_dim: int, accuracies: Mapping[int, float | None]) -> float | None:
    below, above = net.neighbours(head_dim)
    own, low, high = (accuracies.get(dim) for dim in (head_dim, below, above))
    if own is None or low is None or high is None:
        return None
    line = low + (high - low) * (head_dim - below) / (above - below)
    return _POINTS * (line - own)
