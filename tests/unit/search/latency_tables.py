"""Latency tables for small spaces."""

from collections.abc import Sequence
from itertools import product
from typing import Any

from models.architecture import Architecture
from search.latency import HeldOut, LatencySetting, LatencyTable
from search.space import Space


def setting_for(space: Space, num_classes: int = 3, **changes: Any) -> LatencySetting:
    """One that suits the members of a space."""
    fields: dict[str, Any] = {
        "device": "bench",
        "runtime": "torch",
        "precision": "fp32",
        "batch_size": 1,
        "threads": 1,
        "percentile": 50,
        "warmup_runs": 10,
        "runs": 50,
        "num_classes": num_classes,
        **{name: getattr(space, name) for name in ("img_size", "patch_size", "in_chans", "head_dim", "rel_pos")},
    }
    return LatencySetting(**{**fields, **changes})


def table_for(
    space: Space, num_classes: int = 3, *, joint: bool = False, held_out: Sequence[HeldOut] = ()
) -> LatencyTable:
    """Uneven times; with ``joint`` those of a block are no sum of a head part and a ratio part."""
    fixed = {width: 1_000 + 7 * width for width in space.embed_dim}
    blocks = {
        (width, heads, ratio): 300 * heads + int(41 * ratio * width) + (97 * heads * int(ratio) if joint else 0)
        for width, heads, ratio in product(space.embed_dim, space.num_heads, space.mlp_ratio)
    }
    return LatencyTable(setting_for(space, num_classes), fixed, blocks, tuple(held_out))


def sum_of_parts(table: LatencyTable, arch: Architecture) -> int:
    """The prediction, written out."""
    total = table.fixed_ns[arch.embed_dim]
    for heads, ratio in zip(arch.num_heads, arch.mlp_ratio, strict=True):
        total += table.block_ns[arch.embed_dim, heads, ratio]
    return total
