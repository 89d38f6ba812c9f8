"""Fill in what a search body left open, and refuse what cannot work, before any device time is spent.

The defaults follow the published recipes where those say something, and otherwise the size of the dataset and of the
networks.  Everything that was chosen is written into the returned spec.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from models.architecture import Architecture, ArchitectureError, FieldProblem, Pool, count_visible
from search import presets
from search.constraints import Constraint, ConstraintProblem, ReachableRange, check_constraints, reachable_range
from search.errors import SpaceError
from search.metrics import Metric
from search.space import Space
from service.datasets.info import DatasetInfo
from service.errors import ConstraintUnsatisfiable, ErrorItem, ValidationFailed, shortened
from service.jobs.spec import (
    ConstraintSpec,
    DecoderSpec,
    MaskedSpec,
    OptimSpec,
    PretrainSpec,
    RetrainSpec,
    SearchSpec,
    SpaceOverrides,
    SpaceSpec,
    TeacherArchitecture,
)

_Optim = TypeVar("_Optim", bound=OptimSpec)
_Masked = TypeVar("_Masked", bound=MaskedSpec)

MIN_VISIBLE = 4
"""With fewer visible patches a row of the relation matrix has too few entries to tell students apart."""

POSITION_PARTS = 4
"""The decoder's fixed positions are a sine and a cosine for each of two axes."""

GOOD_VISIBLE = 8
"""The default mask ratio leaves at least this many visible patches, if the grid has twice as many."""

SMALL_EMBED_DIM = 128
"""Supernets up to this width take the recipe for small networks, which stand a higher rate and smaller batches."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """A spec without open fields, the space it names, and what the user should know."""

    spec: SearchSpec
    space: Space
    num_classes: int  # of the deployed networks; 0 when nothing is retrained
    reachable: tuple[ReachableRange, ...]  # of every metric, for networks of this space
    warnings: tuple[ErrorItem, ...]


def resolve_search(spec: SearchSpec, dataset: DatasetInfo) -> Resolved:
    """Fill every open field of a search.

    Raises:
        ValidationFailed: fields that contradict the dataset, the space or each other.
        ConstraintUnsatisfiable: limits that no network of the space meets; carries the reachable ranges.
    """
    retrain = _resolve_retrain(spec, dataset)
    space = _resolve_space(spec.space, dataset)
    num_classes = len(dataset.classes) if retrain.mode != "none" else 0
    warnings: list[ErrorItem] = []
    train_images = _train_images(spec, dataset)
    largest = space.largest()
    supernet = _resolve_masked(spec.supernet, largest, train_images, "/supernet", warnings)
    pretrain = _resolve_pretrain(spec.teacher.pretrain, largest, train_images, supernet.mask_ratio, warnings)
    _check_teacher(pretrain, space)
    retrain = _fill_optim(retrain, _RETRAIN, largest, train_images, "/retrain", warnings)
    reachable = tuple(reachable_range(space, metric, num_classes) for metric in Metric)
    warnings += _check_limits(spec.constraints, space, num_classes, reachable)
    filled = spec.model_copy(
        update={
            "name": spec.name or f"{spec.method} on {dataset.name}",
            "dataset": spec.dataset.model_copy(update={"id": dataset.reference}),
            "teacher": spec.teacher.model_copy(update={"pretrain": pretrain}),
            "space": _space_spec(space),
            "supernet": supernet,
            "retrain": retrain,
        }
    )
    # model_copy does not validate: read the result back as any client would, so that a stored spec is a valid body.
    return Resolved(
        spec=SearchSpec.model_validate(filled.model_dump(mode="json")),
        space=space,
        num_classes=num_classes,
        reachable=reachable,
        warnings=tuple(warnings),
    )


@dataclass(frozen=True, slots=True)
class _Recipe:
    """Defaults of one training stage for small (toy to CIFAR size) and for ordinary networks."""

    small_epochs: int
    small_lr: float
    epochs: int
    lr_per_256: float  # absolute rate at a batch of 256, scaled linearly with the batch


# Ordinary networks: the masked recipe is MAE's rate (1.5e-4 per 256) with the 100 epochs that MaskTAS trains;
# fine-tuning is MaskTAS's 5e-3 at a batch of 2048, i.e. 6.25e-4 per 256. Small networks: measured on 8-pixel digits.
_MASKED = _Recipe(small_epochs=100, small_lr=2e-3, epochs=100, lr_per_256=1.5e-4)
_RETRAIN = _Recipe(small_epochs=60, small_lr=2e-3, epochs=100, lr_per_256=6.25e-4)

_MAX_BATCH = 1024
_SMALL_BATCH = 64


def _resolve_retrain(spec: SearchSpec, dataset: DatasetInfo) -> RetrainSpec:
    labelled = dataset.labelled and spec.dataset.labels == "auto"
    mode = spec.retrain.mode or ("finetune" if labelled else "none")
    if mode != "none" and not labelled:
        reason = "has no labels" if not dataset.labelled else "is used without its labels (dataset.labels: ignored)"
        raise ValidationFailed(
            f"Dataset {dataset.name!r} {reason}, and retraining with mode {mode!r} needs them.",
            errors=[ErrorItem("/retrain/mode", "labels_missing", f"mode {mode!r} needs labels", ["none"])],
        )
    return spec.retrain.model_copy(update={"mode": mode})


def _resolve_space(asked: SpaceSpec, dataset: DatasetInfo) -> Space:
    overrides = asked.overrides.model_dump(exclude_none=True) if asked.overrides else {}
    preset = asked.preset
    if preset is None:
        preset = presets.default_preset(asked.img_size or dataset.min_side).value
    img_size = asked.img_size or _image_side(preset, dataset.min_side)
    try:
        return presets.resolve(
            preset, img_size=img_size, in_chans=asked.in_chans or dataset.channels, overrides=overrides
        )
    except SpaceError as error:
        raise ValidationFailed.of(field_errors("/space", error.problems)) from error


def _image_side(preset: str, min_side: int) -> int | None:
    """The input side when the user names none: the preset's own, or the images' for spaces with a fixed grid."""
    known = next((p for p in presets.PRESETS.values() if p.name == preset), None)
    if known is None or known.grid_size is None:
        return None  # an unknown name is refused by presets.resolve
    side = min(min_side, presets.MICRO_MAX_IMG_SIZE)
    return max(known.grid_size * 2, side - side % known.grid_size)


def _space_spec(space: Space) -> SpaceSpec:
    return SpaceSpec(
        preset=space.name,
        img_size=space.img_size,
        in_chans=1 if space.in_chans == 1 else 3,
        overrides=SpaceOverrides(
            embed_dim=list(space.embed_dim),
            depth=list(space.depth),
            num_heads=list(space.num_heads),
            mlp_ratio=list(space.mlp_ratio),
            head_dim=space.head_dim,
            patch_size=space.patch_size,
        ),
    )


def _train_images(spec: SearchSpec, dataset: DatasetInfo) -> int:
    """Images that are left to train on; the split itself is ``workers.data.split``, which knows each label."""
    divisible = dataset.images - dataset.test_images - dataset.val_images
    holdout = 0 if dataset.test_images else max(1, round(spec.dataset.holdout_fraction * divisible))
    val = 0 if dataset.val_images else max(1, round(spec.dataset.val_fraction * divisible))
    count = divisible - holdout - val
    if count < 2:
        raise ValidationFailed(
            f"Dataset {dataset.name!r} has {dataset.images} images; after the split {count} are left to train on.",
            errors=[ErrorItem("/dataset", "too_few_images", f"{count} training images are left", "at least 2")],
        )
    return count


def _resolve_masked(
    asked: _Masked, largest: Architecture, train_images: int, pointer: str, warnings: list[ErrorItem]
) -> _Masked:
    ratio = asked.mask_ratio
    if ratio is None:
        ratio = 0.75 if count_visible(largest.num_patches, 0.75) >= GOOD_VISIBLE else 0.5
    _check_mask(ratio, largest.num_patches, f"{pointer}/mask_ratio")
    if asked.norm_targets and largest.patch_dim == 1:
        detail = "a patch of one grey pixel has no spread to be normalised by"
        items = [ErrorItem(f"{pointer}/norm_targets", "nothing_to_normalise", detail, [False])]
        raise ValidationFailed.of(items)
    small = largest.embed_dim <= SMALL_EMBED_DIM
    decoder = _resolve_decoder(asked.decoder, small, f"{pointer}/decoder")
    filled = asked.model_copy(update={"mask_ratio": ratio, "decoder": decoder})
    return _fill_optim(filled, _MASKED, largest, train_images, pointer, warnings)


def _check_mask(ratio: float, patches: int, pointer: str) -> None:
    """Refuse ratios that leave too little to see, for the relations, or nothing to reconstruct."""
    visible = count_visible(patches, ratio)
    if visible < MIN_VISIBLE:
        raise ValidationFailed(
            f"mask_ratio {ratio:g} leaves {visible} of {patches} patches visible.",
            errors=[
                ErrorItem(
                    pointer,
                    "too_few_visible_patches",
                    f"at least {MIN_VISIBLE} patches must stay visible",
                    {"max": max(0.0, 1 - MIN_VISIBLE / patches)},
                )
            ],
        )
    if visible == patches:
        raise ValidationFailed(
            f"mask_ratio {ratio:g} hides none of {patches} patches.",
            errors=[ErrorItem(pointer, "nothing_masked", "at least one patch must be hidden", {"min": 1 / patches})],
        )


def _resolve_decoder(asked: DecoderSpec | None, small: bool, pointer: str) -> DecoderSpec:
    decoder = asked or DecoderSpec(embed_dim=64 if small else 256, depth=1 if small else 2, num_heads=4 if small else 8)
    width, heads = decoder.embed_dim, decoder.num_heads
    if width % POSITION_PARTS:
        allowed = f"a multiple of {POSITION_PARTS}"
        raise ValidationFailed(
            f"The decoder's embed_dim {width} is not {allowed}.",
            errors=[
                ErrorItem(
                    f"{pointer}/embed_dim",
                    "not_a_multiple",
                    f"found {width}; positions are sines and cosines along two axes",
                    allowed,
                )
            ],
        )
    if width % heads:
        raise ValidationFailed(
            f"The decoder's embed_dim {width} is not a multiple of its {heads} heads.",
            errors=[
                ErrorItem(
                    f"{pointer}/num_heads", "not_a_divisor", f"{heads} does not divide {width}", f"a divisor of {width}"
                )
            ],
        )
    return decoder


def _resolve_pretrain(
    asked: PretrainSpec, largest: Architecture, train_images: int, mask_ratio: float | None, warnings: list[ErrorItem]
) -> PretrainSpec:
    """A teacher as wide and deep as the largest subnet unless the user says otherwise.

    The student's mask ratio is the teacher's default: the student asks it for features of just such partial images.
    """
    if asked.mask_ratio is None:
        asked = asked.model_copy(update={"mask_ratio": mask_ratio})
    size = asked.architecture or TeacherArchitecture(
        embed_dim=largest.embed_dim,
        depth=largest.depth,
        num_heads=max(1, largest.embed_dim // largest.head_dim),
        head_dim=largest.head_dim,
        mlp_ratio=4.0,
    )
    filled = _resolve_masked(asked, largest, train_images, "/teacher/pretrain", warnings)
    return filled.model_copy(update={"architecture": size})


def _check_teacher(filled: PretrainSpec, space: Space) -> None:
    try:
        teacher_architecture(filled, space)
    except ArchitectureError as error:
        items = _teacher_items(error.problems)
        raise ValidationFailed.of(items) from error


def _teacher_items(problems: Iterable[FieldProblem]) -> list[ErrorItem]:
    # All blocks of a teacher are alike, so what is wrong with a list is wrong with the one number that fills it.
    once = {problem.pointer.split("/")[1]: problem for problem in problems}
    return field_errors(
        "/teacher/pretrain/architecture",
        [FieldProblem(f"/{field}", problem.found, problem.allowed) for field, problem in once.items()],
    )


def _fill_optim(
    asked: _Optim, recipe: _Recipe, largest: Architecture, train_images: int, pointer: str, warnings: list[ErrorItem]
) -> _Optim:
    small = largest.embed_dim <= SMALL_EMBED_DIM
    batch = asked.batch_size or min(_SMALL_BATCH if small else _MAX_BATCH, train_images)
    if batch > train_images:
        warnings.append(
            ErrorItem(
                f"{pointer}/batch_size",
                "batch_reduced",
                f"batch_size {batch} exceeds the {train_images} training images and was reduced to that number",
            )
        )
        batch = train_images
    lr = asked.lr or (recipe.small_lr if small else recipe.lr_per_256 * batch / 256)
    epochs = asked.epochs or (recipe.small_epochs if small else recipe.epochs)
    return asked.model_copy(update={"batch_size": batch, "lr": lr, "epochs": epochs})


def _check_limits(
    asked: Sequence[ConstraintSpec], space: Space, num_classes: int, reachable: Sequence[ReachableRange]
) -> list[ErrorItem]:
    """Refuse limits that no network meets; the returned warnings name those without effect."""
    problems = check_constraints(space, constraints_of(asked), num_classes)
    errors = [problem for problem in problems if problem.is_error]
    if errors:
        raise ConstraintUnsatisfiable(
            " ".join(f"{problem.detail}." for problem in errors),
            errors=[item for problem in errors for item in _limit_items(problem)],
            extra={"reachable": [reach.to_json() for reach in reachable]},
        )
    return [item for problem in problems for item in _limit_items(problem)]


def _limit_items(problem: ConstraintProblem) -> list[ErrorItem]:
    allowed = [reach.to_json() for reach in problem.reachable]
    return [
        ErrorItem(f"/constraints{pointer}", problem.kind.value, problem.detail, allowed) for pointer in problem.pointers
    ]


def teacher_architecture(spec: PretrainSpec, space: Space) -> Architecture:
    """The architecture of a teacher that is pretrained for this space, without a head.

    The pretraining spec must be filled (see :func:`resolve_search`).
    """
    size = spec.architecture
    assert size is not None, "resolve_search fills the teacher's size"
    return Architecture(
        embed_dim=size.embed_dim,
        depth=size.depth,
        num_heads=(size.num_heads,) * size.depth,
        mlp_ratio=(size.mlp_ratio,) * size.depth,
        head_dim=size.head_dim,
        img_size=space.img_size,
        patch_size=space.patch_size,
        in_chans=space.in_chans,
        num_classes=0,
        pool=Pool(space.pool),
        norm_eps=space.norm_eps,
    )


def space_of(spec: SearchSpec) -> Space:
    """The space that a filled spec names."""
    asked = spec.space
    overrides = asked.overrides.model_dump(exclude_none=True) if asked.overrides else {}
    assert asked.preset is not None, "resolve_search fills preset and channels"
    assert asked.in_chans is not None, "resolve_search fills preset and channels"
    return presets.resolve(asked.preset, img_size=asked.img_size, in_chans=asked.in_chans, overrides=overrides)


def constraints_of(asked: Sequence[ConstraintSpec]) -> tuple[Constraint, ...]:
    """The limits of a spec as the search reads them."""
    return tuple(Constraint(metric=Metric(c.metric.value), min=c.min, max=c.max) for c in asked)


def field_errors(base: str, problems: Iterable[FieldProblem]) -> list[ErrorItem]:
    """Problems of a record as error items below ``base``."""
    return [
        ErrorItem(
            f"{base}{p.pointer}",
            "invalid_value",
            f"found {shortened(repr(p.found))}, allowed is {p.allowed}",
            p.allowed,
        )
        for p in problems
    ]
