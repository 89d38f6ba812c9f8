"""Weights that a slimmable network starts from, other than random ones."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from models.foreign.layout import VitLayout
from models.slimmable import SlimmableError
from models.slimmable_start import slimmable_start
from models.supernet import Supernet
from service.errors import ErrorItem, SupernetUnavailable, TeacherInvalid, TeacherUnavailable
from service.jobs.spec import TeacherSource
from workers.protocol import INIT_INPUT
from workers.stages.slimmable.context import SlimmableContext
from workers.stages.supernet import SUPERNET_FILE
from workers.teachers.acquire import acquire
from workers.training.files import TensorFileError, load_parameters, read_tensors
from workers.training.streams import torch_stream


def load_start(ctx: SlimmableContext, supernet: Supernet) -> None:
    """Overwrite fresh weights by those that the spec names, if any.

    Raises:
        TeacherInvalid: weights of a network that has no slimmable form, or of another size than the spec says.
        TeacherUnavailable, SupernetUnavailable: they cannot be had now.
    """
    if ctx.spec.warm_start is not None:
        load_parameters(dict(supernet.named_parameters()), _read(ctx, SUPERNET_FILE, SupernetUnavailable))
    elif ctx.spec.init is not None:
        load_parameters(dict(supernet.named_parameters()), _published(ctx))


def _published(ctx: SlimmableContext) -> Mapping[str, Tensor]:
    """Weights of a plain Vision Transformer as those of the whole network."""
    init = ctx.spec.init
    assert init is not None, "the caller has looked"
    if init.timm is not None:
        found = acquire(TeacherSource(timm=init.timm), None)
        name, layout, tensors = found.name, found.layout, {**found.state, **found.head}
    else:
        known = ctx.start.init
        name, tensors = known["name"], _read(ctx, INIT_INPUT, TeacherUnavailable)
        layout = VitLayout.from_json(known["architecture"], known["info"].get("layout") or {})
    try:
        return slimmable_start(layout, tensors, ctx.net.largest, torch_stream(ctx.seed, "supernet", "init", "start"))
    except SlimmableError as error:
        items = [ErrorItem("/init", "not_slimmable", str(problem)) for problem in error.problems]
        detail = f"{name} cannot be where this network starts from: {error}."
        raise TeacherInvalid(detail, errors=items) from error


def _read(
    ctx: SlimmableContext, name: str, unavailable: type[SupernetUnavailable | TeacherUnavailable]
) -> dict[str, Tensor]:
    [path] = [Path(ref.path) for ref in ctx.start.inputs if ref.name == name]
    try:
        return read_tensors(path)[0]
    except TensorFileError as error:
        path.unlink(missing_ok=True)  # the next attempt fetches it anew
        raise unavailable("The weights to start from are damaged on this host; retry the job.") from error
