"""The supernet's objective: what is distilled, what is reconstructed, and which networks a step trains."""

from __future__ import annotations

from collections.abc import Iterator

from models.architecture import count_visible
from search.space import Space
from service.errors import ErrorItem, ValidationFailed
from service.jobs.resolve.masked import MIN_VISIBLE
from service.jobs.spec import DistillSpec, PretrainSpec, SearchSpec, SupernetSpec

_SANDWICH_STUDENTS = 3  # the largest, the smallest and a random one
_RELATION = "relation"


def resolve_objective(asked: SupernetSpec, *, slimmable: bool) -> SupernetSpec:
    """Fill the options of distillation and sampling; ``slimmable`` networks are trained at several widths."""
    sampling = asked.sampling or ("sandwich" if slimmable else "uniform")
    students = asked.students or (_SANDWICH_STUDENTS if sampling == "sandwich" else 1)
    update = {"distill": _resolve_distill(asked.distill, slimmable), "sampling": sampling, "students": students}
    return asked.model_copy(update=update)


def _resolve_distill(asked: DistillSpec, slimmable: bool) -> DistillSpec:
    loss = asked.loss or (_RELATION if slimmable else "smooth_l1")
    bare = loss == _RELATION
    projector = asked.projector or ("none" if bare else "linear")
    target_norm = asked.target_norm or ("none" if bare else "layernorm")
    return asked.model_copy(update={"loss": loss, "projector": projector, "target_norm": target_norm})


def check_objective(filled: SupernetSpec, space: Space, pretrain: PretrainSpec | None, asked: SearchSpec) -> None:
    """Refuse options that contradict each other.

    Args:
        filled: the supernet's part, without open fields.
        space: of the search.
        pretrain: the filled pretraining of the teacher; None for one that exists already.
        asked: the whole body.

    Raises:
        ValidationFailed: naming every field at fault.
    """
    items = [*_sampling_items(filled, bool(asked.constraints)), *_reconstruction_items(filled, pretrain)]
    if filled.distillation:
        items += [*_distill_items(filled.distill), *_patch_items(filled, space)]
    if asked.widths is not None:
        items += _width_items(filled)
    if items:
        raise ValidationFailed.of(items)


def _width_items(filled: SupernetSpec) -> Iterator[ErrorItem]:
    if filled.sampling != "sandwich":
        detail = "with widths each step trains the largest, the smallest and some between"
        yield ErrorItem("/supernet/sampling", "not_with_widths", detail, ["sandwich"])
    if filled.distillation and filled.distill.loss != _RELATION:
        detail = "networks of several widths learn relations from each other, which have one size at all widths"
        yield ErrorItem("/supernet/distill/loss", "not_with_widths", detail, [_RELATION])


def _sampling_items(filled: SupernetSpec, limited: bool) -> Iterator[ErrorItem]:
    assert filled.students is not None, "filled by resolve_objective"
    if filled.sampling == "sandwich" and filled.students < 2:
        detail = "sandwich trains the largest and the smallest network in each step, found 1 student"
        yield ErrorItem("/supernet/students", "too_few_students", detail, {"min": 2})
    if filled.sampling == "window" and not limited:
        detail = "the window is that of the constraints, and there are none"
        yield ErrorItem("/supernet/sampling", "no_window", detail, ["uniform", "sandwich"])


def _reconstruction_items(filled: SupernetSpec, pretrain: PretrainSpec | None) -> Iterator[ErrorItem]:
    if filled.recon_target == "pixels":
        return
    if not filled.reconstruction:
        detail = f"recon_target is {filled.recon_target}, and reconstruction is off"
        yield ErrorItem("/supernet/recon_target", "reconstruction_off", detail, ["pixels"])
    elif pretrain is None:
        detail = f"recon_target is {filled.recon_target}, and only a teacher that this search pretrains has a decoder"
        yield ErrorItem("/supernet/recon_target", "no_teacher_decoder", detail, ["pixels"])
    elif filled.norm_targets != pretrain.norm_targets:
        scale = str(pretrain.norm_targets).lower()
        detail = f"the teacher predicts pixels with norm_targets {scale}, which the supernet is to repeat"
        yield ErrorItem("/supernet/norm_targets", "targets_differ", detail, [pretrain.norm_targets])


def _distill_items(distill: DistillSpec) -> Iterator[ErrorItem]:
    bare = distill.loss == _RELATION
    if bare and distill.projector != "none":
        detail = "relations of bare tokens have the same size at every width, so nothing is projected"
        yield ErrorItem("/supernet/distill/projector", "not_needed", detail, ["none"])
    if bare and distill.target_norm != "none":
        detail = "relations are cosines of bare tokens, which are not normalised otherwise"
        yield ErrorItem("/supernet/distill/target_norm", "not_needed", detail, ["none"])
    if not bare and distill.projector == "none":
        detail = f"loss {distill.loss} compares tokens of two widths channel by channel"
        yield ErrorItem("/supernet/distill/projector", "needed", detail, ["linear", "mlp1", "mlp2"])


def _patch_items(filled: SupernetSpec, space: Space) -> Iterator[ErrorItem]:
    distill, patches = filled.distill, space.largest().num_patches
    if distill.layer == "three_quarter" and distill.positions == "visible" and not filled.reconstruction:
        detail = "without reconstruction nothing would train the blocks behind three quarters of the depth"
        yield ErrorItem("/supernet/distill/layer", "untrained_blocks", detail, ["last"])
    hidden = patches - count_visible(patches, filled.mask_ratio or 0.0)
    if distill.loss == _RELATION and distill.positions != "visible" and hidden < MIN_VISIBLE:
        detail = f"{hidden} of {patches} patches are hidden, relations need at least {MIN_VISIBLE}"
        yield ErrorItem("/supernet/mask_ratio", "too_few_hidden_patches", detail, {"min": MIN_VISIBLE / patches})
