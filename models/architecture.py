"""The architecture record: the full description of one Vision Transformer.

Pure Python on purpose: the HTTP service and the search import it, and neither may import torch.

An :class:`Architecture` is frozen and hashable; two records with equal fields are the same network, and
(weights being shared) have the same weights when both are sliced from one supernet.  The JSON form is versioned;
:func:`json_schema` describes it and :meth:`Architecture.from_json` reads it strictly.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

SCHEMA_VERSION = 1

REL_POS_TABLES = ("rel_pos_k_rows", "rel_pos_k_cols", "rel_pos_v_rows", "rel_pos_v_cols")
"""Parameters of one attention with relative position: for keys and values, by distance in rows and in columns."""

REL_POS_LENGTH = 30
"""Entries of each table: one for pairs with the class token, then distances -14..14; farther ones count as 14."""

Genotype = tuple[int | float, ...]
"""Canonical gene tuple ``(depth, mlp_ratio * depth, num_heads * depth, embed_dim)``.

The order is AutoFormer's (candidate tuples of its search checkpoints), so that foreign records compare directly.
"""


class Pool(StrEnum):
    """How the token sequence becomes one vector. Both read it *after* the final LayerNorm."""

    AVG = "avg"  # mean over patch tokens, class token left out
    TOKEN = "token"  # the class token


@dataclass(frozen=True, slots=True)
class FieldProblem:
    """One thing that is wrong with an architecture: where, what was found, what is allowed."""

    pointer: str  # JSON pointer into the architecture object, such as "/num_heads/3"
    found: object
    allowed: str

    def __str__(self) -> str:
        return f"{self.pointer}: found {self.found!r}, allowed is {self.allowed}"


class ArchitectureError(ValueError):
    """The record does not describe a network that can be built. ``problems`` lists every field at fault."""

    def __init__(self, problems: Iterable[FieldProblem]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(map(str, self.problems)))


@dataclass(frozen=True, slots=True)
class _Bounds:
    low: int
    high: int

    def __str__(self) -> str:
        return f"an integer from {self.low} to {self.high}"


# Upper bounds keep absurd requests from allocating memory; the largest published ViTs (ViT-22B: width 6144,
# depth 48, 48 heads) fit with room to spare.
_INT_FIELDS: dict[str, _Bounds] = {
    "embed_dim": _Bounds(1, 8192),
    "depth": _Bounds(1, 128),
    "head_dim": _Bounds(1, 1024),
    "img_size": _Bounds(2, 4096),
    "patch_size": _Bounds(1, 256),
    "num_classes": _Bounds(0, 1_000_000),
}
MAX_HEADS = 256
_HEADS = _Bounds(1, MAX_HEADS)
_MAX_RATIO = 16.0
_MAX_TOKENS = 65_536
_CHANNELS = (1, 3)
_BOOL_FIELDS = ("rel_pos", "distilled", "layer_scale")
MAX_NORM_EPS = 1e-2
"""Largest epsilon of a LayerNorm; those in use are 1e-5 and 1e-6."""

_RATIO_SLACK = 1e-9  # 10 * (1 - 0.9) is just below 1 in floating point


def is_int(value: object) -> bool:
    """True for real integers; booleans are not numbers here although Python says so."""
    return isinstance(value, int) and not isinstance(value, bool)


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """One Vision Transformer, completely described.

    Attributes:
        embed_dim: token width ``d``, the same in every block.
        depth: number of blocks ``L``.
        num_heads: attention heads of each block, length ``depth``.
        mlp_ratio: hidden width of each block's MLP as a multiple of ``embed_dim``, length ``depth``.
        head_dim: width of one attention head; query, key and value are ``num_heads * head_dim`` wide and thereby
            independent of ``embed_dim`` (AutoFormer's decoupling).
        img_size: side of the square input in pixels, a multiple of ``patch_size``.
        patch_size: side of one square patch in pixels.
        in_chans: 1 (grey) or 3 (RGB).
        num_classes: outputs of the linear head; 0 means no head.
        pool: how tokens become one vector before the head.
        rel_pos: relative position on keys and values (AutoFormer, section 3.3); plain timm networks have none.
        norm_eps: epsilon of every LayerNorm: 1e-6 in MAE, DeiT and timm, 1e-5 in AutoFormer and Scala.
        distilled: a distillation token behind the class token with a head of its own, whose logits are averaged with
            those of the class token (DeiT, Touvron et al. 2021, section 4); needs ``pool`` token.
        layer_scale: each branch of a block is scaled by a learned vector (CaiT, Touvron et al. 2021, section 3).

    Raises:
        ArchitectureError: when a field is outside what :func:`json_schema` states or fields contradict each other.
    """

    embed_dim: int
    depth: int
    num_heads: tuple[int, ...]
    mlp_ratio: tuple[float, ...]
    head_dim: int = 64
    img_size: int = 224
    patch_size: int = 16
    in_chans: int = 3
    num_classes: int = 1000
    pool: Pool = Pool.AVG
    rel_pos: bool = False
    norm_eps: float = 1e-6
    distilled: bool = False
    layer_scale: bool = False

    def __post_init__(self) -> None:
        problems = list(_problems(self))
        if problems:
            raise ArchitectureError(problems)
        # One spelling of equal records: JSON readers hand over lists and 4 for 4.0.
        object.__setattr__(self, "num_heads", tuple(self.num_heads))
        object.__setattr__(self, "mlp_ratio", tuple(float(r) for r in self.mlp_ratio))
        object.__setattr__(self, "norm_eps", float(self.norm_eps))
        object.__setattr__(self, "pool", Pool(self.pool))

    @property
    def grid_size(self) -> int:
        """Patches along one side of the image."""
        return self.img_size // self.patch_size

    @property
    def num_patches(self) -> int:
        """Patch tokens of one image; the sequence has ``num_prefix`` more."""
        return self.grid_size**2

    @property
    def num_prefix(self) -> int:
        """Tokens before those of the patches: the class token, and with ``distilled`` the distillation token."""
        return 2 if self.distilled else 1

    @property
    def patch_dim(self) -> int:
        """Values in one patch: ``patch_size ** 2 * in_chans``."""
        return self.patch_size**2 * self.in_chans

    @property
    def qkv_dims(self) -> tuple[int, ...]:
        """Width of the queries (equally keys, values) of each block."""
        return tuple(h * self.head_dim for h in self.num_heads)

    @property
    def mlp_dims(self) -> tuple[int, ...]:
        """Hidden width of each block's MLP; a fractional product is truncated, as the field does."""
        return tuple(int(self.embed_dim * r) for r in self.mlp_ratio)

    @property
    def is_uniform(self) -> bool:
        """True when all blocks are alike and ``head_dim * heads == embed_dim``, i.e. a plain timm ViT."""
        same = len(set(self.num_heads)) == 1 and len(set(self.mlp_ratio)) == 1
        return same and self.num_heads[0] * self.head_dim == self.embed_dim

    @property
    def genotype(self) -> Genotype:
        """The canonical gene tuple; equal tuples in one space are the same network."""
        return (self.depth, *self.mlp_ratio, *self.num_heads, self.embed_dim)

    def with_classes(self, num_classes: int) -> Architecture:
        """The same network with another head."""
        return self if num_classes == self.num_classes else replace(self, num_classes=num_classes)

    def to_json(self) -> dict[str, Any]:
        """The gene part of the architecture JSON; :meth:`from_json` reads it back to an equal record."""
        return {
            "schema_version": SCHEMA_VERSION,
            "embed_dim": self.embed_dim,
            "depth": self.depth,
            "num_heads": list(self.num_heads),
            "head_dim": self.head_dim,
            "mlp_ratio": list(self.mlp_ratio),
            "img_size": self.img_size,
            "patch_size": self.patch_size,
            "in_chans": self.in_chans,
            "num_classes": self.num_classes,
            "pool": self.pool.value,
            "rel_pos": self.rel_pos,
            "norm_eps": self.norm_eps,
            "distilled": self.distilled,
            "layer_scale": self.layer_scale,
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Architecture:
        """Read the gene part of an architecture JSON, strictly.

        Unknown keys and wrong types are refused rather than ignored, since a misspelt gene would silently become
        a default.  As in JSON schema, 4.0 is the integer 4.

        Raises:
            ArchitectureError: with one problem for each key at fault.
        """
        version = _exact(document.get("schema_version", SCHEMA_VERSION))
        if not is_int(version) or version != SCHEMA_VERSION:
            raise ArchitectureError([FieldProblem("/schema_version", version, str(SCHEMA_VERSION))])
        fields = {key: value for key, value in document.items() if key != "schema_version"}
        allowed = ", ".join(sorted(cls.__slots__))
        problems = [
            FieldProblem(f"/{escape_pointer(str(key))}", key, f"one of {allowed}")
            for key in fields
            if key not in cls.__slots__
        ]
        problems += [
            FieldProblem(f"/{key}", None, "required")
            for key in ("embed_dim", "depth", "num_heads", "mlp_ratio")
            if key not in fields
        ]
        if problems:
            raise ArchitectureError(problems)
        return cls(**{key: _exact(value) for key, value in fields.items()})


def count_visible(num_patches: int, mask_ratio: float) -> int:
    """Patches that stay visible when the share ``mask_ratio`` is hidden, rounded down as in MAE (He et al. 2022)."""
    return int(num_patches * (1 - mask_ratio) + _RATIO_SLACK)


def escape_pointer(token: str) -> str:
    """Escape one reference token of a JSON pointer (RFC 6901, section 3)."""
    return token.replace("~", "~0").replace("/", "~1")


def _exact(value: object) -> Any:
    """JSON has one type of number: whole floats are integers, alone or in a list."""
    if isinstance(value, list | tuple):
        return [_exact(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _problems(arch: Architecture) -> Iterable[FieldProblem]:
    """Every fault of a record; runs before normalisation, so field types are not yet trusted."""
    sound = True
    for name, bounds in _INT_FIELDS.items():
        value = getattr(arch, name)
        if not is_int(value) or not bounds.low <= value <= bounds.high:
            sound = False
            yield FieldProblem(f"/{name}", value, str(bounds))
    if not is_int(arch.in_chans) or arch.in_chans not in _CHANNELS:
        yield FieldProblem("/in_chans", arch.in_chans, "1 or 3")
    for name in _BOOL_FIELDS:
        if not isinstance(getattr(arch, name), bool):
            sound = False
            yield FieldProblem(f"/{name}", getattr(arch, name), "true or false")
    if arch.pool not in tuple(Pool):
        yield FieldProblem("/pool", arch.pool, " or ".join(Pool))
    if not _is_number(arch.norm_eps) or not 0 < arch.norm_eps <= MAX_NORM_EPS:
        yield FieldProblem("/norm_eps", arch.norm_eps, f"a number above 0, at most {MAX_NORM_EPS}")
    if not sound:
        return
    if arch.distilled and arch.rel_pos:
        yield FieldProblem("/distilled", True, "false with rel_pos: a distillation token has no place on the grid")
    if arch.distilled and arch.pool != Pool.TOKEN:
        yield FieldProblem("/pool", arch.pool, "token with distilled")
    yield from _list_problems(arch)
    if arch.img_size % arch.patch_size:
        yield FieldProblem("/img_size", arch.img_size, f"a multiple of patch_size {arch.patch_size}")
    elif arch.num_patches > _MAX_TOKENS:
        yield FieldProblem("/patch_size", arch.patch_size, f"at most {_MAX_TOKENS} patches, not {arch.num_patches}")


def _list_problems(arch: Architecture) -> Iterable[FieldProblem]:
    for name in ("num_heads", "mlp_ratio"):
        values = getattr(arch, name)
        if not isinstance(values, list | tuple):
            yield FieldProblem(f"/{name}", values, f"a list of {arch.depth} entries, one per block")
        elif len(values) != arch.depth:
            yield FieldProblem(f"/{name}", f"{len(values)} entries", f"{arch.depth} entries, one per block")
        else:
            for i, value in enumerate(values):
                yield from _gene_problem(name, i, value, arch.embed_dim)


def _gene_problem(name: str, i: int, value: object, embed_dim: int) -> Iterable[FieldProblem]:
    if name == "num_heads":
        if not (isinstance(value, int) and is_int(value) and _HEADS.low <= value <= _HEADS.high):
            yield FieldProblem(f"/{name}/{i}", value, str(_HEADS))
    elif not (isinstance(value, int | float) and _is_number(value) and 0 < value <= _MAX_RATIO):
        yield FieldProblem(f"/{name}/{i}", value, f"a number above 0, at most {_MAX_RATIO:g}")
    elif int(embed_dim * value) < 1:
        yield FieldProblem(f"/{name}/{i}", value, f"at least {1 / embed_dim:g}, so that the MLP has a channel")


def _is_number(value: object) -> bool:
    # NaN fails every comparison of the callers, so it needs no case of its own.
    return isinstance(value, int | float) and not isinstance(value, bool)


def json_schema() -> dict[str, Any]:
    """JSON schema (2020-12) of the gene part of the architecture JSON.

    It states types and bounds; what a schema cannot say (list lengths equal depth, image a multiple of the patch)
    is checked by :class:`Architecture`.
    """
    integers = {name: {"type": "integer", "minimum": b.low, "maximum": b.high} for name, b in _INT_FIELDS.items()}
    depth = _INT_FIELDS["depth"]
    lists = {"minItems": depth.low, "maxItems": depth.high}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "ViTailor architecture",
        "type": "object",
        "additionalProperties": False,
        "required": ["embed_dim", "depth", "num_heads", "mlp_ratio"],
        "properties": {
            "schema_version": {"const": SCHEMA_VERSION},
            **integers,
            "num_heads": {
                "type": "array",
                "items": {"type": "integer", "minimum": _HEADS.low, "maximum": _HEADS.high},
                **lists,
            },
            "mlp_ratio": {
                "type": "array",
                "items": {"type": "number", "exclusiveMinimum": 0, "maximum": _MAX_RATIO},
                **lists,
            },
            "in_chans": {"enum": list(_CHANNELS)},
            "pool": {"enum": [p.value for p in Pool]},
            **{name: {"type": "boolean"} for name in _BOOL_FIELDS},
            "norm_eps": {"type": "number", "exclusiveMinimum": 0, "maximum": MAX_NORM_EPS},
        },
    }
