"""Writes the files that leave the service, and proves from these files that they are the trained networks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import asdict
from pathlib import Path
from typing import Generic, TypeVar

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
from search.constraints import violation
from search.cost import params
from search.metrics import costs_of, counts_of
from service.errors import ExportParityFailed
from workers.stages.context import Json
from workers.stages.delivery_context import DeliveryContext
from workers.stages.finalists import Finalist
from workers.training.files import WrittenFile
from workers.versions import recorded_versions

EXPORT_FILES = (WEIGHTS_FILE, ARCHITECTURE_FILE, MODEL_FILE)

Ctx = TypeVar("Ctx", bound=DeliveryContext)

_PARITY_IMAGES = 64
_POLL_S = 0.2


def export_folder(ctx: DeliveryContext, n: int) -> Path:
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


def write_finalist(
    ctx: DeliveryContext, finalist: Finalist, holdout: float | None = None, latency: Json | None = None
) -> Path:
    """Write the folder of a finalist; a known holdout accuracy and latency go into its description."""
    folder = export_folder(ctx, finalist.n)
    arch = finalist.architecture
    record = ExportRecord(
        architecture=arch,
        classes=ctx.classes if arch.num_classes else (),
        preprocessing=ctx.dataset.train.preprocessing,
        costs=costs_of(arch),
        latency=latency,
        scores=finalist.scores,
        accuracy=Accuracy(val=finalist.val, holdout=holdout),
        provenance=Provenance(
            job=ctx.start.job_id,
            seed=ctx.seed,
            supernet_digest=ctx.outputs.get("supernet", {}).get("digest"),
            dataset_digest=ctx.start.dataset["digest"],
            versions=recorded_versions(),
            retraining=finalist.recipe,
        ),
    )
    for file in write_export(folder, finalist.load().state, record):
        ctx.keep(WrittenFile(folder / file.name, file.sha256, file.size_bytes), exported_name(finalist.n, file.name))
    return folder


def exported_latency(ctx: DeliveryContext, n: int) -> Json | None:
    """What the export stage has measured of a finalist; None where latency does not count, or before that stage."""
    measured = ctx.outputs.get(ExportStage.name, {}).get("latency", [])
    return next((entry for entry in measured if entry["n"] == n), None)


class ExportStage(Generic[Ctx]):
    """Writes every finalist and loads each again in a process of its own, which knows nothing of this project.

    Args:
        finalists: the networks of a job, the winner first.
        measure: what the exported networks take, by number, architecture and folder; see
            ``workers.stages.worker_latency.measure_exports``.
    """

    name = "export"

    def __init__(
        self,
        finalists: Callable[[Ctx], list[Finalist]],
        measure: Callable[[Ctx, Sequence[tuple[int, Architecture, Path]]], list[Json]] = lambda ctx, folders: [],
    ) -> None:
        self._finalists = finalists
        self._measure = measure

    def run(self, ctx: Ctx) -> Json:
        """Returns one proof for each finalist, and its latency where that counts.

        Raises:
            ExportParityFailed: files that do not load, answer otherwise, or hold another number of parameters.
            NoFeasibleCandidate: none is within a limit on latency when measured from its files.
        """
        networks = self._finalists(ctx)
        images = next(ctx.dataset.val.first(_PARITY_IMAGES).batches(_PARITY_IMAGES))
        tasks: list[Callable[[], Parity]] = []
        folders: list[tuple[int, Architecture, Path]] = []
        for finalist in networks:
            folder = write_finalist(ctx, finalist)
            folders.append((finalist.n, finalist.architecture, folder))
            expected = finalist.load().answer(images)
            tasks.append(lambda folder=folder, expected=expected: verify_export(folder, images, expected))  # type: ignore[misc]
            ctx.poll_to_finish()
        proofs = [_judged(ctx, finalist, proof) for finalist, proof in zip(networks, _prove(ctx, tasks), strict=True)]
        latency = self._measure(ctx, folders)
        for finalist, entry in zip(networks, latency, strict=bool(latency)):
            write_finalist(ctx, finalist, latency=entry["latency_ms"])
        return {"proofs": proofs, "latency": latency}


def _prove(ctx: DeliveryContext, tasks: Sequence[Callable[[], Parity]]) -> list[Parity]:
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


def _judged(ctx: DeliveryContext, finalist: Finalist, parity: Parity) -> Json:
    expected = params(finalist.architecture)
    if parity.params != expected:
        raise ExportParityFailed(
            f"The exported file of candidate {finalist.n} has {parity.params} parameters, expected {expected}."
        )
    is_deployed = finalist.architecture.num_classes == len(ctx.classes)
    if is_deployed and violation(ctx.constraints, counts_of(finalist.architecture, ctx.table)) > 0:
        raise ExportParityFailed(f"The exported network of candidate {finalist.n} breaks the job's limits.")
    return {"n": finalist.n, **asdict(parity)}
