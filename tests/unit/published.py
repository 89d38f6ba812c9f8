"""Published architectures and exact figures, for golden tests of the record, the count and the cost model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from models.architecture import Architecture


@dataclass(frozen=True)
class Golden:
    """One published network at 224 px, patch 16, 1000 classes, with figures to the unit.

    ``macs_rel_pos`` prices relative position as dense tables, see ``search.cost``.
    """

    name: str
    arch: Architecture
    params_rel_pos: int
    params: int
    params_encoder: int  # without head
    macs: int
    macs_rel_pos: int


def _golden(
    name: str, embed_dim: int, ratios: list[float], heads: list[int], figures: tuple[int, int, int, int, int]
) -> Golden:
    arch = Architecture(
        embed_dim=embed_dim, depth=len(heads), num_heads=tuple(heads), mlp_ratio=tuple(ratios), norm_eps=1e-5
    )
    return Golden(name, arch, *figures)


# Genes: the MaskTAS authors' rebuttal; AutoFormer's released subnets.  Figures of the AutoFormer family with relative
# position equal the official counter run on the official modules.
GOLDEN = [
    _golden(
        "masktas-tiny",
        192,
        [4, 4, 4, 4, 4, 3.5, 3.5, 4, 4, 3.5, 4, 4],
        [4, 4, 4, 4, 3, 3, 3, 3, 3, 4, 3, 4],
        (5_994_760, 5_902_600, 5_709_600, 1_319_799_552, 1_528_436_736),
    ),
    _golden(
        "masktas-small",
        384,
        [4, 4, 3, 4, 3, 4, 3, 3, 4, 3, 3, 4, 3],
        [7, 7, 7, 7, 5, 7, 7, 5, 6, 5, 6, 6, 5],
        (22_054_888, 21_955_048, 21_570_048, 4_619_256_832, 5_016_660_992),
    ),
    _golden(
        "masktas-base",
        576,
        [3.5, 4, 3, 4, 4, 3.5, 3, 3.5, 3, 3, 3, 3, 3, 3],
        [10, 9, 10, 10, 10, 10, 9, 10, 9, 9, 10, 9, 9, 10],
        (51_957_832, 51_850_312, 51_273_312, 10_723_943_680, 11_389_595_648),
    ),
    _golden(
        "autoformer-tiny",
        192,
        [3.5, 3.5, 3, 3.5, 3, 3, 4, 4, 3.5, 4, 3.5, 4, 3.5],
        [3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 4, 3, 3],
        (5_867_944, 5_768_104, 5_575_104, 1_283_236_352, 1_481_938_432),
    ),
    _golden(
        "autoformer-small",
        384,
        [3, 3.5, 3, 3.5, 4, 4, 4, 4, 4, 4, 4, 3.5, 4],
        [6, 6, 5, 7, 5, 5, 5, 6, 6, 7, 7, 6, 7],
        (22_891_432, 22_791_592, 22_406_592, 4_773_931_776, 5_161_400_832),
    ),
    _golden(
        "autoformer-base",
        576,
        [3.5, 3.5, 4, 3.5, 4, 3.5, 3.5, 3, 4, 4, 3, 4, 3, 3.5],
        [9, 9, 9, 9, 9, 10, 9, 9, 10, 9, 10, 9, 9, 10],
        (53_691_688, 53_584_168, 53_007_168, 11_045_397_248, 11_691_179_008),
    ),
]


def plain_vit(embed_dim: int, num_heads: int, **fields: Any) -> Architecture:
    """A 12-block ViT whose heads share the width evenly, as DeiT and the width slices of Scala."""
    return Architecture(
        embed_dim=embed_dim,
        depth=12,
        num_heads=(num_heads,) * 12,
        mlp_ratio=(4.0,) * 12,
        head_dim=embed_dim // num_heads,
        **fields,
    )
