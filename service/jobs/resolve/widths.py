"""The grid of widths that a slimmable supernet is trained at."""

from __future__ import annotations

from dataclasses import replace

from search.errors import SpaceError
from search.space import Space
from service.errors import ErrorItem, ValidationFailed
from service.jobs.spec import WidthsSpec

MAX_WIDTHS = 64
"""As many choices as an axis of a space may have."""

_ROUNDING = 1e-6  # of a channel: shares such as a third are no exact decimals


def widened(space: Space, asked: WidthsSpec, warnings: list[ErrorItem]) -> Space:
    """The space with the grid in place of its widths, from ``smallest`` to 1 of its largest in steps of ``step``.

    Raises:
        ValidationFailed: shares that give no whole numbers of channels, or a grid that does not end at the largest;
            the nearest shares that do are named.
    """
    grid = _grid(asked, space.embed_dim[-1])
    detail = (
        "training at several widths without labels is experimental: it is published for labelled data only, "
        "so compare its networks with separately trained ones"
    )
    warnings.append(ErrorItem("/widths", "experimental", detail))
    try:
        return replace(space, embed_dim=grid)
    except SpaceError as error:
        # The space was sound before: what is at fault is how narrow it has become.
        items = [ErrorItem("/widths/smallest", "invalid_space", str(p), p.allowed) for p in error.problems]
        raise ValidationFailed.of(items) from error


def _grid(asked: WidthsSpec, largest: int) -> tuple[int, ...]:
    smallest = _channels(asked.smallest, largest)
    if smallest is None or smallest == largest:  # which a share next to 1 rounds to
        nearest = min(max(1, round(asked.smallest * largest)), largest - 1) / largest
        channels = asked.smallest * largest
        detail = f"{asked.smallest:g} of width {largest} is {channels:g} channels, no whole number below {largest}"
        raise ValidationFailed.of([ErrorItem("/widths/smallest", "no_whole_width", detail, {"nearest": nearest})])
    span, step = largest - smallest, _channels(asked.step, largest)
    if step is None or span % step or span // step >= MAX_WIDTHS:
        raise ValidationFailed.of([_wrong_step(asked, smallest, largest)])
    return tuple(range(smallest, largest + 1, step))


def _wrong_step(asked: WidthsSpec, smallest: int, largest: int) -> ErrorItem:
    span, wanted = largest - smallest, asked.step * largest
    valid = [step for step in range(1, span + 1) if span % step == 0 and span // step < MAX_WIDTHS]
    nearest = min(valid, key=lambda step: (abs(step - wanted), step))
    detail = (
        f"steps of {asked.step:g}, {wanted:g} channels, do not lead from width {smallest} to {largest} in whole "
        f"channels and at most {MAX_WIDTHS} widths; the nearest that do are {nearest} channels"
    )
    return ErrorItem("/widths/step", "no_whole_grid", detail, {"nearest": nearest / largest})


def _channels(share: float, largest: int) -> int | None:
    """A share of the largest width in channels; None when that is no whole number."""
    channels = round(share * largest)
    return channels if channels >= 1 and abs(share * largest - channels) < _ROUNDING else None
