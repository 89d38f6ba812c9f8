"""Which widths of a slimmable network are measured."""

from __future__ import annotations

import numpy as np

from models.slimmable import Slimmable

MAX_BETWEEN = 64
"""Untrained widths that are measured at most, evenly spaced: heads of 64 channels have no more, and each is a pass
over all validation images."""


def measured_widths(net: Slimmable, *, shared: bool = True) -> tuple[int, ...]:
    """Widths of a head that are measured, ascending: those that are trained, and of the others up to MAX_BETWEEN.

    Args:
        net: the slimmable network.
        shared: False when each width was trained alone, so that there are no others.
    """
    between = [head_dim for head_dim in net.served if shared and not net.is_trained(head_dim)]
    places = np.linspace(0, len(between) - 1, min(len(between), MAX_BETWEEN)).round().astype(int)
    return tuple(sorted({*net.head_dims, *(between[place] for place in places)}))
