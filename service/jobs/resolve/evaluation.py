"""How candidates are measured: which measures there are, what the search follows, and what fits into memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from models.architecture import Architecture, count_visible
from search.measures import FUSED, Control, Measure
from search.plugins import PluginGroup, plugin_names
from service.errors import ErrorItem, ValidationFailed, shortened
from service.jobs.resolve.masked import check_mask
from service.jobs.spec import EvaluationSpec, SearchPart, SupernetSpec

MAX_CACHE_BYTES = 2**31
"""The teacher's side of all measures is kept in memory while a search runs; at most this much of it."""

_FLOAT_BYTES = 4
_FEWEST_IMAGES = 16  # a mean over fewer images says more about these than about the network

_CHEAP = (Measure.CONSISTENCY_BARE, Measure.FEATURE, Measure.EFFECTIVE_RANK)
"""Each costs up to 6 % of a candidate's time; the decoder of the reconstruction costs 50 to 150 %."""

_NEEDS = {
    Measure.CONSISTENCY: "distillation",
    Measure.FEATURE: "distillation",
    Measure.RECONSTRUCTION: "reconstruction",
}
"""Which part of the supernet's training leaves the weights that a measure needs."""


def available_measures(supernet: SupernetSpec) -> tuple[Measure, ...]:
    """Measures that subnets of such a supernet can have."""
    return tuple(m for m in Measure if m not in _NEEDS or _obstacle(_NEEDS[m], supernet) is None)


def _obstacle(part: str, supernet: SupernetSpec) -> tuple[str, object] | None:
    """The field that keeps the weights of a part from being trained, and what it would have to be."""
    if part == "reconstruction":
        return None if supernet.reconstruction else (part, [True])
    if not supernet.distillation:
        return part, [True]
    if not supernet.beta:
        return "beta", "above 0"
    # Both leave nothing that maps visible tokens to the teacher's.
    if supernet.distill.loss == "relation":
        return "distill/loss", ["smooth_l1", "l1", "l2"]
    if supernet.distill.positions == "masked":
        return "distill/positions", ["visible", "all"]
    return None


@dataclass(frozen=True, slots=True)
class MeasurePlan:
    """What is measured in a search.

    Attributes:
        every: of every candidate; what the metric needs, and the companions.
        judged: of the networks by which the report judges the measures.
    """

    every: tuple[Measure, ...]
    judged: tuple[Measure, ...]


def measure_plan(part: SearchPart, supernet: SupernetSpec) -> MeasurePlan:
    """What a filled spec has measured; in the order of :class:`Measure`."""
    available = available_measures(supernet)
    companions = part.evaluation.companions
    wanted = {*_followed(part), *(companions if isinstance(companions, list) else ())}
    every = available if companions is True else tuple(m for m in available if m.value in wanted)
    return MeasurePlan(every, every if companions is False else available)


def resolve_evaluation(
    asked: SearchPart,
    supernet: SupernetSpec,
    student: Architecture,
    teacher_width: int,
    val_images: int,
    warnings: list[ErrorItem],
) -> SearchPart:
    """Fill metric, fusion, companions, mask, depths and temperature.

    Args:
        asked: the search part of a spec.
        supernet: filled.
        student: any architecture of the space, for its grid.
        teacher_width: of the teacher's tokens.
        val_images: images of the validation part.
        warnings: gets what was reduced.

    Raises:
        ValidationFailed: a measure that such a supernet cannot have, racing on a figure that is no mean over images, a
            mask that leaves too little, or a teacher's side that exceeds :data:`MAX_CACHE_BYTES`.
    """
    part = _fill_metric(asked, supernet)
    _check_racing(part)
    evaluation = part.evaluation
    ratio = supernet.mask_ratio if evaluation.mask_ratio is None else evaluation.mask_ratio
    assert ratio is not None, "resolve_masked fills the supernet's"
    check_mask(ratio, student.num_patches, "/search/evaluation/mask_ratio")
    temperature = evaluation.temperature or (1.0 if evaluation.standardise else 0.1)
    # The projector was trained after one block, and only there student and teacher were brought together.
    three_quarter = supernet.distillation and supernet.distill.layer == "three_quarter"
    filled = {
        "companions": _companions(part, supernet),
        "mask_ratio": ratio,
        "depths": evaluation.depths or [0.75 if three_quarter else 1.0],
        "temperature": temperature,
    }
    part = part.model_copy(update={"evaluation": evaluation.model_copy(update=filled)})
    size = _CacheSize(count_visible(student.num_patches, ratio), teacher_width, measure_plan(part, supernet).judged)
    return _fit_into_memory(part, size, val_images, warnings)


def _fill_metric(asked: SearchPart, supernet: SupernetSpec) -> SearchPart:
    _check_metric(asked.metric)
    available = available_measures(supernet)
    usual = Measure.CONSISTENCY if Measure.CONSISTENCY in available else Measure.CONSISTENCY_BARE
    part = asked.model_copy(update={"metric": asked.metric or usual.value})
    if asked.fusion is None and (part.metric == FUSED or Measure.RECONSTRUCTION in available):
        part = part.model_copy(update={"fusion": [usual.value, Measure.RECONSTRUCTION.value]})
    named: dict[str, list[str]] = {}
    if part.metric != FUSED or asked.fusion is None:
        named["/search/metric"] = _followed(part)
    lists = {"fusion": asked.fusion, "evaluation/companions": asked.evaluation.companions}
    for field, names in lists.items():
        if isinstance(names, list):
            named |= {f"/search/{field}/{i}": [name] for i, name in enumerate(names)}
    _check_available(named, supernet)
    return part


def _check_racing(part: SearchPart) -> None:
    if part.evaluation.racing is None:
        return
    pointer, raceable = "/search/evaluation/racing", [m.value for m in Measure if m is not Measure.EFFECTIVE_RANK]
    if part.metric not in raceable:
        detail = f"metric {part.metric} is no mean over images, which racing compares image by image"
        raise ValidationFailed(detail, errors=[ErrorItem(pointer, "not_raceable", detail, {"metric": raceable})])
    for field in ("workers", "processes"):
        if (count := getattr(part.evaluation, field)) > 1:
            detail = f"racing compares after each batch, which {count} {field} do not; measure fully, or with one"
            items = [ErrorItem(pointer, "not_divisible", detail, [None])]
            items.append(ErrorItem(f"/search/evaluation/{field}", "not_divisible", detail, [1]))
            raise ValidationFailed(detail, errors=items)
    if part.algorithm != "evolution":
        detail = f"algorithm {part.algorithm} needs all scores; evolution needs those of the best only"
        raise ValidationFailed(
            detail, errors=[ErrorItem(pointer, "not_raceable", detail, {"algorithm": ["evolution"]})]
        )


def _check_metric(name: str | None) -> None:
    known = (*Measure, FUSED, *Control, *plugin_names(PluginGroup.METRICS))
    if name is not None and name not in known:
        allowed = [str(metric) for metric in known]
        detail = f"there is no metric {shortened(repr(name))}"
        raise ValidationFailed.of([ErrorItem("/search/metric", "unknown_metric", detail, allowed)])


def _companions(part: SearchPart, supernet: SupernetSpec) -> bool | list[str]:
    asked = part.evaluation.companions
    if asked is None and part.metric in set(Control):
        return []  # a control needs no network, so that companions would be all it costs
    if asked is None:
        return [m.value for m in available_measures(supernet) if m in _CHEAP and m not in _followed(part)]
    return asked if isinstance(asked, bool) else list(asked)


@dataclass(frozen=True, slots=True)
class _CacheSize:
    visible: int
    teacher_width: int
    measures: Sequence[Measure]

    def of_image(self, evaluation: EvaluationSpec) -> int:
        """Bytes that are kept for one image: relations after each depth, and features after the last block."""
        kinds = len({Measure.CONSISTENCY, Measure.CONSISTENCY_BARE} & set(self.measures))
        relations = kinds * len(evaluation.depths or ()) * self.visible * (self.visible - 1)
        features = (1 + self.visible) * self.teacher_width if Measure.FEATURE in self.measures else 0
        return evaluation.mask_seeds * (relations + features) * _FLOAT_BYTES


def _fit_into_memory(part: SearchPart, size: _CacheSize, val_images: int, warnings: list[ErrorItem]) -> SearchPart:
    evaluation = part.evaluation
    images = min(evaluation.images, val_images)
    bytes_each = size.of_image(evaluation)
    most = MAX_CACHE_BYTES // max(1, bytes_each)
    if images <= most:
        return part
    detail = (
        f"the teacher's side of {images} images takes {images * bytes_each / 2**30:.1f} GiB of memory, "
        f"allowed are {MAX_CACHE_BYTES / 2**30:g} GiB"
    )
    if most < _FEWEST_IMAGES:
        pointers = ("images", "mask_seeds", "depths", "mask_ratio", "companions")
        raise ValidationFailed(
            f"Relations of {size.visible} visible patches do not fit into memory even for {_FEWEST_IMAGES} images.",
            errors=[
                ErrorItem(f"/search/evaluation/{field}", "evaluation_too_large", detail, f"{most} images of this size")
                for field in pointers
            ],
        )
    detail += f"; {most} images are used"
    warnings.append(ErrorItem("/search/evaluation/images", "images_reduced", detail, {"max": most}))
    return part.model_copy(update={"evaluation": evaluation.model_copy(update={"images": most})})


def _followed(part: SearchPart) -> list[str]:
    """The measures that the metric is made of; none of a control."""
    if part.metric == FUSED:
        return list(part.fusion or ())
    return [part.metric] if part.metric in set(Measure) else []


def _check_available(named: dict[str, list[str]], supernet: SupernetSpec) -> None:
    """Refuse measures whose weights the supernet's training does not leave, at both fields that contradict."""
    allowed = [measure.value for measure in available_measures(supernet)]
    missing = [(pointer, name) for pointer, names in named.items() for name in names if name not in allowed]
    items: list[ErrorItem] = []
    for pointer, name in missing:
        detail = f"{name} needs what supernet.{_NEEDS[Measure(name)]} trains, which this one does not"
        items.append(ErrorItem(pointer, "measure_unavailable", detail, allowed))
    for part in dict.fromkeys(_NEEDS[Measure(name)] for _, name in missing):
        field, wanted = _obstacle(part, supernet) or (part, [True])
        names = ", ".join(dict.fromkeys(name for _, name in missing if _NEEDS[Measure(name)] == part))
        items.append(ErrorItem(f"/supernet/{field}", "measure_unavailable", f"needed for {names}", wanted))
    if items:
        raise ValidationFailed.of(items)
