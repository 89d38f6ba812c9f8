"""What can be done with supernets: find one, take a width out, bring one in, carry one to other images."""

from __future__ import annotations

import asyncio
from pathlib import Path

from sqlalchemy.ext.asyncio import AsyncSession

from models.slimmable import Slimmable
from service.datasets.info import DatasetInfo
from service.datasets.service import find_dataset
from service.db.models import Job, JobKind, Supernet
from service.errors import ErrorItem, NotFound, ValidationFailed, shortened
from service.ids import BadId, IdKind, format_id, parse_id
from service.imports import confined_path, name_of, refuse_path
from service.jobs import transitions
from service.jobs.queues import DEFAULT_QUEUE
from service.jobs.resolve import train_images_of
from service.jobs.spec import (
    DatasetRef,
    ExtractRequest,
    ExtractSpec,
    SupernetImportSpec,
    TransferRequest,
    TransferSpec,
)
from service.jobs.values import NewJob
from service.supernets.choice import widths_in_question
from service.supernets.info import SLIMMABLE_METHODS, SupernetInfo, widths_of
from service.supernets.repository import SupernetRepository
from service.teachers.files import FORMATS

# As many as help; a user with more supernets looks them up.
_NAMED = 20

_PATH = "/path"


async def find_supernet(session: AsyncSession, owner: str, reference: str) -> SupernetInfo:
    """The supernet that a search names.

    Raises:
        ValidationFailed: no such supernet.
    """
    supernets = SupernetRepository(session, owner)
    try:
        row = await supernets.get(parse_id(IdKind.SUPERNET, reference))
    except BadId:
        row = None
    if row is None:
        allowed = [format_id(IdKind.SUPERNET, known.id) for known in await supernets.page(None, _NAMED)]
        detail = f"there is no supernet {reference!r}; name one of GET /supernets by its id"
        items = [ErrorItem("/warm_start/supernet", "unknown_supernet", detail, allowed)]
        raise ValidationFailed(f"warm_start: {detail}.", errors=items)
    return SupernetInfo.from_row(row)


async def get_supernet(session: AsyncSession, owner: str, reference: str) -> Supernet:
    """The row of a supernet that a path names.

    Raises:
        BadId, NotFound: there is none.
    """
    row = await SupernetRepository(session, owner).get(found := parse_id(IdKind.SUPERNET, reference))
    if row is None:
        raise NotFound(f"There is no supernet {format_id(IdKind.SUPERNET, found)}.")
    return row


async def start_extraction(session: AsyncSession, owner: str, reference: str, asked: ExtractRequest) -> Job:
    """Add the job that takes a width out. The caller commits.

    Raises:
        NotFound: no such supernet.
        ValidationFailed: it has no widths.
        UnknownWidth, ConstraintUnsatisfiable: see :func:`service.supernets.choice.widths_in_question`.
    """
    row = await _slimmable(session, owner, reference)
    found = widths_in_question(asked, Slimmable.from_json(row.space), widths_of(row))
    supernet = format_id(IdKind.SUPERNET, row.id)
    spec = ExtractSpec(**asked.model_dump(), supernet=supernet, head_dims=[width.head_dim for width in found])
    what = f"width {found[0].width}" if not asked.limits else "the best width"
    request = NewJob(
        owner=owner,
        kind=JobKind.EXTRACT,
        name=f"{what} of {supernet}",
        spec=spec.model_dump(mode="json"),
        queue=DEFAULT_QUEUE,
        seed=0,
        parent_id=row.job_id,
    )
    return await session.run_sync(transitions.enqueue, request)


async def start_transfer(session: AsyncSession, owner: str, reference: str, asked: TransferRequest) -> Job:
    """Add the job that judges the features of every width on other images. The caller commits.

    Raises:
        NotFound: no such supernet.
        ValidationFailed: it has no widths, the dataset has no labels, or there are more neighbours than images.
    """
    row = await _slimmable(session, owner, reference)
    dataset = await find_dataset(session, owner, asked.dataset.id)
    _check_labels(asked.dataset, dataset)
    images = train_images_of(asked.dataset, dataset)
    if asked.k > images:
        detail = f"found {asked.k} neighbours among {images} training images"
        raise ValidationFailed.of([ErrorItem("/k", "too_many_neighbours", detail, {"max": images})])
    supernet = format_id(IdKind.SUPERNET, row.id)
    spec = TransferSpec(
        **{**dict(asked), "dataset": asked.dataset.model_copy(update={"id": dataset.reference})}, supernet=supernet
    )
    request = NewJob(
        owner=owner,
        kind=JobKind.TRANSFER,
        name=f"{supernet} on {dataset.name}",
        spec=spec.model_dump(mode="json"),
        queue=DEFAULT_QUEUE,
        seed=spec.seed,
        dataset_id=dataset.id,
        parent_id=row.job_id,
    )
    return await session.run_sync(transitions.enqueue, request)


async def start_import(session: AsyncSession, owner: str, new: SupernetImportSpec, import_root: Path | None) -> Job:
    """Add the job that imports a slimmable network. The caller commits.

    Raises:
        ValidationFailed: the path is not a file of weights below the import root, or the dataset has no labels.
    """
    path = await asyncio.to_thread(_checked, new.path, import_root)
    dataset = await find_dataset(session, owner, new.dataset.id) if new.dataset is not None else None
    name = new.name or name_of(path)
    spec = new.model_copy(update={"path": path, "name": name})
    if dataset is not None and new.dataset is not None:
        _check_labels(new.dataset, dataset)
        spec = spec.model_copy(update={"dataset": new.dataset.model_copy(update={"id": dataset.reference})})
    request = NewJob(
        owner=owner,
        kind=JobKind.SUPERNET_IMPORT,
        name=f"supernet {name}",
        spec=spec.model_dump(mode="json"),
        queue=DEFAULT_QUEUE,
        seed=0,
        dataset_id=dataset.id if dataset is not None else None,
    )
    return await session.run_sync(transitions.enqueue, request)


async def _slimmable(session: AsyncSession, owner: str, reference: str) -> Supernet:
    row = await get_supernet(session, owner, reference)
    if row.method not in SLIMMABLE_METHODS:
        detail = f"{reference} was trained by method {row.method} and has architectures instead of widths"
        allowed = f"a supernet of method {' or '.join(SLIMMABLE_METHODS)}"
        raise ValidationFailed.of([ErrorItem("supernet_id", "not_slimmable", detail, allowed)])
    return row


def _check_labels(asked: DatasetRef, dataset: DatasetInfo) -> None:
    if not dataset.labelled:
        detail = f"widths are measured by their accuracy, and dataset {shortened(dataset.name)!r} has no labels"
        raise ValidationFailed.of([ErrorItem("/dataset", "labels_missing", detail, "a dataset with labels")])
    if asked.labels != "auto":
        detail = f"widths are measured by their accuracy; use the labels of {shortened(dataset.name)!r}"
        raise ValidationFailed.of([ErrorItem("/dataset/labels", "labels_missing", detail, ["auto"])])


def _checked(path: str, import_root: Path | None) -> str:
    relative = confined_path(path, import_root, _PATH)
    assert import_root is not None, "confined_path refuses without a root"
    file = import_root / relative
    if not file.is_file():
        refuse_path(path, "not_a_file", "the path is a folder; name the file with the checkpoint", _PATH)
    if file.suffix not in FORMATS:
        refuse_path(path, "unsupported_format", f"allowed are files that end in {', '.join(FORMATS)}", _PATH)
    return relative
