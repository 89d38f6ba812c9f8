"""Spaces small enough to try every member."""

from typing import Any

from search.space import Space


def small_space(**changes: Any) -> Space:
    """222 members with regular and irregular steps."""
    fields: dict[str, Any] = {
        "name": "small",
        "embed_dim": (16, 24),
        "depth": (1, 3),
        "num_heads": (1, 2),
        "mlp_ratio": (2.0, 2.5, 4.0),
        "head_dim": 8,
        "img_size": 8,
        "patch_size": 4,
        "in_chans": 1,
    }
    return Space(**{**fields, **changes})


def twelve_members() -> Space:
    """12 members: 3 widths, one block with 2 head counts and 2 ratios."""
    return small_space(name="twelve", embed_dim=(16, 24, 32), depth=(1,), mlp_ratio=(2.0, 4.0))
