"""Architectures that papers published as the result of a search, as fixed points for tests and for comparison.

They are *not* evidence for a search metric: MaskTAS-tiny is gene for gene the network that PreNAS (Wang et al. 2023)
selects without training for its budget of 6 M parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from models.architecture import Architecture
from search.presets import PresetName

_IMAGENET_CLASSES = 1000


@dataclass(frozen=True, slots=True)
class Published:
    """One architecture with the space that it belongs to and where it was printed."""

    name: str
    architecture: Architecture
    preset: PresetName
    source: str


def _masktas(size: PresetName, embed_dim: int, mlp_ratio: tuple[float, ...], num_heads: tuple[int, ...]) -> Published:
    return Published(
        name=size.value,
        architecture=Architecture(
            embed_dim=embed_dim,
            depth=len(num_heads),
            num_heads=num_heads,
            mlp_ratio=mlp_ratio,
            num_classes=_IMAGENET_CLASSES,
        ),
        preset=size,
        source="MaskTAS, architectures listed in the authors' response to the reviews",
    )


PUBLISHED: Mapping[str, Published] = MappingProxyType(
    {
        entry.name: entry
        for entry in (
            _masktas(
                PresetName.MASKTAS_TINY,
                192,
                (4, 4, 4, 4, 4, 3.5, 3.5, 4, 4, 3.5, 4, 4),
                (4, 4, 4, 4, 3, 3, 3, 3, 3, 4, 3, 4),
            ),
            _masktas(
                PresetName.MASKTAS_SMALL,
                384,
                (4, 4, 3, 4, 3, 4, 3, 3, 4, 3, 3, 4, 3),
                (7, 7, 7, 7, 5, 7, 7, 5, 6, 5, 6, 6, 5),
            ),
            _masktas(
                PresetName.MASKTAS_BASE,
                576,
                (3.5, 4, 3, 4, 4, 3.5, 3, 3.5, 3, 3, 3, 3, 3, 3),
                (10, 9, 10, 10, 10, 10, 9, 10, 9, 9, 10, 9, 9, 10),
            ),
        )
    }
)
"""Published architectures by name, for 1000 classes at 224 pixels, without relative position."""
