"""The second stage of masked pretraining: the supernet that learns from the teacher."""

from __future__ import annotations

from dataclasses import replace

from models.architecture import Architecture
from models.distill import (
    DistillConfig,
    FeatureLoss,
    FeatureProjector,
    Layer,
    Positions,
    ProjectorKind,
    TargetNorm,
)
from models.masked import MaskedDecoder
from models.supernet import Supernet
from search.constraints import feasible_set
from service.jobs.resolve import window_of
from service.jobs.spec import SupernetSpec
from workers.protocol import Resource
from workers.stages.context import Json
from workers.stages.masked import decoder_config, masked_settings, pretrain
from workers.stages.search_context import SearchContext
from workers.stages.teacher import TEACHER_DECODER_FILE, TeacherStage, load_teacher, load_teacher_decoder
from workers.training.files import load_parameters, read_tensors, write_tensors
from workers.training.masked import MaskedDistillation, MaskedSettings
from workers.training.streams import torch_stream
from workers.training.subnets import Sampling, SubnetPlan

SUPERNET_FILE = "supernet.safetensors"
PROJECTOR_FILE = "projector.safetensors"
"""The map from visible student tokens to the teacher's; there is one when distillation trains it."""

_TEACHER_SHARES = {"pixels": 0.0, "teacher": 1.0}  # of what is reconstructed; `both` names its own


DECODER_FILE = "decoder.safetensors"
"""Reconstructs pixels, by which candidates can be measured; there is none without reconstruction."""


def load_supernet(ctx: SearchContext) -> Supernet:
    """The job's supernet, from the file that its stage wrote."""
    supernet = Supernet(ctx.space.largest(), torch_stream(ctx.seed, "supernet", "init", "supernet"))
    tensors, _ = read_tensors(ctx.path(SUPERNET_FILE))
    load_parameters(dict(supernet.named_parameters()), tensors)
    return supernet.to(ctx.compute.device).eval()


def load_projector(ctx: SearchContext) -> FeatureProjector | None:
    """The job's projector; None when its supernet learned without a teacher."""
    if ctx.file(PROJECTOR_FILE) is None:
        return None
    teacher = Architecture.from_json(ctx.outputs[TeacherStage.name]["architecture"])
    generator = torch_stream(ctx.seed, SupernetStage.name, "init", "projector")
    kind = distill_config(ctx.spec.supernet).projector
    projector = FeatureProjector(ctx.space.largest().embed_dim, teacher.embed_dim, generator, kind)
    tensors, _ = read_tensors(ctx.path(PROJECTOR_FILE))
    load_parameters(dict(projector.named_parameters()), tensors)
    return projector.to(ctx.compute.device)


def load_decoder(ctx: SearchContext) -> MaskedDecoder | None:
    """The job's decoder; None when its supernet learned without reconstruction."""
    if ctx.file(DECODER_FILE) is None:
        return None
    generator = torch_stream(ctx.seed, SupernetStage.name, "init", "decoder")
    decoder = MaskedDecoder(ctx.space.largest(), decoder_config(ctx.spec.supernet), generator)
    tensors, _ = read_tensors(ctx.path(DECODER_FILE))
    load_parameters(dict(decoder.named_parameters()), tensors)
    return decoder.to(ctx.compute.device).eval()


class SupernetStage:
    """Trains the shared weights of the space by masked reconstruction and distillation from the teacher."""

    name = "supernet"

    def run(self, ctx: SearchContext) -> Json:
        """Returns the supernet's digest and last losses."""
        spec = ctx.spec.supernet
        teacher = load_teacher(ctx) if spec.distillation or spec.recon_target != "pixels" else None
        objective = MaskedDistillation(_settings(ctx), teacher, ctx.compute, teacher_decoder=load_teacher_decoder(ctx))
        metrics = pretrain(ctx, objective, spec, self.name)
        header = {"architecture": ctx.space.largest().to_json()}
        written = write_tensors(ctx.path(SUPERNET_FILE), objective.supernet.state_dict(), header)
        ctx.keep(written)
        if objective.projector is not None:
            ctx.keep(write_tensors(ctx.path(PROJECTOR_FILE), objective.projector.state_dict(), {}))
        if objective.decoder is not None and spec.reconstruction:
            ctx.keep(write_tensors(ctx.path(DECODER_FILE), objective.decoder.state_dict(), {}))
        ctx.drop(TEACHER_DECODER_FILE)
        outputs: Json = {"digest": written.sha256, "metrics": metrics}
        info = {
            "method": ctx.spec.method,
            "space": ctx.space.to_json(),
            "dataset": ctx.start.dataset["digest"],
            "metrics": metrics,
            "trained_for": _trained_for(ctx),
            # What another search needs to take this supernet over (service.supernets.info).
            "files": ctx.digests,
            "outputs": {TeacherStage.name: ctx.outputs[TeacherStage.name], self.name: outputs},
            "spec": ctx.spec.model_dump(mode="json", include={"dataset", "teacher", "supernet"}),
        }
        name = f"{ctx.space.name} on {ctx.start.dataset['name']}"
        ctx.announce(Resource(kind="supernet", name=name, file=SUPERNET_FILE, info=info))
        return outputs


def distill_config(spec: SupernetSpec) -> DistillConfig:
    """What of the teacher is learnt, from a filled spec."""
    distill = spec.distill
    assert distill.loss is not None, "filled by service.jobs.resolve"
    assert distill.projector is not None, "filled by service.jobs.resolve"
    assert distill.target_norm is not None, "filled by service.jobs.resolve"
    return DistillConfig(
        positions=Positions(distill.positions),
        layer=Layer(distill.layer),
        loss=FeatureLoss(distill.loss),
        projector=ProjectorKind(distill.projector),
        target_norm=TargetNorm(distill.target_norm),
    )


def _settings(ctx: SearchContext) -> MaskedSettings:
    spec = ctx.spec.supernet
    common = masked_settings(ctx, spec, ctx.space, SupernetStage.name)
    distill = distill_config(spec) if spec.distillation else None
    return replace(
        common,
        subnets=_plan(ctx),
        decoder=common.decoder if spec.reconstruction or (distill is not None and distill.hidden) else None,
        reconstruction=spec.reconstruction,
        teacher_share=_TEACHER_SHARES.get(spec.recon_target, spec.recon_teacher_share),
        beta=spec.beta,
        distill=distill,
    )


def _plan(ctx: SearchContext) -> SubnetPlan:
    spec = ctx.spec.supernet
    assert spec.students is not None, "filled by service.jobs.resolve"
    assert spec.sampling is not None, "filled by service.jobs.resolve"
    sampling = Sampling.WIDTHS if ctx.spec.widths is not None else Sampling(spec.sampling)
    window = None
    if sampling is Sampling.WINDOW:
        window = feasible_set(ctx.space, ctx.constraints, len(ctx.classes), ctx.table)
    return SubnetPlan(sampling=sampling, students=spec.students, window=window, extremes=spec.window_extremes)


def _trained_for(ctx: SearchContext) -> Json:
    """Which networks the shared weights were trained as; others of the space may be worse than they could be."""
    trained: Json = {"sampling": ctx.spec.supernet.sampling}
    if trained["sampling"] == Sampling.WINDOW:
        trained["constraints"] = window_of(ctx.spec.constraints)
        trained["num_classes"] = len(ctx.classes)
    if ctx.spec.widths is not None:
        trained["widths"] = list(ctx.space.embed_dim)
    return trained
