"""Which widths of a slimmable network an extraction comes down to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from models.slimmable import Slimmable
from search.constraints import Constraint
from search.metrics import FORMULA_METRICS
from search.width_limits import WidthCosts
from service.errors import ConstraintUnsatisfiable, ErrorItem, UnknownWidth
from service.jobs.spec import ExtractRequest
from service.supernets.info import ServedWidth

_SAME = 1e-6  # of a channel of a head: shares such as a third are no exact decimals

_METRICS = {f"max_{metric}": metric for metric in FORMULA_METRICS}


def widths_in_question(asked: ExtractRequest, net: Slimmable, widths: Sequence[ServedWidth]) -> tuple[ServedWidth, ...]:
    """The width that is named, or all that are offered within the limits that formulas decide, the best first.

    The best is the most accurate one, of equally accurate ones the cheapest; where nothing was measured, the widest.

    Args:
        asked: by the user.
        net: the slimmable network.
        widths: of it.

    Raises:
        UnknownWidth: there is no such width, or it is not offered.
        ConstraintUnsatisfiable: no offered width is within the limits.
    """
    offered = [width for width in widths if width.offered]
    if asked.limits:
        return _best_first(_within(asked, net, offered))
    field = "width" if asked.width is not None else "ratio"
    head_dim = _head_dim(asked, net)
    found = next((width for width in widths if width.head_dim == head_dim), None)
    if found is None or not found.offered:
        raise _unknown(field, getattr(asked, field), found, offered)
    return (found,)


def _head_dim(asked: ExtractRequest, net: Slimmable) -> int | None:
    """Channels of a head of the width that is asked for; None: there are no whole ones."""
    heads = net.largest.num_heads[0]
    if asked.width is not None:
        return asked.width // heads if asked.width % heads == 0 else None
    assert asked.ratio is not None, "the request has one of the two"
    channels = asked.ratio * net.largest.head_dim
    return round(channels) if abs(channels - round(channels)) < _SAME else None


def _unknown(field: str, value: Any, found: ServedWidth | None, offered: Sequence[ServedWidth]) -> UnknownWidth:
    why = "there is no such width"
    if found is not None:
        why = "this width is not offered: its accuracy falls too far below that of the trained widths beside it"
    allowed = [getattr(width, field) for width in offered]
    detail = f"{field} {value:g}: {why}"
    return UnknownWidth(
        f"{detail}; choose one of the {len(allowed)} that are offered.",
        errors=[ErrorItem(f"/{field}", "unknown_width", detail, allowed)],
        extra={"widths": [{"ratio": width.ratio, "width": width.width} for width in offered]},
    )


def _within(asked: ExtractRequest, net: Slimmable, offered: Sequence[ServedWidth]) -> list[ServedWidth]:
    limits = {
        name: Constraint(metric, max=getattr(asked, name)) for name, metric in _METRICS.items() if name in asked.limits
    }
    costs = WidthCosts(net, [width.head_dim for width in offered])
    within = set(costs.within(list(limits.values())))
    if not within:
        reachable = [costs.reachable(limit.metric) for limit in limits.values()]
        items = [
            ErrorItem(f"/{name}", "unsatisfiable", f"no offered width has {limit}", {"min": reach.min})
            for (name, limit), reach in zip(limits.items(), reachable, strict=True)
            if not costs.within([limit])
        ]
        raise ConstraintUnsatisfiable(
            " ".join(f"{item.detail}, the smallest has {item.allowed['min']:.12g}." for item in items),
            errors=items,
            extra={"reachable": [reach.to_json() for reach in reachable]},
        )
    return [width for width in offered if width.head_dim in within]


def _best_first(widths: Sequence[ServedWidth]) -> tuple[ServedWidth, ...]:
    if all(width.accuracy is None for width in widths):
        return tuple(sorted(widths, key=lambda width: -width.head_dim))
    return tuple(sorted(widths, key=lambda width: (-(width.accuracy or 0.0), width.head_dim)))
