"""The whole network of a slimmable job: its sizes, given, by default, or those of weights that exist."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from pydantic import ValidationError

from models.architecture import Architecture, ArchitectureError, FieldProblem, Pool
from models.foreign.layout import VitLayout
from models.foreign.recognition import DEFAULT_EPS
from models.foreign.start import start_problems
from search.presets import MICRO_MAX_IMG_SIZE
from search.space import IMG_SIZES
from service.datasets.info import DatasetInfo
from service.errors import ErrorItem, ValidationFailed, shortened
from service.jobs.resolve.spaces import field_errors
from service.jobs.spec import InitSpec, NetworkSpec
from service.teachers.info import TeacherInfo

POINTER = "/network"

_FIELDS = tuple(NetworkSpec.model_fields)

_OF_INIT = ("embed_dim", "depth", "num_heads", "mlp_ratio", "patch_size", "in_chans", "layer_scale", "norm_eps")
"""What follows from start weights; positions are resampled to other images, and the head is fresh."""

_GRID = 4
"""Patches along a side: of small images by default, and at least with start weights, whose patch is given."""


@dataclass(frozen=True, slots=True)
class FixedNetwork:
    """Sizes that follow from weights.

    Attributes:
        network: that they belong to.
        fields: of the spec that it fixes.
        whose: the weights, for messages.
        pointer: of the field that names them.
    """

    network: Architecture
    fields: tuple[str, ...]
    whose: str
    pointer: str

    @classmethod
    def whole(cls, network: Architecture, whose: str, pointer: str) -> FixedNetwork:
        """Everything is fixed."""
        return cls(network, _FIELDS, whose, pointer)

    def spec(self) -> NetworkSpec:
        """The sizes as a body says them.

        Raises:
            ValidationFailed: some are beyond what is trained here.
        """
        try:
            return network_spec(self.network)
        except ValidationError as error:
            faults = "; ".join(f"{fault['loc'][0]} {fault['input']}: {fault['msg']}" for fault in error.errors())
            detail = f"{self.whose} has sizes that are not trained here ({faults})"
            raise ValidationFailed.of([ErrorItem(self.pointer, "not_slimmable", detail, "other weights")]) from error


def resolve_network(asked: NetworkSpec, dataset: DatasetInfo, fixed: FixedNetwork | None) -> NetworkSpec:
    """Fill every size.

    Raises:
        ValidationFailed: a size other than that of the given weights, or a network that cannot be built.
    """
    if fixed is not None:
        asked = _as_fixed(asked, fixed)
    filled = _with_defaults(asked, dataset, fixed)
    network_of(filled)
    return filled


def network_of(spec: NetworkSpec, num_classes: int = 0) -> Architecture:
    """The architecture of a filled spec.

    Raises:
        ValidationFailed: there is no such network.
    """
    assert spec.embed_dim is not None, "resolve_network fills all fields"
    assert spec.num_heads is not None, "resolve_network fills all fields"
    assert spec.depth is not None, "resolve_network fills all fields"
    if spec.embed_dim % spec.num_heads:
        allowed = [heads for heads in range(1, 257) if spec.embed_dim % heads == 0]
        detail = f"found {spec.num_heads}, which does not divide embed_dim {spec.embed_dim}"
        raise ValidationFailed.of([ErrorItem(f"{POINTER}/num_heads", "not_a_divisor", detail, allowed)])
    fields = {name: getattr(spec, name) for name in _FIELDS}
    fields |= {"num_heads": (spec.num_heads,) * spec.depth, "mlp_ratio": (spec.mlp_ratio,) * spec.depth}
    try:
        return Architecture(
            **fields | {"pool": Pool(fields["pool"])},
            head_dim=spec.embed_dim // spec.num_heads,
            num_classes=num_classes,
        )
    except ArchitectureError as error:
        raise ValidationFailed.of(network_errors(error.problems)) from error


def network_errors(problems: tuple[FieldProblem, ...] | list[FieldProblem]) -> list[ErrorItem]:
    """Problems of an architecture at the fields of the spec, each field once.

    All blocks are alike, so what is wrong with a list is wrong with the one number that fills it; heads are as wide as
    the width says.
    """
    named = {"head_dim": "embed_dim"}
    once: dict[str, FieldProblem] = {}
    for problem in problems:
        field = problem.pointer.split("/")[1]
        once.setdefault(named.get(field, field), problem)
    found = [FieldProblem(f"/{field}", problem.found, problem.allowed) for field, problem in once.items()]
    return field_errors(POINTER, found)


def network_spec(network: Architecture) -> NetworkSpec:
    """The spec of a network whose blocks are alike."""
    fields = {name: getattr(network, name) for name in _FIELDS}
    return NetworkSpec.model_validate(
        fields | {"num_heads": network.num_heads[0], "mlp_ratio": network.mlp_ratio[0], "pool": network.pool.value}
    )


def _as_fixed(asked: NetworkSpec, fixed: FixedNetwork) -> NetworkSpec:
    known = fixed.spec()
    wrong = [
        name
        for name in fixed.fields
        if getattr(asked, name) is not None and getattr(asked, name) != getattr(known, name)
    ]
    if wrong:
        raise ValidationFailed.of(
            [
                ErrorItem(
                    f"{POINTER}/{name}",
                    "fixed_by_weights",
                    f"found {getattr(asked, name)}, while {fixed.whose} has {getattr(known, name)}; leave it out",
                    [getattr(known, name)],
                )
                for name in wrong
            ]
        )
    return asked.model_copy(update={name: getattr(known, name) for name in fixed.fields})


def _with_defaults(asked: NetworkSpec, dataset: DatasetInfo, fixed: FixedNetwork | None) -> NetworkSpec:
    img_size, patch_size = _sides(asked, dataset, fixed)
    small = img_size <= MICRO_MAX_IMG_SIZE
    embed_dim, num_heads = _width(asked, small)
    defaults: dict[str, Any] = {
        "embed_dim": embed_dim,
        "num_heads": num_heads,
        "depth": 4 if small else 12,
        "mlp_ratio": 4.0,
        "img_size": img_size,
        "patch_size": patch_size,
        "in_chans": 1 if dataset.channels == 1 else 3,
        "pool": "token",
        "distilled": False,
        "layer_scale": False,
        "norm_eps": DEFAULT_EPS,
    }
    chosen = {name: value for name, value in defaults.items() if getattr(asked, name) is None}
    return asked.model_copy(update=chosen)


_SMALL_HEAD, _HEAD = 32, 64
"""Channels of a head where the number of heads does not say otherwise."""


def _width(asked: NetworkSpec, small: bool) -> tuple[int, int]:
    """Width and heads; where one is open the heads have the usual width."""
    head = _SMALL_HEAD if small else _HEAD
    width, heads = asked.embed_dim, asked.num_heads
    if width is None:
        heads = heads or (3 if small else 6)
        return heads * head, heads
    if heads is not None:
        return width, heads
    if width % head:
        detail = f"{width} is no multiple of {head}, the usual width of a head here; say how many heads there are"
        allowed = [n for n in range(1, 257) if width % n == 0]
        raise ValidationFailed.of([ErrorItem(f"{POINTER}/num_heads", "heads_unknown", detail, allowed)])
    return width, width // head


def _sides(asked: NetworkSpec, dataset: DatasetInfo, fixed: FixedNetwork | None) -> tuple[int, int]:
    """Sides of image and patch in pixels."""
    least, most = IMG_SIZES
    side, patch = min(max(dataset.min_side, least), most), asked.patch_size
    if fixed is not None and asked.img_size is None:
        own = fixed.network
        fitting = max(_GRID * own.patch_size, side - side % own.patch_size)
        return (own.img_size if side > MICRO_MAX_IMG_SIZE else fitting), own.patch_size
    img_size = asked.img_size
    if img_size is None and patch is None:
        return (side - side % _GRID, (side - side % _GRID) // _GRID) if side <= MICRO_MAX_IMG_SIZE else (224, 16)
    if img_size is None:
        assert patch is not None, "one of them is given"
        if side > MICRO_MAX_IMG_SIZE:
            return 224 - 224 % patch, patch
        return max(side - side % patch, -(-least // patch) * patch), patch
    if patch is not None:
        return img_size, patch
    small = img_size <= MICRO_MAX_IMG_SIZE
    usual = img_size // _GRID if small else 16
    if img_size % (_GRID if small else usual):
        allowed = [n for n in range(2, 33) if img_size % n == 0 and n < img_size]
        detail = f"images of {img_size} pixels have no usual patch here; say how large patches are"
        raise ValidationFailed.of([ErrorItem(f"{POINTER}/patch_size", "patch_unknown", detail, allowed)])
    return img_size, usual


def fixed_by_init(asked: InitSpec, known: TeacherInfo | None) -> FixedNetwork:
    """The sizes of start weights.

    Args:
        asked: which weights.
        known: the teacher that ``asked.teacher`` names.

    Raises:
        ValidationFailed: weights of a network that has no slimmable form, or whose sizes their name does not tell.
    """
    if asked.timm is not None:
        network = _named_network(asked.timm)
        return FixedNetwork(network, _OF_INIT + ("distilled",) * network.distilled, asked.timm, "/init/timm")
    assert known is not None, "whoever names a teacher by its id has looked it up"
    layout = VitLayout.from_json(known.architecture, known.info.get("layout", {}))
    whose = f"teacher {shortened(known.name)!r}"
    if problems := tuple(start_problems(layout)):
        detail = f"{whose} cannot start a slimmable network: {'; '.join(map(str, problems))}"
        raise ValidationFailed.of([ErrorItem("/init/teacher", "not_slimmable", detail, "a plain Vision Transformer")])
    # A published distillation token is read as a register.
    network = replace(
        layout.arch, layer_scale=layout.layer_scale, distilled=layout.registers == 1, pool=Pool.TOKEN, num_classes=0
    )
    # Positions are resampled, so that a larger image is no obstacle.
    most = IMG_SIZES[1] - IMG_SIZES[1] % network.patch_size
    if 0 < most < network.img_size:
        network = replace(network, img_size=most)
    return FixedNetwork(network, _OF_INIT + ("distilled",) * network.distilled, whose, "/init/teacher")


_SIZES: Mapping[str, tuple[int, int, int]] = MappingProxyType(
    {
        "tiny": (192, 12, 3),
        "small": (384, 12, 6),
        "base": (768, 12, 12),
        "large": (1024, 24, 16),
    }
)
"""Width, depth and heads of the published sizes that timm's names name alike (Touvron et al. 2021)."""

_TIMM = (
    re.compile(
        r"(?P<kind>vit|deit|deit3)_(?P<size>[a-z]+)(?P<token>_distilled)?_patch(?P<patch>\d{1,2})_(?P<img>\d{3})(\.\w+)?"
    ),
    re.compile(r"vit_(?P<size>[a-z]+)(?P<token>)_patch(?P<patch>14)_(?P<kind>dinov2)(\.\w+)?"),
)
_DINOV2_SIDE = 518
_WITH_LAYER_SCALE = ("deit3", "dinov2")


def _named_network(name: str) -> Architecture:
    """The sizes that a name of timm's tells. The worker compares them with the weights."""
    for pattern in _TIMM:
        found = pattern.fullmatch(name)
        if found is not None and found["size"] in _SIZES:
            width, depth, heads = _SIZES[found["size"]]
            try:
                return Architecture(
                    embed_dim=width,
                    depth=depth,
                    num_heads=(heads,) * depth,
                    mlp_ratio=(4.0,) * depth,
                    img_size=int(found["img"]) if "img" in pattern.groupindex else _DINOV2_SIDE,
                    patch_size=int(found["patch"]),
                    num_classes=0,
                    layer_scale=found["kind"] in _WITH_LAYER_SCALE,
                    distilled=bool(found["token"]),
                    pool=Pool.TOKEN,
                )
            except ArchitectureError:
                break
    allowed = (
        "vit_, deit_ or deit3_{tiny, small, base, large}_patch.., or a registered teacher by its id (init.teacher)"
    )
    detail = f"the sizes of {name} do not follow from its name; register it (POST /teachers) and name it by its id"
    raise ValidationFailed.of([ErrorItem("/init/timm", "sizes_unknown", detail, allowed)])
