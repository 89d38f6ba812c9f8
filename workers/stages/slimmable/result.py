"""The result of a search over widths."""

from __future__ import annotations

from workers.protocol import Result
from workers.stages.result import delivered
from workers.stages.slimmable.context import SlimmableContext
from workers.stages.slimmable.search import WidthStage, width_finalists
from workers.stages.slimmable.separate import SeparateStage
from workers.stages.slimmable.supernet import SlimmableStage
from workers.stages.slimmable.weights import width_file
from workers.stages.supernet import SUPERNET_FILE
from workers.stages.teacher import TEACHER_FILE, TeacherStage


def width_result(ctx: SlimmableContext) -> Result:
    """Collect what the stages have left."""
    search = ctx.outputs[WidthStage.name]
    further = {name: search[name] for name in ("evaluations", "scores", "widths")}
    shared = [(TEACHER_FILE, "teacher"), (SUPERNET_FILE, "supernet")]
    digests = {"teacher": ctx.outputs[TeacherStage.name]["digest"]}
    if ctx.is_shared:
        digests["supernet"] = ctx.outputs[SlimmableStage.name]["digest"]
    else:
        networks = ctx.outputs[SeparateStage.name]["networks"]
        shared += [(width_file(network["head_dim"]), "width") for network in networks]
        digests |= {f"width-{network['head_dim']}": network["digest"] for network in networks}
    return delivered(ctx, width_finalists(ctx), further, shared=shared, digests=digests)
