"""Work and footprint of a search from its filled spec, as ``POST /search/validate`` tells them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from math import ceil

from models.architecture import Architecture, Pool
from search.cost import params
from search.space import Space
from search.widths import measured_widths
from service.datasets.info import DatasetInfo
from service.forecast.footprint import Footprint, TrainingSize, activations, file_bytes, pixel_bytes
from service.forecast.quantity import Work
from service.forecast.widths import WidthFacts, width_work
from service.forecast.work import SearchFacts, search_work
from service.jobs.resolve import (
    Resolved,
    ResolvedSlimmable,
    on_students_grid,
    teacher_architecture,
)
from service.jobs.resolve.splits import holdout_images_of, train_images_of, val_images_of
from service.jobs.spec import MaskedSpec
from service.supernets.info import SupernetInfo
from service.teachers.info import TeacherInfo

_TIMM_SIZES = {"tiny": (192, 12, 3), "small": (384, 12, 6), "base": (768, 12, 12), "large": (1024, 24, 16)}
"""Width, blocks and heads of a Vision Transformer by the word in its name (Touvron et al. 2021, table 1)."""

_HUGE = (1280, 32, 16)

_FLOAT_BYTES = 4


def forecast_search(
    resolved: Resolved, dataset: DatasetInfo, warm: SupernetInfo | None, registered: TeacherInfo | None
) -> tuple[dict[str, Work], Footprint]:
    """Work by stage, and what is held and left, of a search of architectures."""
    spec, space = resolved.spec, resolved.space
    facts = SearchFacts(
        spec=spec,
        space=space,
        teacher=_teacher(resolved, warm, registered),
        num_classes=resolved.num_classes,
        train=train_images_of(spec.dataset, dataset),
        val=val_images_of(spec.dataset, dataset),
        holdout=holdout_images_of(spec.dataset, dataset),
        feasible=resolved.feasible().count,
        adopted=() if warm is None else ("teacher", "supernet"),
    )
    return search_work(facts), _search_footprint(facts, dataset)


def forecast_widths(resolved: ResolvedSlimmable, dataset: DatasetInfo) -> tuple[dict[str, Work], Footprint]:
    """The same of a search over widths; one that continues a supernet trains like any other."""
    spec, net = resolved.spec, resolved.net
    trains_teacher = spec.teacher is not None and spec.teacher.train is not None
    teacher = replace(net.largest, num_classes=len(dataset.classes), distilled=False) if trains_teacher else None
    facts = WidthFacts(
        spec=spec,
        net=net,
        measured=measured_widths(net, shared=spec.method != "separate"),
        teacher=teacher,
        train=train_images_of(spec.dataset, dataset),
        val=val_images_of(spec.dataset, dataset),
        holdout=holdout_images_of(spec.dataset, dataset),
    )
    return width_work(facts), _width_footprint(facts, dataset)


def _teacher(resolved: Resolved, warm: SupernetInfo | None, registered: TeacherInfo | None) -> Architecture:
    """As it looks at the student's images."""
    spec, space = resolved.spec.teacher, resolved.space
    if warm is not None:
        known = Architecture.from_json(warm.outputs["teacher"]["architecture"])
    elif registered is not None:
        known = registered.network
    elif spec.pretrain is not None:
        known = teacher_architecture(spec.pretrain, space)
    else:
        known = _by_name(spec.timm or "", space)
    return on_students_grid(known, space)


def _by_name(name: str, space: Space) -> Architecture:
    """What a timm name lets expect; what it really is, only timm knows, which is not loaded here."""
    width, depth, heads = next((size for word, size in _TIMM_SIZES.items() if word in name), _HUGE)
    return Architecture(
        embed_dim=width,
        depth=depth,
        num_heads=(heads,) * depth,
        mlp_ratio=(4.0,) * depth,
        head_dim=width // heads,
        img_size=space.img_size,
        patch_size=space.patch_size,
        in_chans=3,
        num_classes=0,
        pool=Pool(space.pool),
        norm_eps=space.norm_eps,
    )


def _search_footprint(facts: SearchFacts, dataset: DatasetInfo) -> Footprint:
    spec, space, largest = facts.spec, facts.space, facts.space.largest()
    trainings: list[TrainingSize] = []
    if spec.teacher.pretrain is not None and "teacher" not in facts.adopted:
        trainings.append(_masked_size("teacher", spec.teacher.pretrain, facts.teacher, facts.train))
    if "supernet" not in facts.adopted:
        size = _masked_size("supernet", spec.supernet, largest, facts.train)
        trainings.append(replace(size, frozen=params(facts.teacher)))
    deployed = largest.with_classes(facts.num_classes)
    if facts.num_classes:
        batch = min(spec.retrain.batch_size or 1, facts.train)
        trainings.append(
            TrainingSize(
                stage="retrain",
                weights=params(deployed),
                activations=activations(deployed, deployed.num_patches + 1, batch),
                batch=float(batch) * largest.in_chans * largest.img_size**2,
            )
        )
    visible = ceil(largest.num_patches * (1 - (spec.search.evaluation.mask_ratio or 0.0)))
    measured = min(facts.val, spec.search.evaluation.images) * spec.search.evaluation.mask_seeds
    exported = spec.retrain.top_k if facts.num_classes else 1
    return Footprint(
        trainings=tuple(trainings),
        other_bytes=file_bytes([largest, facts.teacher])
        + _FLOAT_BYTES * float(measured * (2 * visible * visible + visible * facts.teacher.embed_dim)),
        images_bytes=pixel_bytes(dataset.images, space.in_chans, space.img_size),
        left_bytes=file_bytes([facts.teacher, largest, *[deployed] * exported]),
    )


def _masked_size(stage: str, spec: MaskedSpec, arch: Architecture, train: int) -> TrainingSize:
    batch = min(spec.batch_size or 1, train)
    visible = arch.num_patches * (1 - (spec.mask_ratio or 0.0)) + 1
    floats = activations(arch, visible, batch)
    weights = params(arch)
    if spec.decoder is not None:
        width, depth = spec.decoder.embed_dim, spec.decoder.depth
        floats += float(batch) * arch.num_patches * depth * 16 * width
        weights += depth * 12 * width * width
    return TrainingSize(
        stage=stage,
        weights=weights,
        activations=floats,
        batch=float(batch) * arch.in_chans * arch.img_size**2,
    )


def _width_footprint(facts: WidthFacts, dataset: DatasetInfo) -> Footprint:
    spec, largest = facts.spec, facts.net.largest
    stages: Collection[str] = ["separate" if spec.method == "separate" else "supernet"]
    if facts.teacher is not None:
        stages = ["teacher", *stages]
    batch = min(spec.training.batch_size or 1, facts.train)
    size = TrainingSize(
        stage="",
        weights=params(largest),
        activations=activations(largest, largest.num_patches + largest.num_prefix, batch),
        batch=float(batch) * largest.in_chans * largest.img_size**2,
    )
    frozen = params(largest) if spec.teacher is not None else 0
    trainings = tuple(replace(size, stage=stage, frozen=0 if stage == "teacher" else frozen) for stage in stages)
    kept = [largest] * (spec.export.top_k + 1 + (facts.teacher is not None))
    if spec.method == "separate":
        kept += [facts.net.architecture(head_dim) for head_dim in facts.net.head_dims]
    return Footprint(
        trainings=trainings,
        images_bytes=pixel_bytes(dataset.images, largest.in_chans, largest.img_size),
        left_bytes=file_bytes(kept),
    )
