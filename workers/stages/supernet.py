"""The second stage of masked pretraining: the supernet that learns from the teacher."""

from __future__ import annotations

from models.architecture import Architecture
from models.distill import FeatureProjector
from models.masked import MaskedDecoder
from models.supernet import Supernet
from workers.protocol import Resource
from workers.stages.context import Json
from workers.stages.masked import decoder_config, masked_objective, pretrain
from workers.stages.search_context import SearchContext
from workers.stages.teacher import TeacherStage, load_teacher
from workers.training.files import load_parameters, read_tensors, write_tensors
from workers.training.streams import torch_stream

SUPERNET_FILE = "supernet.safetensors"
PROJECTOR_FILE = "projector.safetensors"
"""The map from student tokens to the teacher's, which distillation trains; there is none without it."""


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
    projector = FeatureProjector(ctx.space.largest().embed_dim, teacher.embed_dim, generator)
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
        teacher = load_teacher(ctx) if spec.distillation else None
        objective = masked_objective(
            ctx, spec, ctx.space, self.name, teacher=teacher, beta=spec.beta, reconstruction=spec.reconstruction
        )
        metrics = pretrain(ctx, objective, spec, self.name)
        header = {"architecture": ctx.space.largest().to_json()}
        written = write_tensors(ctx.path(SUPERNET_FILE), objective.supernet.state_dict(), header)
        ctx.keep(written)
        if objective.projector is not None:
            ctx.keep(write_tensors(ctx.path(PROJECTOR_FILE), objective.projector.state_dict(), {}))
        if objective.decoder is not None:
            ctx.keep(write_tensors(ctx.path(DECODER_FILE), objective.decoder.state_dict(), {}))
        outputs: Json = {"digest": written.sha256, "metrics": metrics}
        info = {
            "method": ctx.spec.method,
            "space": ctx.space.to_json(),
            "dataset": ctx.start.dataset["digest"],
            "metrics": metrics,
            # What another search needs to take this supernet over (service.supernets.info).
            "files": ctx.digests,
            "outputs": {TeacherStage.name: ctx.outputs[TeacherStage.name], self.name: outputs},
            "spec": ctx.spec.model_dump(mode="json", include={"teacher", "supernet"}),
        }
        name = f"{ctx.space.name} on {ctx.start.dataset['name']}"
        ctx.announce(Resource(kind="supernet", name=name, file=SUPERNET_FILE, info=info))
        return outputs
