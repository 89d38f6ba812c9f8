"""The result of a job that delivers networks: one JSON document, the files, and what training gave."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from models.export import ARCHITECTURE_FILE, MODEL_FILE, WEIGHTS_FILE
from workers.protocol import SEARCH_ARTIFACT, Accuracy, ArtifactRef, Result
from workers.stages.context import Json
from workers.stages.delivery_context import DeliveryContext
from workers.stages.export import EXPORT_FILES, exported_latency, exported_name
from workers.stages.finalists import Finalist, search_finalists
from workers.stages.search_context import SearchContext
from workers.stages.search_ledger import SEARCH_FILE
from workers.stages.supernet import DECODER_FILE, PROJECTOR_FILE, SUPERNET_FILE
from workers.stages.teacher import TEACHER_FILE

KINDS = {WEIGHTS_FILE: "weights", ARCHITECTURE_FILE: "architecture", MODEL_FILE: "loader"}
MEDIA_TYPES = {
    WEIGHTS_FILE: "application/octet-stream",
    ARCHITECTURE_FILE: "application/json",
    MODEL_FILE: "text/x-python",
    SEARCH_FILE: "application/x-ndjson",
}


def search_result(ctx: SearchContext) -> Result:
    """Collect what the stages of a search of architectures have left."""
    search, report = ctx.outputs["search"], ctx.outputs["report"]
    adapters = [(PROJECTOR_FILE, "projector"), (DECODER_FILE, "decoder")]
    further: Json = {name: search[name] for name in ("evaluations", "scores", "generations", "baseline")}
    further |= {name: report[name] for name in ("rank_correlation", "rank_correlation_retrained", "honesty")}
    return delivered(
        ctx,
        search_finalists(ctx),
        further,
        shared=[(TEACHER_FILE, "teacher"), (SUPERNET_FILE, "supernet"), *adapters, (SEARCH_FILE, SEARCH_ARTIFACT)],
        digests={name: ctx.outputs[name]["digest"] for name in ("teacher", "supernet")},
    )


def delivered(
    ctx: DeliveryContext,
    networks: Sequence[Finalist],
    further: Json,
    *,
    shared: Iterable[tuple[str, str]],
    digests: Mapping[str, str | None],
) -> Result:
    """The result of a job that delivers networks.

    Args:
        ctx: after the report.
        networks: the winner first.
        further: what the method adds to the document.
        shared: names and kinds of files that belong to no single network; those that are not there are left out.
        digests: of weights by what they are of.
    """
    search, measured = ctx.outputs["search"], ctx.outputs["report"]["holdout"]
    holdout = measured["accuracy"] if measured else None
    proofs = ctx.outputs["export"]["proofs"]
    stop_reason = "budget" if ctx.budget_reached else search["stop_reason"]
    document = {
        "best": _best(ctx, networks[0], holdout),
        "pareto_size": len(search["front"]),
        "stop_reason": stop_reason,
        "holdout": measured,
        "parity": {
            "max_abs_diff": max(proof["max_abs_diff"] for proof in proofs),
            "max_scaled_diff": max(proof["max_scaled_diff"] for proof in proofs),
            "tolerance": proofs[0]["tolerance"],
            "images": proofs[0]["images"],
            "networks": len(proofs),
        },
        "images": ctx.outputs["data"]["images"],
        "digests": dict(digests),
        "timings": {stage: round(seconds, 3) for stage, seconds in ctx.timings.items()},
    }
    return Result(
        result={**document, **further},
        stop_reason=stop_reason,
        artifacts=[*_exported(ctx, networks), *_shared(ctx, shared)],
        accuracies=[
            Accuracy(
                candidate_n=network.n,
                rank=rank,
                accuracy={"val": network.val, "holdout": holdout if rank == 0 else None},
                **_measured(ctx, network.n),
            )
            for rank, network in enumerate(networks)
        ],
    )


def _best(ctx: DeliveryContext, winner: Finalist, holdout: float | None) -> Json:
    latency = exported_latency(ctx, winner.n)
    return {
        **({"latency_ms": latency["latency_ms"]} if latency else {}),
        "candidate_n": winner.n,
        "genotype": list(winner.architecture.genotype),
        "costs": ctx.costs(winner.architecture),
        "score": winner.score,
        "accuracy": {"val": winner.val, "holdout": holdout},
    }


def _measured(ctx: DeliveryContext, n: int) -> Json:
    """What the measurement of an exported network changes in its candidate."""
    latency = exported_latency(ctx, n)
    if latency is None:
        return {}
    costs = {"latency_measured_ms": latency["latency_ms"]["measured"]}
    return {"costs": costs, "feasible": latency["feasible"]}


def _exported(ctx: DeliveryContext, networks: Sequence[Finalist]) -> list[ArtifactRef]:
    """Files of each finalist."""
    return [
        _artifact(ctx, exported_name(network.n, file), file, KINDS[file], MEDIA_TYPES[file], network.n)
        for network in networks
        for file in EXPORT_FILES
    ]


def _shared(ctx: DeliveryContext, files: Iterable[tuple[str, str]]) -> list[ArtifactRef]:
    """What belongs to the whole job: weights, and the search itself."""
    return [
        _artifact(ctx, name, name, kind, MEDIA_TYPES.get(name, MEDIA_TYPES[WEIGHTS_FILE]), None)
        for name, kind in files
        if ctx.file(name) is not None
    ]


def _artifact(
    ctx: DeliveryContext, kept_as: str, name: str, kind: str, media_type: str, candidate_n: int | None
) -> ArtifactRef:
    written = ctx.file(kept_as)
    assert written is not None, f"the stages keep {kept_as}"
    reference = ctx.reference(name, written)
    return ArtifactRef(**reference.model_dump(), kind=kind, media_type=media_type, candidate_n=candidate_n)
