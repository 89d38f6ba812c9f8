"""The result of a search: one JSON document, the files, and what retraining gave."""

from __future__ import annotations

from models.export import ARCHITECTURE_FILE, MODEL_FILE, WEIGHTS_FILE
from workers.protocol import Accuracy, ArtifactRef, Result
from workers.stages.context import Json
from workers.stages.export import EXPORT_FILES, Finalist, exported_name, finalists
from workers.stages.search_context import SearchContext
from workers.stages.supernet import DECODER_FILE, PROJECTOR_FILE, SUPERNET_FILE
from workers.stages.teacher import TEACHER_FILE

_KINDS = {WEIGHTS_FILE: "weights", ARCHITECTURE_FILE: "architecture", MODEL_FILE: "loader"}
_MEDIA_TYPES = {
    WEIGHTS_FILE: "application/octet-stream",
    ARCHITECTURE_FILE: "application/json",
    MODEL_FILE: "text/x-python",
}


def search_result(ctx: SearchContext) -> Result:
    """Collect what the stages have left."""
    search, report = ctx.outputs["search"], ctx.outputs["report"]
    networks = finalists(ctx)
    holdout = report["holdout"]["accuracy"] if report["holdout"] else None
    proofs = ctx.outputs["export"]["proofs"]
    stop_reason = "budget" if ctx.budget_reached else search["stop_reason"]
    return Result(
        result={
            "best": _best(ctx, networks[0], holdout),
            "pareto_size": len(search["front"]),
            "stop_reason": stop_reason,
            "evaluations": search["evaluations"],
            "scores": search["scores"],
            "holdout": report["holdout"],
            "baseline": search["baseline"],
            "rank_correlation": report["rank_correlation"],
            "rank_correlation_retrained": report["rank_correlation_retrained"],
            "parity": {
                "max_abs_diff": max(proof["max_abs_diff"] for proof in proofs),
                "max_scaled_diff": max(proof["max_scaled_diff"] for proof in proofs),
                "tolerance": proofs[0]["tolerance"],
                "images": proofs[0]["images"],
                "networks": len(proofs),
            },
            "images": ctx.outputs["data"]["images"],
            "digests": {name: ctx.outputs[name]["digest"] for name in ("teacher", "supernet")},
            "timings": {stage: round(seconds, 3) for stage, seconds in ctx.timings.items()},
        },
        stop_reason=stop_reason,
        artifacts=_artifacts(ctx, networks),
        accuracies=[
            Accuracy(
                candidate_n=network.n,
                rank=rank,
                accuracy={"val": network.val, "holdout": holdout if rank == 0 else None},
            )
            for rank, network in enumerate(networks)
        ],
    )


def _best(ctx: SearchContext, winner: Finalist, holdout: float | None) -> Json:
    return {
        "candidate_n": winner.n,
        "genotype": list(winner.architecture.genotype),
        "costs": ctx.costs(winner.architecture),
        "score": winner.score,
        "accuracy": {"val": winner.val, "holdout": holdout},
    }


def _artifacts(ctx: SearchContext, networks: list[Finalist]) -> list[ArtifactRef]:
    """Files of each finalist, and the weights that the whole search shares."""
    artifacts = [
        _artifact(ctx, exported_name(network.n, file), file, _KINDS[file], _MEDIA_TYPES[file], network.n)
        for network in networks
        for file in EXPORT_FILES
    ]
    shared = [(TEACHER_FILE, "teacher"), (SUPERNET_FILE, "supernet")]
    adapters = [(PROJECTOR_FILE, "projector"), (DECODER_FILE, "decoder")]
    shared += [(name, kind) for name, kind in adapters if ctx.file(name) is not None]
    for name, kind in shared:
        artifacts.append(_artifact(ctx, name, name, kind, _MEDIA_TYPES[WEIGHTS_FILE], None))
    return artifacts


def _artifact(
    ctx: SearchContext, kept_as: str, name: str, kind: str, media_type: str, candidate_n: int | None
) -> ArtifactRef:
    written = ctx.file(kept_as)
    assert written is not None, f"the stages keep {kept_as}"
    reference = ctx.reference(name, written)
    return ArtifactRef(**reference.model_dump(), kind=kind, media_type=media_type, candidate_n=candidate_n)
