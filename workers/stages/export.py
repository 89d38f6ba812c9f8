"""Writes the files that leave the service, and proves from these files that they are the trained networks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor

from models.architecture import Architecture
from models.export import (
    ARCHITECTURE_FILE,
    MODEL_FILE,
    WEIGHTS_FILE,
    ExportLoadError,
    Parity,
    ParityError,
    verify_export,
    write_export,
)
from models.export_record import Accuracy, ExportRecord, Provenance
from models.extract import build_timm, extract_state
from search.constraints import violation
from search.cost import cost
from service.errors import ExportParityFailed
from workers.stages.context import Json
from workers.stages.retrain import load_retrained
from workers.stages.search_context import SearchContext
from workers.stages.supernet import SUPERNET_FILE
from workers.training.files import WrittenFile, read_tensors
from workers.versions import recorded_versions

EXPORT_FILES = (WEIGHTS_FILE, ARCHITECTURE_FILE, MODEL_FILE)

_PARITY_IMAGES = 64
_POLL_S = 0.2


@dataclass(frozen=True, slots=True)
class Finalist:
    """A network that leaves the service.

    Attributes:
        n: of the candidate.
        architecture: as exported; without a head when it was not retrained.
        score: label-free score of the search.
        scores: it, and all other measures, by name.
        val: validation accuracy, None when it was not retrained.
    """

    n: int
    architecture: Architecture
    score: float
    scores: dict[str, float]
    val: float | None


def finalists(ctx: SearchContext) -> list[Finalist]:
    """The retrained networks, the winner first: by validation accuracy, then by score.

    Without retrained ones it is the best-scored candidate, as a backbone without a head.
    """
    best = {entry["n"]: entry for entry in ctx.outputs["search"]["best"]}
    retrained = sorted(ctx.outputs["retrain"]["networks"], key=lambda net: (-net["val"], -net["score"], net["n"]))
    if not retrained:
        return [_finalist(ctx, ctx.outputs["search"]["best"][0], None)]
    return [_finalist(ctx, best[net["n"]], net["val"]) for net in retrained]


def _finalist(ctx: SearchContext, entry: Json, val: float | None) -> Finalist:
    return Finalist(
        n=entry["n"],
        architecture=ctx.space.decode(entry["genotype"], 0 if val is None else len(ctx.classes)),
        score=entry["score"],
        scores={name: value for name, value in entry["scores"].items() if value is not None},
        val=val,
    )


def export_folder(ctx: SearchContext, n: int) -> Path:
    """The folder of an export; when a checkpoint brought its files, they are put back into it."""
    folder = ctx.path(f"export-{n}")
    folder.mkdir(exist_ok=True)
    for file in EXPORT_FILES:
        brought, kept = ctx.path(exported_name(n, file)), ctx.file(exported_name(n, file))
        if kept is not None and brought.exists():
            brought.replace(folder / file)
            ctx.keep(WrittenFile(folder / file, kept.sha256, kept.size_bytes), brought.name)
    return folder


def exported_name(n: int, file: str) -> str:
    """Name of an exported file among those of a checkpoint."""
    return f"{n}.{file}"


def write_finalist(ctx: SearchContext, finalist: Finalist, holdout: float | None = None) -> Path:
    """Write the folder of a finalist; a known holdout accuracy goes into its description."""
    folder = export_folder(ctx, finalist.n)
    arch = finalist.architecture
    deployed = cost(arch)
    record = ExportRecord(
        architecture=arch,
        classes=ctx.classes if arch.num_classes else (),
        preprocessing=ctx.dataset.train.preprocessing,
        costs={"params_m": deployed.params_m, "gmacs": deployed.gmacs},
        scores=finalist.scores,
        accuracy=Accuracy(val=finalist.val, holdout=holdout),
        provenance=Provenance(
            job=ctx.start.job_id,
            seed=ctx.seed,
            supernet_digest=ctx.outputs["supernet"]["digest"],
            dataset_digest=ctx.start.dataset["digest"],
            versions=recorded_versions(),
            retraining=None if finalist.val is None else ctx.spec.retrain.model_dump(mode="json"),
        ),
    )
    for file in write_export(folder, trained_network(ctx, finalist).state_dict(), record):
        ctx.keep(WrittenFile(folder / file.name, file.sha256, file.size_bytes), exported_name(finalist.n, file.name))
    return folder


def trained_network(ctx: SearchContext, finalist: Finalist) -> VisionTransformer:
    """The network of a finalist as it was trained, on the CPU."""
    if finalist.val is not None:
        return load_retrained(ctx, finalist.n, finalist.architecture)
    network = build_timm(finalist.architecture)
    tensors, _ = read_tensors(ctx.path(SUPERNET_FILE))
    network.load_state_dict(extract_state(tensors, ctx.space.largest(), finalist.architecture))
    return network.eval()


class ExportStage:
    """Writes every finalist and loads each again in a process of its own, which knows nothing of this project."""

    name = "export"

    def run(self, ctx: SearchContext) -> Json:
        """Returns one proof for each finalist.

        Raises:
            ExportParityFailed: files that do not load, answer otherwise, or hold another number of parameters.
        """
        networks = finalists(ctx)
        images = next(ctx.dataset.val.first(_PARITY_IMAGES).batches(_PARITY_IMAGES))
        tasks: list[Callable[[], Parity]] = []
        for finalist in networks:
            folder = write_finalist(ctx, finalist)
            expected = _logits(trained_network(ctx, finalist), images)
            tasks.append(lambda folder=folder, expected=expected: verify_export(folder, images, expected))  # type: ignore[misc]
            ctx.poll_to_finish()
        proofs = [_judged(ctx, finalist, proof) for finalist, proof in zip(networks, _prove(ctx, tasks), strict=True)]
        return {"proofs": proofs}


@torch.inference_mode()
def _logits(network: VisionTransformer, images: Tensor) -> Tensor:
    logits: Tensor = network(images)
    return logits


def _prove(ctx: SearchContext, tasks: Sequence[Callable[[], Parity]]) -> list[Parity]:
    """Run the proofs side by side; they are other processes that mostly import libraries."""
    pool = ThreadPoolExecutor(max_workers=ctx.start.threads)
    try:
        futures: list[Future[Parity]] = [pool.submit(task) for task in tasks]
        while pending := wait(futures, timeout=_POLL_S).not_done:
            ctx.progress(1 - len(pending) / len(futures))
            ctx.poll_to_finish()
        return [future.result() for future in futures]
    except (ExportLoadError, ParityError) as error:
        raise ExportParityFailed(f"The exported files are not the trained network: {error}") from error
    finally:
        # A proof that is under way ends with the trainer's process group; nobody waits for it.
        pool.shutdown(wait=False, cancel_futures=True)


def _judged(ctx: SearchContext, finalist: Finalist, parity: Parity) -> Json:
    expected = cost(finalist.architecture)
    if parity.params != expected.params:
        raise ExportParityFailed(
            f"The exported file of candidate {finalist.n} has {parity.params} parameters, expected {expected.params}."
        )
    is_deployed = finalist.architecture.num_classes == len(ctx.classes)
    if is_deployed and violation(ctx.constraints, expected) > 0:
        raise ExportParityFailed(f"The exported network of candidate {finalist.n} breaks the job's limits.")
    return {"n": finalist.n, **asdict(parity)}
