"""A search over the widths of a slimmable network: its network, grid, slicing, teacher and training."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from models.architecture import Architecture, ArchitectureError
from models.slicing import QkvSlicing
from models.slimmable import AttentionScale, IsolatedActivation, Slimmable, SlimmableError, grid
from search.constraints import ReachableRange
from search.metrics import FORMULA_METRICS
from search.width_limits import WidthCosts
from service.datasets.info import DatasetInfo
from service.errors import ErrorItem, ValidationFailed
from service.jobs.resolve.latency import measured_alone
from service.jobs.resolve.networks import (
    FixedNetwork,
    fixed_by_init,
    network_errors,
    network_of,
    resolve_network,
)
from service.jobs.resolve.spaces import constraints_of, field_errors, refuse_limits
from service.jobs.resolve.splits import train_images_of
from service.jobs.resolve.warm_start import split_items
from service.jobs.resolve.width_teachers import resolve_width_teacher
from service.jobs.resolve.width_training import resolve_training
from service.jobs.spec import EVERY, SlicingSpec, SlimmableSpec, WidthGridSpec
from service.supernets.info import SupernetInfo
from service.teachers.info import TeacherInfo

_SMALLEST = 4
"""The default grid begins at a quarter of the width (Zhang et al. 2024, section 4.1)."""

_STEPS = (16, 8, 4)
"""Denominators of the default steps, the finest first."""


@dataclass(frozen=True, slots=True)
class ResolvedSlimmable:
    """A spec without open fields, what it trains, and what the user should know.

    Attributes:
        spec: filled; a valid body.
        net: what is trained, with the head that widths are deployed with.
        served: widths of a head that are measured and offered: all whole numbers of the net, or those trained alone.
        within: those of them that meet all limits.
        reachable: cost of the smallest and the largest of ``served``, by metric.
        warnings: for the user.
    """

    spec: SlimmableSpec
    net: Slimmable
    served: tuple[int, ...]
    within: tuple[int, ...]
    reachable: tuple[ReachableRange, ...]
    warnings: tuple[ErrorItem, ...]

    @property
    def num_classes(self) -> int:
        """Of the deployed networks; 0 of those that learn features without labels."""
        return self.net.largest.num_classes


def resolve_slimmable(
    spec: SlimmableSpec,
    dataset: DatasetInfo,
    warm: SupernetInfo | None = None,
    registered: TeacherInfo | None = None,
    init: TeacherInfo | None = None,
) -> ResolvedSlimmable:
    """Fill every open field of a search over widths.

    Args:
        spec: as it was asked for.
        dataset: that it names.
        warm: the supernet of its ``warm_start``.
        registered: the teacher of its ``teacher.id``.
        init: the teacher of its ``init.teacher``.

    Raises:
        ValidationFailed: fields that contradict the dataset, the method or each other.
        ConstraintUnsatisfiable: limits that no width meets; carries the reachable ranges.
    """
    warnings: list[ErrorItem] = []
    spec = measured_alone(spec, "no table prices heads of several widths")
    _check_labels(spec, dataset)
    _check_start(spec)
    train_images = train_images_of(spec.dataset, dataset)
    trained = _trained(spec, warm, dataset)
    network = resolve_network(spec.network, dataset, _fixed(spec, trained, warm, init))
    largest = network_of(network)
    slicing = _resolve_slicing(spec, trained, warm)
    widths = _resolve_grid(spec.widths, largest)
    net = _net(largest, widths, slicing)
    _check_smallest(net)
    teacher = resolve_width_teacher(spec, registered, largest, dataset.classes, train_images, warnings)
    filled = spec.model_copy(update={"network": network, "widths": widths, "slicing": slicing, "teacher": teacher})
    training = resolve_training(filled, net, train_images, warnings)
    num_classes = 0 if training.cross_entropy is False else len(dataset.classes)
    net = replace(net, largest=largest.with_classes(num_classes))
    if trained is not None and warm is not None:
        _check_head(net, trained, warm, dataset)
        warnings += _moved_smallest(net, trained, warm)
    served = net.head_dims if spec.method == "separate" else tuple(net.served)
    costs = WidthCosts(net, served)
    limits = constraints_of(spec.constraints)
    reachable = tuple(costs.reachable(metric) for metric in FORMULA_METRICS)
    warnings += refuse_limits(costs.check(limits), reachable)
    filled = filled.model_copy(
        update={
            "name": spec.name or f"{spec.method} on {dataset.name}",
            "dataset": spec.dataset.model_copy(update={"id": dataset.reference}),
            "training": training,
        }
    )
    return ResolvedSlimmable(
        # model_copy does not validate: read the result back as any client would.
        spec=SlimmableSpec.model_validate(filled.model_dump(mode="json")),
        net=net,
        served=served,
        within=costs.within(limits),
        reachable=reachable,
        warnings=tuple(warnings),
    )


def slimmable_of(spec: SlimmableSpec, num_classes: int = 0) -> Slimmable:
    """The slimmable network that a filled spec names.

    Args:
        spec: see :func:`resolve_slimmable`.
        num_classes: of its head; 0: without one.
    """
    return _net(network_of(spec.network, num_classes), spec.widths, spec.slicing)


def _net(largest: Architecture, widths: WidthGridSpec, slicing: SlicingSpec) -> Slimmable:
    assert widths.smallest is not None, "resolve_slimmable fills the grid"
    assert widths.step is not None, "resolve_slimmable fills the grid"
    step = None if widths.step == EVERY else widths.step
    assert not isinstance(step, str), "the only other spelling is a number"
    assert slicing.qkv is not None, "resolve_slimmable fills the slicing"
    assert slicing.isolated_activation is not None, "resolve_slimmable fills the slicing"
    assert slicing.attention_scale is not None, "resolve_slimmable fills the slicing"
    return Slimmable(
        largest=largest,
        head_dims=grid(largest.head_dim, widths.smallest, step),
        qkv=QkvSlicing(slicing.qkv),
        isolated=IsolatedActivation(slicing.isolated_activation),
        attention_scale=AttentionScale(slicing.attention_scale),
    )


def _check_labels(spec: SlimmableSpec, dataset: DatasetInfo) -> None:
    if dataset.labelled and spec.dataset.labels == "auto":
        return
    detail = f"method {spec.method} measures each width by its accuracy, and dataset {dataset.name!r} has no labels"
    if dataset.labelled:
        detail = f"method {spec.method} measures each width by its accuracy; use the labels of {dataset.name!r}"
        raise ValidationFailed.of([ErrorItem("/dataset/labels", "labels_missing", detail, ["auto"])])
    raise ValidationFailed.of([ErrorItem("/dataset", "labels_missing", detail, "a dataset with labels")])


def _check_start(spec: SlimmableSpec) -> None:
    """Refuse two beginnings, and those of networks that are trained alone."""
    items = []
    if spec.init is not None and spec.warm_start is not None:
        detail = "training starts from one set of weights; give init or warm_start"
        items = [ErrorItem(f"/{field}", "two_starts", detail, [None]) for field in ("init", "warm_start")]
    elif spec.method == "separate":
        detail = "method separate trains each width alone and from scratch; leave it out"
        given = [field for field in ("init", "warm_start") if getattr(spec, field) is not None]
        items = [ErrorItem(f"/{field}", "not_with_method", detail, [None]) for field in given]
    if items:
        raise ValidationFailed.of(items)


def _trained(spec: SlimmableSpec, warm: SupernetInfo | None, dataset: DatasetInfo) -> Slimmable | None:
    """The slimmable network that is continued."""
    if warm is None:
        return None
    if warm.method != spec.method:
        detail = f"supernet {warm.reference} was trained by method {warm.method}, not {spec.method}"
        raise ValidationFailed.of([ErrorItem("/warm_start/supernet", "other_method", detail, [warm.method])])
    if items := split_items(spec, warm, dataset):
        raise ValidationFailed.of(items)
    return Slimmable.from_json(warm.space)


def _fixed(
    spec: SlimmableSpec, trained: Slimmable | None, warm: SupernetInfo | None, init: TeacherInfo | None
) -> FixedNetwork | None:
    if trained is not None and warm is not None:
        return FixedNetwork.whole(trained.largest, f"supernet {warm.reference}", "/warm_start/supernet")
    return fixed_by_init(spec.init, init) if spec.init is not None else None


def _resolve_slicing(spec: SlimmableSpec, trained: Slimmable | None, warm: SupernetInfo | None) -> SlicingSpec:
    asked = spec.slicing
    qkv = asked.qkv or "head_aligned"
    published = spec.method == "scala" and qkv == "contiguous"
    filled = SlicingSpec(
        qkv=qkv,
        isolated_activation=asked.isolated_activation or ("paper" if published else "off"),
        attention_scale=asked.attention_scale or "per_width",
    )
    fixed, whose = None, ""
    if trained is not None and warm is not None:
        fixed, whose = _slicing_of(trained), f"supernet {warm.reference} was trained with"
    elif spec.method == "separate":
        # Nothing is cut; the defaults are what a network of its own has.
        fixed = SlicingSpec(qkv="head_aligned", isolated_activation="off", attention_scale="per_width")
        whose = "method separate cuts nothing, which is"
    if fixed is None:
        return filled
    wrong = [name for name in SlicingSpec.model_fields if getattr(asked, name) not in (None, getattr(fixed, name))]
    if wrong:
        raise ValidationFailed.of(
            [
                ErrorItem(
                    f"/slicing/{name}",
                    "fixed_slicing",
                    f"found {getattr(asked, name)}, while {whose} {getattr(fixed, name)}; leave it out",
                    [getattr(fixed, name)],
                )
                for name in wrong
            ]
        )
    return fixed


def _slicing_of(net: Slimmable) -> SlicingSpec:
    fields = {"qkv": net.qkv, "isolated_activation": net.isolated, "attention_scale": net.attention_scale}
    return SlicingSpec.model_validate({name: value.value for name, value in fields.items()})


def _resolve_grid(asked: WidthGridSpec, largest: Architecture) -> WidthGridSpec:
    """Fill the grid.

    Raises:
        ValidationFailed: shares that give no whole channels of a head, or steps that miss the whole network.
    """
    head = largest.head_dim
    if head == 1:
        detail = "heads of one channel have no narrower form; give wider or fewer heads"
        allowed = "embed_dim of at least 2 * num_heads"
        items = [ErrorItem(f"/network/{field}", "no_widths", detail, allowed) for field in ("embed_dim", "num_heads")]
        raise ValidationFailed.of(items)
    smallest = -(-head // _SMALLEST) / head if asked.smallest is None else asked.smallest
    try:
        least = grid(head, smallest, None)[0]
        step = _usual_step(head, least) if asked.step is None else asked.step
        grid(head, smallest, None if isinstance(step, str) else step)
    except SlimmableError as error:
        raise ValidationFailed.of(field_errors("/widths", error.problems)) from error
    return asked.model_copy(update={"smallest": smallest, "step": step})


def _usual_step(head: int, least: int) -> float | Literal["every"]:
    fitting = [1 / n for n in _STEPS if head % n == 0 and (head - least) % (head // n) == 0]
    return fitting[0] if fitting else EVERY


def _check_smallest(net: Slimmable) -> None:
    """Refuse a grid whose smallest width cannot be built, though the whole network can."""
    try:
        net.architecture(net.smallest)
    except ArchitectureError as error:
        raise ValidationFailed.of(network_errors(error.problems)) from error


def _check_head(net: Slimmable, trained: Slimmable, warm: SupernetInfo, dataset: DatasetInfo) -> None:
    """Refuse to continue a head on other classes, or a network without a head with one, and the other way round."""
    before, now = trained.largest.num_classes, net.largest.num_classes
    if bool(before) != bool(now):
        what = "has a head and learnt labels" if before else "has no head and learnt features"
        detail = f"supernet {warm.reference} {what}; continue it likewise"
        raise ValidationFailed.of([ErrorItem("/training/cross_entropy", "other_head", detail, [bool(before)])])
    known = list(warm.classes)
    if before == now and (not now or not known or list(dataset.classes) == known):
        return
    detail = (
        f"supernet {warm.reference} tells {before} classes apart, and this job {now}; continue it on the same classes, "
        "in the same order"
    )
    raise ValidationFailed.of([ErrorItem("/warm_start/supernet", "other_classes", detail, known or before)])


def _moved_smallest(net: Slimmable, trained: Slimmable, warm: SupernetInfo) -> list[ErrorItem]:
    if net.isolated is IsolatedActivation.OFF or net.smallest == trained.smallest:
        return []
    detail = (
        f"with isolated activation the smallest width has channels of its own, and that of supernet {warm.reference} "
        f"was {trained.ratio(trained.smallest):g}: another one starts from channels that were trained for other widths"
    )
    return [ErrorItem("/widths/smallest", "smallest_moved", detail, trained.ratio(trained.smallest))]
