"""The search space: which architectures may be proposed.

A space is a product of choices in the manner of AutoFormer (Chen et al. 2021, section 3.2): one width and one depth for
the network, one head count and one MLP ratio for each of its blocks.  Everything else (head width, image, patch) is
the same for all members, so that all of them are slices of one supernet, :meth:`Space.largest`.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import pairwise, product
from typing import Any

import numpy as np

from models.architecture import Architecture, ArchitectureError, FieldProblem, Pool, escape_pointer, is_int
from models.architecture import json_schema as architecture_schema
from search.errors import SpaceError

SCHEMA_VERSION = 1

AXES = ("embed_dim", "depth", "num_heads", "mlp_ratio")
"""The lists of a space. The first two hold one choice for the network, the last two one choice for each block."""

_PER_BLOCK = ("num_heads", "mlp_ratio")
_ABSENT = ("distilled", "layer_scale")  # what no member of any space has
_CONSTANTS = ("head_dim", "img_size", "patch_size", "in_chans", "pool", "norm_eps", "rel_pos")

MAX_CHOICES = 64
"""Of one axis."""

MAX_NAME = 64
"""Characters of a name."""

IMG_SIZES = (8, 518)
"""Smallest and largest side (pixels) of the images of a space, from digits to DINOv2's photos. The architecture record
allows more, for foreign networks that are only priced; beyond this nothing was ever trained here."""

PATCH_SIZES = (2, 32)
"""Smallest and largest patch (pixels). A patch of one grey pixel has nothing to reconstruct once it is normalised, and
beyond 32 pixels a patch is most of what the method masks."""

# Exact feasibility walks over the distinct sums of the blocks' choices (search.sampling). Regular steps give a few
# dozen of them, irregular ones up to thousands; this bound on the work keeps that within a few seconds.
_MAX_SUM_WORK = 20_000_000
_STEPS_PER_LINE = 100  # a line (width, depth, sum of heads) takes about as long as this many additions

# A network that is valid whatever single field of it is replaced: used to ask the record for its own bounds.
_PROBE: dict[str, Any] = {"embed_dim": 8192, "depth": 1, "num_heads": (1,), "mlp_ratio": (1.0,)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """A set of architectures, given by the choices on each axis.

    Lists may come in any order and are kept sorted. The number of classes is not part of a space: members are priced
    and built with the head that they are deployed with, so methods that return an architecture take ``num_classes``.

    Attributes:
        name: what people call it; not part of its identity.
        embed_dim: widths of the network.
        depth: numbers of blocks.
        num_heads: head counts of a block.
        mlp_ratio: MLP hidden widths of a block, as multiples of the network's width.
        head_dim, img_size, patch_size, in_chans, pool, norm_eps, rel_pos: as in
            :class:`models.architecture.Architecture`, image and patch within :data:`IMG_SIZES` and :data:`PATCH_SIZES`.

    Raises:
        SpaceError: with one problem for each field at fault; pointers are relative to the space.
    """

    name: str
    embed_dim: tuple[int, ...]
    depth: tuple[int, ...]
    num_heads: tuple[int, ...]
    mlp_ratio: tuple[float, ...]
    head_dim: int = 64
    img_size: int = 224
    patch_size: int = 16
    in_chans: int = 3
    pool: Pool = Pool.AVG
    norm_eps: float = 1e-6
    rel_pos: bool = False

    def __post_init__(self) -> None:
        problems = tuple(_field_problems(self))
        if not problems:
            for axis in AXES:
                kind = float if axis == "mlp_ratio" else int
                object.__setattr__(self, axis, tuple(sorted(kind(value) for value in getattr(self, axis))))
            object.__setattr__(self, "pool", Pool(self.pool))
            object.__setattr__(self, "norm_eps", float(self.norm_eps))
            problems = tuple(_joint_problems(self))
        if problems:
            raise SpaceError(problems)

    def largest(self, num_classes: int = 0) -> Architecture:
        """The member with the most of everything: the supernet that holds all others as slices."""
        return self._uniform(max, num_classes)

    def smallest(self, num_classes: int = 0) -> Architecture:
        """The member with the least of everything."""
        return self._uniform(min, num_classes)

    def centre(self, num_classes: int = 0) -> Architecture:
        """The member in the middle of each (sorted) axis; of two middle choices the smaller."""
        return self._uniform(lambda choices: choices[(len(choices) - 1) // 2], num_classes)

    def size(self) -> int:
        """Number of members: ``n_embed * sum over depths L of (n_heads * n_ratio) ** L``."""
        per_block = len(self.num_heads) * len(self.mlp_ratio)
        block_choices: int = sum(per_block**depth for depth in self.depth)
        return len(self.embed_dim) * block_choices

    def sample(self, rng: np.random.Generator, num_classes: int = 0) -> Architecture:
        """Draw each gene uniformly and independently, as AutoFormer does.

        This is uniform over depths, hence not over members: the few shallow members are each more likely.
        """
        depth = self.depth[rng.integers(len(self.depth))]
        ratios = rng.integers(len(self.mlp_ratio), size=depth)
        heads = rng.integers(len(self.num_heads), size=depth)
        return self._build(
            self.embed_dim[rng.integers(len(self.embed_dim))],
            [self.num_heads[i] for i in heads],
            [self.mlp_ratio[i] for i in ratios],
            num_classes,
        )

    def members(self, num_classes: int = 0) -> Iterator[Architecture]:
        """All members, one at a time; meant for small spaces (see :meth:`size`)."""
        for embed_dim, depth in product(self.embed_dim, self.depth):
            for heads in product(self.num_heads, repeat=depth):
                for ratios in product(self.mlp_ratio, repeat=depth):
                    yield self._build(embed_dim, heads, ratios, num_classes)

    def decode(self, genotype: Sequence[int | float], num_classes: int = 0) -> Architecture:
        """Build the member that a genotype (see ``models.architecture.Genotype``) names.

        Raises:
            SpaceError: when the tuple is malformed or names no member.
        """
        depth = genotype[0] if genotype else None
        if not is_int(depth) or depth not in self.depth or len(genotype) != 2 * depth + 2:
            allowed = "depth, then as many ratios, as many head counts, and the width"
            raise SpaceError([FieldProblem("/genotype", list(genotype), allowed)])
        blocks = int(depth)
        try:
            arch = Architecture(
                embed_dim=genotype[-1],  # type: ignore[arg-type]  # the record checks the type
                depth=blocks,
                num_heads=tuple(genotype[1 + blocks : -1]),  # type: ignore[arg-type]  # the record checks the types
                mlp_ratio=tuple(genotype[1 : 1 + blocks]),
                num_classes=num_classes,
                **self._constants(),
            )
        except ArchitectureError as error:
            raise SpaceError(error.problems) from error
        problems = self.explain(arch)
        if problems:
            raise SpaceError(problems)
        return arch

    def contains(self, arch: Architecture) -> bool:
        """True when the architecture is a member, whatever its number of classes."""
        return not self.explain(arch)

    def explain(self, arch: Architecture) -> tuple[FieldProblem, ...]:
        """What keeps an architecture from being a member: each axis with its value and the values of the space."""
        return tuple(self._membership_problems(arch))

    def hidden_dims(self, embed_dim: int) -> tuple[int, ...]:
        """MLP hidden widths at this network width, one for each entry of ``mlp_ratio``."""
        # Asked of the record, which owns the rounding rule.
        return self._build(embed_dim, [self.num_heads[0]] * len(self.mlp_ratio), self.mlp_ratio, 0).mlp_dims

    def digest(self) -> str:
        """SHA-256 (hex) of the set of members; equal for equal spaces whatever their names and list orders."""
        # A plain space is named as it was before there was relative position: digests are stored beside supernets.
        left_out = ("name",) if self.rel_pos else ("name", "rel_pos")
        identity = {key: value for key, value in self.to_json().items() if key not in left_out}
        return hashlib.sha256(json.dumps(identity, sort_keys=True, separators=(",", ":")).encode()).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """The space as a JSON object; :meth:`from_json` reads it back to an equal record."""
        return {
            "schema_version": SCHEMA_VERSION,
            "name": self.name,
            **{axis: list(getattr(self, axis)) for axis in AXES},
            **self._constants(),
            "pool": self.pool.value,
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Space:
        """Read a space, strictly: unknown keys and wrong types are refused.

        Raises:
            SpaceError: with one problem for each key at fault.
        """
        version = document.get("schema_version", SCHEMA_VERSION)
        if not is_int(version) or version != SCHEMA_VERSION:
            raise SpaceError([FieldProblem("/schema_version", version, str(SCHEMA_VERSION))])
        known = [field.name for field in fields(cls)]
        given = {key: value for key, value in document.items() if key != "schema_version"}
        problems = [
            FieldProblem(f"/{escape_pointer(str(key))}", key, f"one of {', '.join(sorted(known))}")
            for key in given
            if key not in known
        ]
        problems += [FieldProblem(f"/{key}", None, "required") for key in ("name", *AXES) if key not in given]
        if problems:
            raise SpaceError(problems)
        return cls(**given)

    def member_schema(self) -> dict[str, Any]:
        """JSON schema of the architecture JSON, narrowed to what this space contains."""
        schema = architecture_schema()
        narrowed = schema["properties"]
        for axis in AXES:
            choices = {"enum": list(getattr(self, axis))}
            if axis in _PER_BLOCK:
                narrowed[axis] = {
                    "type": "array",
                    "items": choices,
                    "minItems": self.depth[0],
                    "maxItems": self.depth[-1],
                }
            else:
                narrowed[axis] = choices
        for name, value in self._constants().items():
            narrowed[name] = {"const": value}
        for name in _ABSENT:
            narrowed[name] = {"const": False}
        return {**schema, "title": f"Architecture of the space {self.name}"}

    def _constants(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in _CONSTANTS}

    def _uniform(self, pick: Callable[[Sequence[Any]], Any], num_classes: int) -> Architecture:
        depth = pick(self.depth)
        return self._build(
            pick(self.embed_dim), [pick(self.num_heads)] * depth, [pick(self.mlp_ratio)] * depth, num_classes
        )

    def _build(self, embed_dim: int, heads: Sequence[int], ratios: Sequence[float], num_classes: int) -> Architecture:
        return Architecture(
            embed_dim=embed_dim,
            depth=len(heads),
            num_heads=tuple(heads),
            mlp_ratio=tuple(ratios),
            num_classes=num_classes,
            **self._constants(),
        )

    def _membership_problems(self, arch: Architecture) -> Iterator[FieldProblem]:
        for axis in AXES:
            choices = getattr(self, axis)
            found = getattr(arch, axis)
            allowed = f"one of {', '.join(f'{choice:g}' for choice in choices)} in space {self.name!r}"
            values = enumerate(found) if axis in _PER_BLOCK else [(None, found)]
            for i, value in values:
                if value not in choices:
                    yield FieldProblem(f"/{axis}" if i is None else f"/{axis}/{i}", value, allowed)
        for name, value in self._constants().items():
            if getattr(arch, name) != value:
                yield FieldProblem(f"/{name}", getattr(arch, name), f"{value} in space {self.name!r}")
        for name in _ABSENT:
            if getattr(arch, name):
                yield FieldProblem(f"/{name}", True, "false: no space has such members")


def _field_problems(space: Space) -> Iterator[FieldProblem]:
    """Faults of single fields; runs before normalisation, so types are not yet trusted."""
    if not isinstance(space.name, str) or not 1 <= len(space.name) <= MAX_NAME:
        yield FieldProblem("/name", space.name, f"a text of 1 to {MAX_NAME} characters")
    for axis in AXES:
        yield from _axis_problems(axis, getattr(space, axis))
    yield from _constant_problems({name: getattr(space, name) for name in _CONSTANTS})


def _constant_problems(constants: Mapping[str, Any]) -> Iterator[FieldProblem]:
    told = set()
    for name, (low, high) in (("img_size", IMG_SIZES), ("patch_size", PATCH_SIZES)):
        value = constants[name]
        if not is_int(value) or not low <= value <= high:
            told.add(f"/{name}")
            yield FieldProblem(f"/{name}", value, f"an integer from {low} to {high}")
    # Of a side that is out of bounds nothing else need be said.
    yield from (problem for problem in _record_problems(constants) if problem.pointer not in told)


def _axis_problems(axis: str, choices: object) -> Iterator[FieldProblem]:
    if not isinstance(choices, list | tuple):
        yield FieldProblem(f"/{axis}", choices, "a list of choices")
        return
    if not 1 <= len(choices) <= MAX_CHOICES:
        yield FieldProblem(f"/{axis}", f"{len(choices)} choices", f"1 to {MAX_CHOICES} choices")
        return
    for i, choice in enumerate(choices):
        # Probes have one block: what the record says of other fields than the probed one is not at issue here.
        probe = (choice,) if axis in _PER_BLOCK else choice
        for problem in _record_problems({axis: probe}):
            if problem.pointer in (f"/{axis}", f"/{axis}/0"):
                yield FieldProblem(f"/{axis}/{i}", choice, problem.allowed)
        if choice in choices[:i]:
            yield FieldProblem(f"/{axis}/{i}", choice, "each choice once")


def _record_problems(changes: Mapping[str, Any]) -> Iterable[FieldProblem]:
    """What the architecture record says against these fields. Its bounds hold for spaces too, and are stated once."""
    try:
        Architecture(**{**_PROBE, **changes})
    except ArchitectureError as error:
        return error.problems
    return ()


def _joint_problems(space: Space) -> Iterator[FieldProblem]:
    """Faults of fields that are sound by themselves."""
    try:
        space.smallest()
    except ArchitectureError as error:
        smallest_ratio = FieldProblem("/mlp_ratio/0", space.mlp_ratio[0], error.problems[0].allowed)
        yield smallest_ratio
        return
    yield from _twins(space)
    hidden_work, line_work = _sum_work(space)
    work = hidden_work + line_work
    if work > _MAX_SUM_WORK:
        axis = "mlp_ratio" if hidden_work > line_work else "num_heads"
        yield FieldProblem(
            f"/{axis}",
            list(getattr(space, axis)),
            "fewer choices, steps of one size, or fewer widths and depths: sums over the blocks take so many values "
            f"that limits could not be decided ({work:,} steps, at most {_MAX_SUM_WORK:,})",
        )


def _twins(space: Space) -> Iterator[FieldProblem]:
    """Two ratios with one hidden width: their networks would be the same under different genotypes."""
    for width in space.embed_dim:
        for (ratio, hidden), (other, same) in pairwise(zip(space.mlp_ratio, space.hidden_dims(width), strict=True)):
            if hidden == same:
                allowed = f"ratios that differ at width {width}: {ratio:g} also gives {hidden} hidden channels"
                yield FieldProblem("/mlp_ratio", other, allowed)
                return


def _sum_work(space: Space) -> tuple[int, int]:
    """Upper bound of the steps that exact feasibility takes on sums of hidden widths, and on lines."""
    depth = space.depth[-1]
    hidden_sums = sum(_distinct_sums(space.hidden_dims(embed_dim), depth) for embed_dim in space.embed_dim)
    lines = len(space.embed_dim) * len(space.depth) * _distinct_sums(space.num_heads, depth)
    return depth * len(space.mlp_ratio) * hidden_sums, _STEPS_PER_LINE * lines


def _distinct_sums(choices: Sequence[int], count: int) -> int:
    """Upper bound of the number of different sums of ``count`` of the choices."""
    steps = [choice - choices[0] for choice in choices]
    return count * steps[-1] // max(1, math.gcd(*steps)) + 1
