"""From a source of weights to a teacher: read, recognise, convert, and say what it is."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor

from models.architecture import Architecture
from models.foreign.layout import VitLayout
from models.foreign.licences import Licence, of_kind, stated
from models.foreign.recognition import Hints, NotRecognised, Recognised, recognise
from models.foreign.transforms import Kind
from models.teacher import FrozenTeacher
from models.teacher_weights import build_vit, convert, has_fixed_positions
from service.errors import DatasetInvalid, ErrorItem, TeacherInvalid
from service.jobs.spec import TeacherSource
from service.teachers.files import hints_of, refused
from workers.data.importing import resolve_import_path
from workers.teachers.hub import TimmNetwork, fetch_weights, find_network
from workers.teachers.reading import check_values, read_weights
from workers.training.files import WrittenFile, write_tensors

Json = dict[str, Any]

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Normalisation of MAE, DINOv2 and DeiT."""

_SAME = 1e-5  # largest difference between two computations of the same features, relative to their largest value


@dataclass(frozen=True, slots=True, kw_only=True)
class Acquired:
    """A network that can serve as a teacher.

    Attributes:
        name: unless the user has another.
        layout: of the network without a head.
        state: its weights under timm's names, float32.
        head: ``head.weight`` (K, D) and ``head.bias`` (K,) of a classifier on its pooled tokens; empty without one.
        mean, std: of the images that it was trained on.
        licence: of the weights.
        facts: what else is known, as JSON: kind, source, steps, dropped tensors, notes.
    """

    name: str
    layout: VitLayout
    state: dict[str, Tensor]
    head: dict[str, Tensor]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    licence: Licence
    facts: Json

    @property
    def architecture(self) -> Architecture:
        """The network with its head, if it has one."""
        return self.layout.arch.with_classes(len(self.head["head.bias"]) if self.head else 0)

    @property
    def info(self) -> Json:
        """What the teacher's row keeps beside its architecture."""
        return {
            **self.facts,
            "layout": self.layout.to_json(),
            "preprocessing": {"mean": list(self.mean), "std": list(self.std)},
            "licence": self.licence.to_json(),
        }

    def write(self, path: Path) -> WrittenFile:
        """Write the weights; equal weights give equal bytes."""
        header = {"architecture": self.architecture.to_json(), "layout": self.layout.to_json()}
        return write_tensors(path, {**self.state, **self.head}, header)


def acquire(source: TeacherSource, import_root: Path | None) -> Acquired:
    """Read the weights that a source names.

    Raises:
        TeacherInvalid: they are no usable Vision Transformer; every key at fault is listed.
        TeacherUnavailable: they cannot be had now.
    """
    acquired = _from_timm(source.timm) if source.timm is not None else _from_file(source, import_root)
    if source.licence is not None:
        acquired = replace(acquired, licence=stated(source.licence, "the user"))
    return acquired


def _from_file(source: TeacherSource, import_root: Path | None) -> Acquired:
    assert source.path is not None, "a source has a timm name or a path"
    if import_root is None:
        raise TeacherInvalid("This worker has no import root configured (VITAILOR_IMPORT_ROOT).")
    try:
        path = resolve_import_path(import_root, source.path)
    except DatasetInvalid as error:
        raise TeacherInvalid(error.detail) from error
    found = read_weights(path)
    shapes = {name: tuple(tensor.shape) for name, tensor in found.tensors.items()}
    recognised = _recognise(shapes | dict.fromkeys(found.others, ()), hints_of(source))
    state = _converted(found.tensors, recognised)
    kind = recognised.findings.kind
    if kind is Kind.VIT and has_fixed_positions(state["pos_embed"]):
        kind = Kind.MAE_ENCODER
    mean, std, notes = _normalisation(source, recognised.layout.arch.in_chans)
    head = _head(found.tensors, recognised)
    facts = _facts(recognised, kind, {"path": source.path}, notes, head) | {"found_in": ".".join(found.place) or None}
    return Acquired(
        name=path.name,
        layout=recognised.layout,
        state=state,
        head=head,
        mean=mean,
        std=std,
        licence=of_kind(kind),
        facts=facts,
    )


def _from_timm(name: str) -> Acquired:
    network = find_network(name)
    recognised = timm_layout(network)
    weights = fetch_weights(network)
    recognised = _recognise({name: tuple(tensor.shape) for name, tensor in weights.items()}, network.hints)
    state = _converted(weights, recognised)
    head = _head(weights, recognised)
    if not _answers_alike(network, weights, recognised.layout, state, head):
        head = {}
    licence = network.config.get("license")
    return Acquired(
        name=network.name,
        layout=recognised.layout,
        state=state,
        head=head,
        mean=tuple(network.config["mean"]),
        std=tuple(network.config["std"]),
        licence=stated(licence, "timm's record of the weights") if licence else of_kind(Kind.VIT),
        facts=_facts(recognised, recognised.findings.kind, {"timm": network.name}, [], head),
    )


def timm_layout(found: TimmNetwork) -> Recognised:
    """What one of timm's networks is, before its weights are there.

    Raises:
        TeacherInvalid: it has no class token or uses options that are not known here.
    """
    shapes = {name: tuple(tensor.shape) for name, tensor in found.network.state_dict().items()}
    return _recognise(shapes, found.hints)


def _recognise(shapes: dict[str, tuple[int, ...]], hints: Hints) -> Recognised:
    try:
        return recognise(shapes, hints)
    except NotRecognised as error:
        raise refused(error) from error


def _converted(tensors: dict[str, Tensor], recognised: Recognised) -> dict[str, Tensor]:
    used = {part.name for entry in recognised.entries.values() for part in entry.parts}
    check_values({name: tensors[name] for name in sorted(used)})
    return convert(tensors, recognised.entries)


def _normalisation(source: TeacherSource, channels: int) -> tuple[tuple[float, ...], tuple[float, ...], list[str]]:
    if source.mean is not None and source.std is not None:
        if len(source.mean) != channels:
            detail = f"the network takes images of {channels} channels, found are {len(source.mean)} values"
            raise TeacherInvalid(f"source.mean: {detail}.", errors=[ErrorItem("/source/mean", "wrong_length", detail)])
        return tuple(source.mean), tuple(source.std), []
    mean, std = (
        (values if channels == len(values) else (sum(values) / len(values),))
        for values in (IMAGENET_MEAN, IMAGENET_STD)
    )
    note = "The file does not tell how images were normalised: ImageNet's mean and deviation are assumed."
    return mean, std, [note]


_HEAD = ("head.weight", "head.bias")

_OTHER_HEADS = ("fc_norm.weight", "head_dist.weight")
"""Of networks whose head reads something else than one pooled token, or is not the only one."""


def _head(tensors: dict[str, Tensor], recognised: Recognised) -> dict[str, Tensor]:
    """The classifier of a plain network, which the recognition has put aside; empty when there is none."""
    aside = set(recognised.findings.dropped)  # names without what wrappers have put before all names of the file
    if recognised.findings.kind is not Kind.VIT or not aside.issuperset(_HEAD) or aside.intersection(_OTHER_HEADS):
        return {}
    named = {name: [of for of in tensors if of == name or of.endswith(f".{name}")] for name in _HEAD}
    if any(len(names) != 1 for names in named.values()):
        return {}
    found = {name: tensors[names[0]] for name, names in named.items()}
    weight, bias = found.values()
    if bias.ndim != 1 or weight.shape != (len(bias), recognised.layout.arch.embed_dim):
        return {}
    check_values(found)
    return {name: tensor.detach().float().clone() for name, tensor in found.items()}


def _facts(recognised: Recognised, kind: Kind, source: Json, notes: list[str], head: dict[str, Tensor]) -> Json:
    findings = recognised.findings
    return {
        "kind": kind.value,
        "source": source,
        "transforms": findings.steps,
        "dropped": [name for name in findings.dropped if not (head and name in _HEAD)],
        "notes": [*findings.notes, *notes],
    }


@torch.no_grad()
def _answers_alike(
    found: TimmNetwork,
    weights: dict[str, Tensor],
    layout: VitLayout,
    state: dict[str, Tensor],
    head: dict[str, Tensor],
) -> bool:
    """Whether a head gives what timm's own network gives; features have to.

    One image is computed both ways: an option that no key shows must not change features silently.

    Raises:
        TeacherInvalid: the features differ.
    """
    network: VisionTransformer = found.network
    heads = network.load_state_dict(weights, strict=False, assign=True)
    assert not heads.missing_keys, "recognised tensors are those of the network"
    network.eval()
    channels, size = layout.arch.in_chans, layout.arch.img_size
    image = torch.linspace(-2, 2, channels * size**2).view(1, channels, size, size)
    # timm's annotation also knows a dictionary, which it returns on other terms.
    features: Any = network.forward_intermediates(image, indices=1, output_fmt="NLC", intermediates_only=True)
    expected: Tensor = features[0]
    ours = FrozenTeacher(build_vit(layout, state))
    given = ours.features(image, None, after=(layout.arch.depth,))[0][:, 1:]
    difference = _difference(given, expected)
    if not difference <= _SAME:
        raise TeacherInvalid(
            f"{found.name} computes other features than a network of its tensors' layout (difference "
            f"{difference:.2g}): it uses an option of timm that is not known here."
        )
    # Without its classes timm's network gives what the head reads.
    return bool(head) and _difference(ours.network(image), network(image)) <= _SAME


def _difference(given: Tensor, expected: Tensor) -> float:
    """Largest difference, relative to the largest value but at least to 1."""
    if given.shape != expected.shape:
        return float("inf")
    return float((given - expected).abs().max() / expected.abs().max().clamp_min(1))
