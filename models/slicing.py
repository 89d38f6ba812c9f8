"""The one slicing rule: which part of every supernet tensor a nested architecture uses.

:func:`slice_table` states it per tensor, under the names of timm's ``VisionTransformer``.  The supernet's forward,
the extraction of a subnet and the parameter count all read this table, so they cannot disagree.  Pure Python: the
table says *where* to cut; :func:`models.supernet.apply_slices` does it.

An axis of a tensor is a product of nested *factors*, and a subnet keeps the leading entries of each factor.  The rows
of a fused qkv projection have the factors (role, head, channel of the head): keeping 2 of 4 heads keeps the first two
heads of the queries, of the keys and of the values, for weight and bias alike, so no row ever changes its role.  The
released AutoFormer and Scala code slices these rows (or their biases) as one flat run, where a row is a query in one
subnet and a key in another.

A :class:`Cut` says what is not in the architecture: Scala's isolated activation keeps the *trailing* entries of some
subnets, and its released weights need that flat run of rows and an attention scale that does not follow the width.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache
from types import MappingProxyType

from models.architecture import REL_POS_LENGTH, REL_POS_TABLES, Architecture, FieldProblem

_ROLES = 3  # queries, keys, values in the rows of a fused projection
_CACHED_TABLES = 256  # several populations; a table of 14 blocks takes about 60 kB

Factors = tuple[int, ...]
SliceTable = Mapping[str, "tuple[AxisSlice, ...]"]


class QkvSlicing(StrEnum):
    """How the rows of a fused qkv projection are cut when heads become narrower."""

    HEAD_ALIGNED = "head_aligned"  # channels within each head of each role: no row changes its role
    CONTIGUOUS = "contiguous"  # one flat run of rows, as in Scala's released code


@dataclass(frozen=True, slots=True)
class Cut:
    """How a subnet is cut, beside its sizes.

    Attributes:
        trailing: keep the trailing entries of each factor instead of the leading ones (Scala's isolated activation).
        qkv: how the rows of queries, keys and values are cut.
        full_scale: attention is scaled by the supernet's width of a head instead of the subnet's.
    """

    trailing: bool = False
    qkv: QkvSlicing = QkvSlicing.HEAD_ALIGNED
    full_scale: bool = False

    def query_factor(self, largest: Architecture, arch: Architecture) -> float:
        """What queries are multiplied by, so that the scale of a network of its own gives the one that is meant."""
        return math.sqrt(arch.head_dim / largest.head_dim) if self.full_scale else 1.0


LEADING = Cut()
"""The cut of everything but Scala's variants."""


class SlicingError(ValueError):
    """The architecture is no slice of the supernet. ``problems`` names each axis, what was found and what fits."""

    def __init__(self, *problems: FieldProblem) -> None:
        self.problems = problems
        super().__init__("; ".join(map(str, problems)))


@dataclass(frozen=True, slots=True)
class AxisSlice:
    """One axis seen as nested factors, the leading (or trailing) ``take[k]`` entries of factor ``k`` being kept.

    ``AxisSlice((640,), (576,))`` is the prefix of 576 out of 640 channels; ``AxisSlice((3, 10, 64), (3, 9, 64))``
    keeps nine of ten heads in each of the three roles.

    Raises:
        SlicingError: when a factor is empty or more entries are to be kept than it has.
    """

    factors: Factors
    take: Factors
    trailing: bool = False

    def __post_init__(self) -> None:
        fits = len(self.factors) == len(self.take) > 0
        if not fits or not all(0 < t <= f for t, f in zip(self.take, self.factors, strict=True)):
            raise SlicingError(FieldProblem("/take", self.take, f"1 to the entries of each factor of {self.factors}"))

    @property
    def length(self) -> int:
        """Entries of the full axis."""
        return math.prod(self.factors)

    @property
    def kept(self) -> int:
        """Entries of the sliced axis."""
        return math.prod(self.take)

    @property
    def is_whole(self) -> bool:
        """True when nothing is cut."""
        return self.take == self.factors


def check_nested(largest: Architecture, arch: Architecture) -> None:
    """Refuse an architecture that is no slice of the supernet ``largest``.

    Width, depth, heads, head width and MLP width may be smaller, block by block.  Everything that shapes the input or
    the meaning of the weights (image, patch, channels, pooling, LayerNorm epsilon, relative position) must be equal.
    The head is whole or absent: ``arch.num_classes`` equals the supernet's, or is 0 for the bare backbone.  A headed
    architecture cannot be cut from a supernet without a head, since there are no weights for it: cut the backbone
    (``arch.with_classes(0)``) and give the network a fresh head.

    Raises:
        SlicingError: one problem for each axis at fault, with both values.
    """
    problems = tuple(_nesting_problems(largest, arch))
    if problems:
        raise SlicingError(*problems)


def _nesting_problems(largest: Architecture, arch: Architecture) -> Iterator[FieldProblem]:
    for name in ("img_size", "patch_size", "in_chans", "pool", "rel_pos", "norm_eps", "distilled", "layer_scale"):
        found, fixed = getattr(arch, name), getattr(largest, name)
        if found != fixed:
            yield FieldProblem(f"/{name}", found, f"{fixed!r}, as in the supernet")
    if arch.num_classes not in (0, largest.num_classes):
        allowed = f"{largest.num_classes} or 0" if largest.num_classes else "0, since the supernet has no head"
        yield FieldProblem("/num_classes", arch.num_classes, allowed)
    for name in ("embed_dim", "depth", "head_dim"):
        found, most = getattr(arch, name), getattr(largest, name)
        if found > most:
            yield FieldProblem(f"/{name}", found, f"at most {most}, the supernet's")
    for i, (found, most) in enumerate(zip(arch.num_heads, largest.num_heads, strict=False)):
        if found > most:
            yield FieldProblem(f"/num_heads/{i}", found, f"at most {most}, the supernet's")
    for i, (hidden, most) in enumerate(zip(arch.mlp_dims, largest.mlp_dims, strict=False)):
        if hidden > most:
            found = f"{arch.mlp_ratio[i]:g} (hidden width {hidden})"
            yield FieldProblem(f"/mlp_ratio/{i}", found, f"a hidden width of at most {most}, the supernet's")


@lru_cache(maxsize=_CACHED_TABLES)
def slice_table(largest: Architecture, arch: Architecture, cut: Cut = LEADING) -> SliceTable:
    """How ``arch`` is cut from the supernet ``largest``: for each of its tensors one :class:`AxisSlice` per axis.

    Tensors that ``arch`` does not have (deeper blocks, the head of a bare backbone) are not in the table.  The result
    is read-only and shared between calls.

    Raises:
        SlicingError: when ``arch`` is not nested in ``largest``, see :func:`check_nested`.
    """
    check_nested(largest, arch)
    full = tensor_axes(largest, cut.qkv)
    return MappingProxyType(
        {
            name: tuple(AxisSlice(factors, take, cut.trailing) for factors, take in zip(full[name], axes, strict=True))
            for name, axes in tensor_axes(arch, cut.qkv).items()
        }
    )


def parameter_shapes(arch: Architecture) -> dict[str, tuple[int, ...]]:
    """Shape of every parameter of ``arch`` under timm's name, in timm's layout."""
    return {name: tuple(map(math.prod, axes)) for name, axes in tensor_axes(arch).items()}


def count_parameters(arch: Architecture) -> int:
    """Number of parameters, counted tensor by tensor; the closed form is ``search.cost.params``."""
    return sum(math.prod(shape) for shape in parameter_shapes(arch).values())


def tensor_axes(arch: Architecture, qkv: QkvSlicing = QkvSlicing.HEAD_ALIGNED) -> dict[str, tuple[Factors, ...]]:
    """Every parameter of ``arch`` as the nested factors of each of its axes, in the order of a forward pass."""
    width = (arch.embed_dim,)
    token = ((1,), (1,), width)
    axes: dict[str, tuple[Factors, ...]] = {
        "cls_token": token,
        **({"dist_token": token} if arch.distilled else {}),
        "pos_embed": ((1,), (arch.num_patches + arch.num_prefix,), width),
        "patch_embed.proj.weight": (width, (arch.in_chans,), (arch.patch_size,), (arch.patch_size,)),
        "patch_embed.proj.bias": (width,),
    }
    for i in range(arch.depth):
        axes |= {f"blocks.{i}.{name}": tensor for name, tensor in _block_axes(arch, i, qkv).items()}
    axes |= {"norm.weight": (width,), "norm.bias": (width,)}
    if arch.num_classes:
        classes = (arch.num_classes,)
        for head in ("head", "head_dist") if arch.distilled else ("head",):
            axes |= {f"{head}.weight": (classes, width), f"{head}.bias": (classes,)}
    return axes


def _block_axes(arch: Architecture, block: int, qkv: QkvSlicing) -> dict[str, tuple[Factors, ...]]:
    width, hidden = (arch.embed_dim,), (arch.mlp_dims[block],)
    heads: Factors = (arch.num_heads[block], arch.head_dim)
    rows: Factors = (_ROLES, *heads)
    if qkv is QkvSlicing.CONTIGUOUS:
        heads, rows = (math.prod(heads),), (math.prod(rows),)
    # All heads of a block share the tables (AutoFormer), so only the width of a head cuts them.
    tables = {f"attn.{name}": ((REL_POS_LENGTH,), (arch.head_dim,)) for name in REL_POS_TABLES} if arch.rel_pos else {}
    first_scale, second_scale = (({f"{name}.gamma": (width,)} if arch.layer_scale else {}) for name in ("ls1", "ls2"))
    return {
        "norm1.weight": (width,),
        "norm1.bias": (width,),
        "attn.qkv.weight": (rows, width),
        "attn.qkv.bias": (rows,),
        **tables,
        "attn.proj.weight": (width, heads),
        "attn.proj.bias": (width,),
        **first_scale,
        "norm2.weight": (width,),
        "norm2.bias": (width,),
        "mlp.fc1.weight": (hidden, width),
        "mlp.fc1.bias": (hidden,),
        "mlp.fc2.weight": (width, hidden),
        "mlp.fc2.bias": (width,),
        **second_scale,
    }
