"""Puts everything that an attempt starts from on local disk: the newest sound checkpoint and the dataset's blob."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import structlog
from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from service.datasets.builtin import BUILTINS
from service.datasets.info import DatasetInfo
from service.db.models import (
    Artifact,
    Checkpoint,
    Dataset,
    Device,
    DeviceNetwork,
    Job,
    JobKind,
    JobState,
    Supernet,
    Teacher,
)
from service.errors import DatasetInvalid, SearchUnavailable, SupernetUnavailable, TeacherUnavailable
from service.ids import IdKind, format_id, parse_id
from service.jobs.transitions import lock_owned
from service.jobs.values import Claim, Lost
from service.shards.board import search_of
from service.store import ArtifactStore, BlobCorrupt, BlobError
from service.supernets.info import SupernetInfo
from service.teachers.info import TeacherInfo
from workers.context import WorkerContext
from workers.lease import LeaseKeeper
from workers.protocol import (
    DATASET_INPUT,
    INIT_INPUT,
    SEARCH_ARTIFACT,
    SEARCH_INPUT,
    TEACHER_INPUT,
    BlobRef,
    Resume,
    Start,
)
from workers.recording import warn
from workers.rundirs import RunDirs

log = structlog.get_logger(__name__)
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Prepared:
    """What the trainer is told, and what it goes on from.

    Attributes:
        start: the order.
        checkpoint_n: number of the checkpoint that it goes on from; 0: from the beginning.
        fetched: digests of the checkpoint's files, which were checked.
    """

    start: Start
    checkpoint_n: int
    fetched: frozenset[str]


@dataclass(frozen=True, slots=True)
class NotNeeded:
    """The search that a helper was to help has ended, or goes on without help."""


def materialise(context: WorkerContext, claim: Claim, keeper: LeaseKeeper, run_dir: Path) -> Prepared | Lost:
    """Fetch checkpoint, dataset and what is taken over, and say what the trainer has to do.

    Raises:
        service.errors.ServiceError: something that the job cannot do without cannot be had.
    """
    checkpoint = _restore(context.store, claim, keeper, run_dir)
    if isinstance(checkpoint, Lost):
        return checkpoint
    start = _order(context, claim, keeper, run_dir)
    if isinstance(start, Lost) or checkpoint is None:
        return start if isinstance(start, Lost) else Prepared(start, 0, frozenset())
    resume = Resume(stage=checkpoint.stage, state=checkpoint.state, files=sorted(checkpoint.files))
    start = start.model_copy(update={"resume": resume})
    return Prepared(start, checkpoint.n, frozenset(checkpoint.files.values()))


def materialise_helper(
    context: WorkerContext, claim: Claim, keeper: LeaseKeeper, run_dir: Path
) -> Prepared | NotNeeded | Lost:
    """Fetch what a helper measures with: the order of the search that it helps, as of its newest checkpoint.

    Raises:
        service.errors.ServiceError: the dataset of the search cannot be had.
    """
    found = keeper.write(lambda session: _helped(session, claim))
    if isinstance(found, NotNeeded | Lost):
        return found
    search, checkpoint = found
    names = [name for name in claim.spec["files"] if name in checkpoint.files]
    try:
        for name in names:
            context.store.fetch(checkpoint.files[name], run_dir / name)
    except BlobError as error:
        # The search has these files and keeps them in its next checkpoint; nobody is to be bothered by this one.
        log.warning("helper_without_files", error=str(error))
        return NotNeeded()
    start = _order(context, search, keeper, run_dir)
    if isinstance(start, Lost):
        return start
    own = {"job_id": format_id(IdKind.JOB, claim.job_id), "fence": claim.fence, "kind": claim.kind}
    state = {"format": checkpoint.state.get("format", 1), "outputs": checkpoint.state["outputs"]}
    resume = Resume(stage="search", state=state, files=names)
    helps = {"machine": claim.spec["machine"]}
    start = start.model_copy(update={**own, "resume": resume, "helps": helps})
    return Prepared(start, 0, frozenset())


def _helped(session: Session, claim: Claim) -> tuple[Claim, Checkpoint] | NotNeeded:
    """The search that a helper works for, and the point that it starts from."""
    helped = search_of(claim.spec)
    job = session.get(Job, helped.job_id, populate_existing=True)
    if job is None or job.state != JobState.RUNNING or job.fence != helped.fence:
        return NotNeeded()
    search = replace(claim, job_id=job.id, kind=JobKind.SEARCH, spec=job.spec)
    checkpoint = _newest_checkpoint(session, search)
    if checkpoint is None or "supernet" not in checkpoint.state.get("outputs", {}):
        return NotNeeded()
    return search, checkpoint


def _order(context: WorkerContext, claim: Claim, keeper: LeaseKeeper, run_dir: Path) -> Start | Lost:
    """What the trainer has to do, but for where it goes on from; with what it needs on local disk."""
    settings = context.settings
    dirs = RunDirs.of(settings)
    dataset = keeper.write(lambda session: _dataset(session, claim))
    if isinstance(dataset, Lost):
        return dataset
    warm = keeper.write(lambda session: _supernet(session, claim))
    if isinstance(warm, Lost):
        return warm
    teacher = keeper.write(lambda session: _teacher(session, claim, "teacher", "id"))
    if isinstance(teacher, Lost):
        return teacher
    init = keeper.write(lambda session: _teacher(session, claim, "init", "teacher"))
    if isinstance(init, Lost):
        return init
    earlier = keeper.write(lambda session: _earlier_search(session, claim))
    if isinstance(earlier, Lost):
        return earlier
    measured = keeper.write(lambda session: _measured(session, claim))
    if isinstance(measured, Lost):
        return measured
    blobs = dirs.cache / "blobs"
    return Start(
        job_id=format_id(IdKind.JOB, claim.job_id),
        fence=claim.fence,
        kind=claim.kind,
        spec=claim.spec,
        seed=claim.seed,
        run_dir=str(run_dir),
        cache_dir=str(dirs.cache),
        threads=settings.threads_per_trainer,
        device=settings.device,
        checkpoint_s=settings.checkpoint_s,
        lease_s=settings.lease_s,
        stall_s=settings.stall_s,
        dataset=dataset.to_json() if dataset else {},
        teacher=teacher.to_json() if teacher else {},
        init=init.to_json() if init else {},
        supernet=warm.told if warm else {},
        measured=measured,
        inputs=[
            *_dataset_input(context.store, blobs, dataset),
            *_warm_inputs(context.store, blobs, warm.info if warm else None),
            *_teacher_input(context.store, blobs, TEACHER_INPUT, teacher),
            *_teacher_input(context.store, blobs, INIT_INPUT, init),
            *_search_input(context.store, blobs, earlier),
        ],
        adopted=dict(warm.info.outputs) if warm else {},
        import_root=str(settings.import_root.absolute()) if settings.import_root else None,
        import_limits={
            "max_files": settings.import_max_files,
            "max_bytes": settings.import_max_bytes,
            "max_s": settings.import_max_s,
        },
    )


def _restore(store: ArtifactStore, claim: Claim, keeper: LeaseKeeper, run_dir: Path) -> Checkpoint | Lost | None:
    """Put the files of the newest checkpoint that is whole into the run directory; None: start from the beginning."""
    while True:
        newest = keeper.write(lambda session: _newest_checkpoint(session, claim))
        if newest is None or isinstance(newest, Lost):
            return newest
        try:
            for name, sha256 in newest.files.items():
                store.fetch(sha256, run_dir / name)
        except BlobError as error:
            log.warning("checkpoint_unusable", n=newest.n, error=str(error))
            _discard(store, keeper, claim, newest, error)
            continue
        return newest


def _newest_checkpoint(session: Session, claim: Claim) -> Checkpoint | None:
    return session.scalars(
        select(Checkpoint).where(Checkpoint.job_id == claim.job_id).order_by(Checkpoint.n.desc()).limit(1)
    ).one_or_none()


def _discard(store: ArtifactStore, keeper: LeaseKeeper, claim: Claim, checkpoint: Checkpoint, error: BlobError) -> None:
    """Forget a checkpoint that cannot be read, so that the one before it is the newest."""

    def forget(session: Session) -> None:
        job = lock_owned(session, claim.job_id, claim.fence)
        if job is not None:
            session.execute(delete(Checkpoint).where(Checkpoint.job_id == claim.job_id, Checkpoint.n == checkpoint.n))
            detail = f"Checkpoint {checkpoint.n} of stage {checkpoint.stage} could not be read; going back before it."
            warn(session, job, "checkpoint_unusable", detail)

    keeper.write(forget)
    if isinstance(error, BlobCorrupt):
        # Otherwise the store would take the damaged bytes for the content that the next attempt brings again.
        store.delete(error.sha256)


_ON_DATASETS = (JobKind.SEARCH, JobKind.TRANSFER, JobKind.SUPERNET_IMPORT)


def _dataset(session: Session, claim: Claim) -> DatasetInfo | None:
    if claim.kind not in _ON_DATASETS:
        return None
    if claim.dataset_id is not None:
        return DatasetInfo.from_row(session.get_one(Dataset, claim.dataset_id))
    named = claim.spec.get("dataset")  # an import of a supernet needs none
    return None if named is None else BUILTINS[named["id"]]


@dataclass(frozen=True, slots=True)
class _Supernet:
    info: SupernetInfo
    told: Json  # what the trainer learns of it


def _supernet(session: Session, claim: Claim) -> _Supernet | None:
    """The supernet that a search starts from, or that a job is about."""
    if claim.kind in (JobKind.EXTRACT, JobKind.TRANSFER):
        reference = claim.spec["supernet"]
    elif claim.spec.get("warm_start"):
        reference = claim.spec["warm_start"]["supernet"]
    else:
        return None
    row = session.get(Supernet, parse_id(IdKind.SUPERNET, reference))
    if row is None or row.owner != claim.owner:
        detail = f"Supernet {reference} was deleted with the job that made it; train one again."
        raise SupernetUnavailable(detail)
    told = {"id": reference, "method": row.method, "digest": row.sha256, "space": row.space, "info": row.info}
    return _Supernet(SupernetInfo.from_row(row), told)


def _measured(session: Session, claim: Claim) -> Json:
    """What a device agent measured, for the job that fits the table to it; nothing when the device was deleted."""
    if claim.kind is not JobKind.LATENCY_TABLE:
        return {}
    device = session.scalars(select(Device).where(Device.job_id == claim.job_id)).one_or_none()
    if device is None or device.agent is None:
        return {}
    rows = session.scalars(select(DeviceNetwork).where(DeviceNetwork.device_id == device.id).order_by(DeviceNetwork.n))
    networks = [{"architecture": row.architecture, "held_out": row.held_out, "latency": row.latency} for row in rows]
    return {"machine": device.machine, "networks": networks}


def _teacher(session: Session, claim: Claim, part: str, field: str) -> TeacherInfo | None:
    """The registered teacher that a part of a search names.

    A search of architectures that takes a supernet over finds its teacher among that one's files.
    """
    reference = (claim.spec.get(part) or {}).get(field)
    taken_over = claim.spec.get("warm_start") and claim.spec.get("method") == "masktas"
    if claim.kind is not JobKind.SEARCH or reference is None or taken_over:
        return None
    row = session.get(Teacher, parse_id(IdKind.TEACHER, reference))
    if row is None or row.owner != claim.owner:
        raise TeacherUnavailable(f"Teacher {reference} is gone; start a search with another one.")
    return TeacherInfo.from_row(row)


def _teacher_input(store: ArtifactStore, blobs: Path, name: str, teacher: TeacherInfo | None) -> list[BlobRef]:
    if teacher is None:
        return []
    try:
        return [_cached(store, blobs, name, teacher.digest)]
    except BlobError as error:
        detail = f"The stored weights of teacher {teacher.reference} are missing or damaged; register it again."
        raise TeacherUnavailable(detail) from error


def _dataset_input(store: ArtifactStore, blobs: Path, dataset: DatasetInfo | None) -> list[BlobRef]:
    if dataset is None or dataset.id is None:
        return []
    try:
        return [_cached(store, blobs, DATASET_INPUT, dataset.digest)]
    except BlobError as error:
        detail = f"The stored data of dataset {dataset.reference} is missing or damaged; import it again."
        raise DatasetInvalid(detail) from error


def _warm_inputs(store: ArtifactStore, blobs: Path, warm: SupernetInfo | None) -> list[BlobRef]:
    if warm is None:
        return []
    try:
        return [_cached(store, blobs, name, sha256) for name, sha256 in sorted(warm.files.items())]
    except BlobError as error:
        detail = f"The stored files of supernet {warm.reference} are missing or damaged; train it again."
        raise SupernetUnavailable(detail) from error


def _earlier_search(session: Session, claim: Claim) -> str | None:
    """Digest of the search that the job goes on with (``service.searches.continuation``); None of all other jobs."""
    parent_id = session.get_one(Job, claim.job_id).parent_id
    if claim.kind is not JobKind.SEARCH or parent_id is None:
        return None
    of_parent = select(Artifact.sha256).where(Artifact.job_id == parent_id, Artifact.kind == SEARCH_ARTIFACT)
    return session.scalars(of_parent).one()


def _search_input(store: ArtifactStore, blobs: Path, sha256: str | None) -> list[BlobRef]:
    if sha256 is None:
        return []
    try:
        return [_cached(store, blobs, SEARCH_INPUT, sha256)]
    except BlobError as error:
        detail = "The stored search that this job goes on with is missing or damaged; start the job's spec as a search."
        raise SearchUnavailable(detail) from error


def _cached(store: ArtifactStore, blobs: Path, name: str, sha256: str) -> BlobRef:
    """A blob on local disk, fetched when no job of this host has needed it before."""
    path = blobs / sha256
    if not path.exists():
        blobs.mkdir(parents=True, exist_ok=True)
        store.fetch(sha256, path)
    return BlobRef(name=name, path=str(path), sha256=sha256)
