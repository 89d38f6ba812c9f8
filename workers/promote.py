"""Promotion: files of a run directory become blobs, then rows make them count, in one transaction under the fence."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any
from uuid import UUID

from sqlalchemy import delete, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from service.db.blobs import hold_blobs
from service.db.models import (
    Artifact,
    Candidate,
    Checkpoint,
    Dataset,
    DatasetStatus,
    Device,
    Job,
    JobKind,
    Supernet,
    Teacher,
)
from service.ids import IdKind, format_id
from service.jobs.events import EventType, append_event
from service.jobs.transitions import finish_succeeded, lock_owned
from service.jobs.values import Claim, Finished, Lost
from service.store import ArtifactStore, BlobMissing
from workers.protocol import DATASET_ARTIFACT, Accuracy, CheckpointMessage, FileRef, Resource, Result

Json = dict[str, Any]

KEPT_CHECKPOINTS = 2
"""The newest, and the one before it in case a blob of the newest is damaged."""

_PINNED = ".pinned"


class FileRefused(Exception):
    """A file is not what the trainer said: outside its folder, no plain file, gone, or with another digest."""

    def __init__(self, ref: FileRef, why: str) -> None:
        super().__init__(f"{ref.name} ({ref.path}): {why}")


def upload(store: ArtifactStore, run_dir: Path, refs: Sequence[FileRef], stored: set[str]) -> None:
    """Put files into the store and check that they are what the trainer said.

    Args:
        store: where to.
        run_dir: where from.
        refs: what the trainer said.
        stored: digests of what this attempt has read or written in the store before. Such files are not read again:
            checkpoints name all their files, and most of these are those of the one before. New ones are added.

    Raises:
        FileRefused: see there. Files of a checkpoint may be gone because a later one has replaced them.
        StorageFull, Unavailable: see ``ArtifactStore.put_file``.
    """
    for ref in refs:
        if ref.sha256 in stored and store.exists(ref.sha256):
            continue
        with _pinned(run_dir, ref) as path:
            found = store.put_file(path)
        if (found.sha256, found.size) != (ref.sha256, ref.size_bytes):
            raise FileRefused(ref, f"has the digest {found.sha256}, announced was {ref.sha256}")
        stored.add(found.sha256)


def hold(session: Session, store: ArtifactStore, refs: Sequence[FileRef]) -> None:
    """Make sure that files which were uploaded are still in the store, and stay so until the transaction ends.

    Raises:
        BlobMissing: nobody needed one before, and it was removed; upload it again.
    """
    hold_blobs(session)
    for ref in refs:
        if not store.exists(ref.sha256):
            raise BlobMissing(ref.sha256)


def promote_checkpoint(session: Session, claim: Claim, n: int, message: CheckpointMessage) -> frozenset[str] | Lost:
    """Insert checkpoint ``n``, whose files are held, and what exists because of it.

    Returns:
        Digests of files of older checkpoints, which this one replaces: perhaps nobody needs them any more.
    """
    job = lock_owned(session, claim.job_id, claim.fence)
    if job is None:
        return Lost()
    digests = {ref.name: ref.sha256 for ref in message.files}
    new = session.execute(
        insert(Checkpoint)
        .values(job_id=job.id, n=n, fence=claim.fence, stage=message.stage, state=message.state, files=digests)
        .on_conflict_do_nothing()
        .returning(Checkpoint.n)
    ).one_or_none()
    if new is None:  # this very call was committed before, and its answer got lost
        return frozenset()
    replaced = session.scalars(
        delete(Checkpoint)
        .where(Checkpoint.job_id == job.id, Checkpoint.n <= n - KEPT_CHECKPOINTS)
        .returning(Checkpoint.files)
        .execution_options(synchronize_session=False)
    ).all()
    for resource in message.resources:
        _upsert_resource(session, job, resource, digests[resource.file])
    job.failures = 0
    append_event(session, job.id, EventType.CHECKPOINT, {"n": n, "stage": message.stage})
    return frozenset(sha256 for files in replaced for sha256 in files.values()) - set(digests.values())


def promote_result(session: Session, claim: Claim, message: Result) -> Finished | Lost:
    """End the job with its result, whose files are in the store."""
    finished = finish_succeeded(
        session, claim.job_id, claim.fence, result=message.result, stop_reason=message.stop_reason
    )
    if isinstance(finished, Lost):
        return finished
    job = session.get_one(Job, claim.job_id)
    for ref in message.artifacts:
        session.execute(
            insert(Artifact)
            .values(
                owner=job.owner,
                job_id=job.id,
                fence=claim.fence,
                sha256=ref.sha256,
                **ref.model_dump(include={"name", "kind", "media_type", "candidate_n", "size_bytes"}),
            )
            .on_conflict_do_nothing()  # a repetition
        )
    _rank(session, job, message.accuracies)
    if job.kind == JobKind.DATASET_IMPORT:
        _complete_dataset(session, job, message)
    if message.latency_table is not None:
        _complete_device(session, job, message.latency_table)
    for kind, resource in ((IdKind.TEACHER, message.teacher), (IdKind.SUPERNET, message.supernet)):
        if resource is not None:
            [digest] = [ref.sha256 for ref in message.artifacts if ref.name == resource.file]
            reference = format_id(kind, _upsert_resource(session, job, resource, digest))
            job.result = {**(job.result or {}), resource.kind: reference}
    return finished


@contextmanager
def _pinned(run_dir: Path, ref: FileRef) -> Iterator[Path]:
    """A hard link to the file, for as long as it is read: the trainer may put a newer file in its place meanwhile."""
    relative = PurePosixPath(ref.path)
    if relative.is_absolute() or ".." in relative.parts or not relative.parts:
        raise FileRefused(ref, "leaves the run directory")
    folder = run_dir
    for part in relative.parts[:-1]:
        folder = folder / part
        if folder.is_symlink():
            raise FileRefused(ref, "lies behind a symbolic link")
    pinned = run_dir / _PINNED / ref.sha256
    pinned.parent.mkdir(exist_ok=True)
    pinned.unlink(missing_ok=True)
    try:
        os.link(folder / relative.name, pinned, follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError, PermissionError) as error:
        raise FileRefused(ref, "does not exist or is no file") from error
    try:
        if not stat.S_ISREG(pinned.lstat().st_mode):
            raise FileRefused(ref, "is no plain file")
        yield pinned
    finally:
        pinned.unlink()


def _upsert_resource(session: Session, job: Job, resource: Resource, sha256: str) -> UUID:
    row: Json = {"owner": job.owner, "job_id": job.id, "sha256": sha256}
    info = dict(resource.info)
    if resource.kind == "teacher":
        table: type[Teacher | Supernet] = Teacher
        row |= {"name": resource.name, "architecture": info.pop("architecture"), "info": info}
    else:
        table = Supernet
        row |= {"method": info.pop("method"), "space": info.pop("space"), "info": info}
    statement = insert(table).values(**row).on_conflict_do_update(index_elements=["job_id"], set_=row)
    return session.execute(statement.returning(table.id)).scalar_one()


def _rank(session: Session, job: Job, accuracies: Sequence[Accuracy]) -> None:
    for entry in accuracies:
        session.execute(
            update(Candidate)
            .where(Candidate.job_id == job.id, Candidate.n == entry.candidate_n)
            .values(rank=entry.rank, accuracy=entry.accuracy, **_measured(entry))
            .execution_options(synchronize_session=False)
        )


def _measured(entry: Accuracy) -> Json:
    found: Json = {"costs": Candidate.costs.op("||")(entry.costs)} if entry.costs else {}
    return found if entry.feasible is None else {**found, "feasible": entry.feasible}


def _complete_device(session: Session, job: Job, table: Json) -> None:
    """Give the device of a measurement its table; one that was deleted meanwhile stays so."""
    statement = update(Device).where(Device.job_id == job.id)
    # Here, not above: a worker that waits for jobs does without numpy.
    from search.latency import LatencyTable

    values = {"latency_table": table, "sha256": LatencyTable.from_json(table).digest()}
    known = session.scalars(
        statement.values(**values).returning(Device.id).execution_options(synchronize_session=False)
    ).one_or_none()
    job.result = {**(job.result or {}), "device": known and format_id(IdKind.DEVICE, known)}


def _complete_dataset(session: Session, job: Job, message: Result) -> None:
    assert message.dataset is not None, "an import ends with a dataset or with an error"
    [blob] = [ref for ref in message.artifacts if ref.kind == DATASET_ARTIFACT]
    facts = {name: message.dataset[name] for name in ("classes", "counts", "image", "report")}
    session.execute(
        update(Dataset)
        .where(Dataset.id == job.dataset_id)
        .values(status=DatasetStatus.READY, sha256=blob.sha256, size_bytes=blob.size_bytes, error=None, **facts)
        .execution_options(synchronize_session=False)
    )
