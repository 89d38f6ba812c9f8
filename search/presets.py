"""Named search spaces, and the architectures that papers published in them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from models.architecture import FieldProblem, escape_pointer, is_int
from search.errors import SpaceError
from search.plugins import PluginError, PluginGroup, load_plugin, plugin_names
from search.space import AXES, PATCH_SIZES, Space


class PresetName(StrEnum):
    """The built-in spaces."""

    MICRO = "micro"
    MASKTAS_TINY = "masktas-tiny"
    MASKTAS_SMALL = "masktas-small"
    MASKTAS_BASE = "masktas-base"
    MASKTAS_BASE_8_10 = "masktas-base-8-10"


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """A space before the image size is known.

    Exactly one of ``patch_size`` (pixels) and ``grid_size`` (patches along a side) is fixed; the other follows from
    the image.
    """

    name: str
    description: str
    embed_dim: tuple[int, ...]
    depth: tuple[int, ...]
    num_heads: tuple[int, ...]
    mlp_ratio: tuple[float, ...]
    head_dim: int
    default_img_size: int
    patch_size: int | None = None
    grid_size: int | None = None


_AUTOFORMER_SOURCE = "choices of AutoFormer's published supernet configuration (Chen et al. 2021)"


def _base(name: PresetName, num_heads: tuple[int, ...], source: str) -> Preset:
    return Preset(
        name=name,
        description=f"Around 54 M parameters; {source}.",
        embed_dim=(528, 576, 624),
        depth=(14, 15, 16),
        num_heads=num_heads,
        mlp_ratio=(3.0, 3.5, 4.0),
        head_dim=64,
        default_img_size=224,
        patch_size=16,
    )


PRESETS: Mapping[PresetName, Preset] = MappingProxyType(
    {
        PresetName(preset.name): preset
        for preset in (
            Preset(
                name=PresetName.MICRO,
                description="For images of up to 64 pixels: 16 patches, trains on a processor within minutes.",
                embed_dim=(48, 64, 96),
                depth=(3, 4, 5),
                num_heads=(2, 3, 4),
                mlp_ratio=(2.0, 3.0, 4.0),
                head_dim=16,
                default_img_size=32,
                grid_size=4,
            ),
            Preset(
                name=PresetName.MASKTAS_TINY,
                description=f"Around 6 M parameters; {_AUTOFORMER_SOURCE}, tiny.",
                embed_dim=(192, 216, 240),
                depth=(12, 13, 14),
                num_heads=(3, 4),
                mlp_ratio=(3.5, 4.0),
                head_dim=64,
                default_img_size=224,
                patch_size=16,
            ),
            Preset(
                name=PresetName.MASKTAS_SMALL,
                description=f"Around 23 M parameters; {_AUTOFORMER_SOURCE}, small.",
                embed_dim=(320, 384, 448),
                depth=(12, 13, 14),
                num_heads=(5, 6, 7),
                mlp_ratio=(3.0, 3.5, 4.0),
                head_dim=64,
                default_img_size=224,
                patch_size=16,
            ),
            # AutoFormer's files disagree on the heads of the base space, and MaskTAS does not say which it searched;
            # its published network lies in both.
            _base(
                PresetName.MASKTAS_BASE,
                (9, 10),
                f"{_AUTOFORMER_SOURCE}, base: 9 or 10 heads, as its supernet was trained",
            ),
            _base(
                PresetName.MASKTAS_BASE_8_10,
                (8, 9, 10),
                "the other reading of AutoFormer's base space (Chen et al. 2021): 8 to 10 heads, as in the paper and "
                "in its published subnet configuration",
            ),
        )
    }
)

MICRO_MAX_IMG_SIZE = 64
"""Images up to this side (pixels) are searched in ``micro`` unless the user names another space."""

OVERRIDABLE = (*AXES, "head_dim", "patch_size", "pool", "norm_eps", "rel_pos")
"""Fields of a space that a user may replace in a preset."""


def default_preset(img_size: int) -> PresetName:
    """The space for images of this side (pixels) when the user names none."""
    return PresetName.MICRO if img_size <= MICRO_MAX_IMG_SIZE else PresetName.MASKTAS_TINY


def preset_names() -> tuple[str, ...]:
    """The built-in spaces, then those of installed packages."""
    return (*PresetName, *(name for name in plugin_names(PluginGroup.SPACES) if name not in tuple(PresetName)))


def find_preset(name: str) -> Preset:
    """The preset of a name, from a package if it is not built in.

    Raises:
        PluginError: there is none, which names all that there are, or its package does not work.
    """
    if name in tuple(PresetName):
        return PRESETS[PresetName(name)]
    if name not in preset_names():
        raise PluginError(f"one of {', '.join(preset_names())}")
    return replace(load_plugin(PluginGroup.SPACES, name, Preset), name=name)


def resolve(
    preset: str | None = None,
    *,
    img_size: int | None = None,
    in_chans: int = 3,
    overrides: Mapping[str, Any] | None = None,
) -> Space:
    """Build the space that a user asked for.

    Args:
        preset: a :class:`PresetName` or a space of an installed package; by default chosen from the image size.
        img_size: side of the square input in pixels; by default that of the preset.
        in_chans: 1 (grey) or 3 (RGB).
        overrides: fields of :data:`OVERRIDABLE` to replace.

    Raises:
        SpaceError: pointers are relative to ``{"preset", "img_size", "in_chans", "overrides": {...}}``.
    """
    changes = dict(overrides or {})
    problems = [
        FieldProblem(f"/overrides/{escape_pointer(str(key))}", key, f"one of {', '.join(OVERRIDABLE)}")
        for key in changes
        if key not in OVERRIDABLE
    ]
    chosen = None
    try:
        chosen = find_preset(preset or default_preset(img_size or PRESETS[PresetName.MASKTAS_TINY].default_img_size))
    except PluginError as error:
        problems.append(FieldProblem("/preset", preset, str(error)))
    if img_size is not None and not is_int(img_size):
        problems.append(FieldProblem("/img_size", img_size, "an integer"))
    if problems or chosen is None:
        raise SpaceError(problems)
    side = chosen.default_img_size if img_size is None else img_size
    given: dict[str, Any] = {
        "name": str(chosen.name),
        "embed_dim": chosen.embed_dim,
        "depth": chosen.depth,
        "num_heads": chosen.num_heads,
        "mlp_ratio": chosen.mlp_ratio,
        "head_dim": chosen.head_dim,
        "img_size": side,
        "in_chans": in_chans,
        **changes,
    }
    if "patch_size" not in changes:
        given["patch_size"] = _patch_size(chosen, side)
    try:
        return Space(**given)
    except SpaceError as error:
        raise SpaceError(_as_asked(error.problems, changes)) from error


def _patch_size(preset: Preset, img_size: int) -> int:
    if preset.grid_size is None:
        assert preset.patch_size is not None
        return preset.patch_size
    low, high = (patch_size * preset.grid_size for patch_size in PATCH_SIZES)
    if not low <= img_size <= high or img_size % preset.grid_size:
        allowed = (
            f"a multiple of {preset.grid_size} from {low} to {high} in space {str(preset.name)!r}, "
            "or a patch_size in overrides"
        )
        raise SpaceError([FieldProblem("/img_size", img_size, allowed)])
    return img_size // preset.grid_size


def _as_asked(problems: tuple[FieldProblem, ...], changes: Mapping[str, Any]) -> list[FieldProblem]:
    """Move pointers from the space to where the user wrote the value."""
    return [
        FieldProblem(f"/overrides{p.pointer}", p.found, p.allowed) if p.pointer.split("/")[1] in changes else p
        for p in problems
    ]
