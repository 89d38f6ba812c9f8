"""Architectures of searches: the whole description of one, and the files of a job's winner."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncSession

from models.architecture import Architecture, ArchitectureError
from search.latency import LatencyError
from service.architectures.schemas import DESCRIPTION_FIELDS, ArchitectureCost, ArchitectureView
from service.artifacts.repository import ArtifactRepository
from service.artifacts.schemas import ArtifactView
from service.artifacts.service import read_whole
from service.candidates.repository import CandidateRepository
from service.candidates.schemas import CandidateView
from service.db.models import Artifact, JobKind
from service.devices.service import find_table
from service.errors import NotFound, ValidationFailed
from service.ids import IdKind, format_id, parse_architecture_id
from service.jobs.resolve import field_errors
from service.jobs.service import get_job
from service.store import ArtifactStore

DESCRIPTION_FILE = "architecture.json"
WEIGHTS_FILE = "weights.safetensors"


async def price(session: AsyncSession, owner: str, document: Mapping[str, Any], device: str | None) -> ArchitectureCost:
    """The cost of any valid architecture JSON, whether or not a space contains it.

    Args:
        session, owner: to find the device.
        document: the architecture, or a whole description.
        device: id of the device whose table predicts the latency.

    Raises:
        ValidationFailed: with a pointer to each field at fault; no such device; no entry in its table for a gene.
    """
    table = None if device is None else await find_table(session, owner, device, "device")
    genes = {key: value for key, value in document.items() if key not in DESCRIPTION_FIELDS}
    try:
        return ArchitectureCost.of(Architecture.from_json(genes), table)
    except (ArchitectureError, LatencyError) as error:
        raise ValidationFailed.of(field_errors("", error.problems)) from error


async def get_architecture(
    session: AsyncSession, owner: str, architecture_id: str, store: ArtifactStore
) -> ArchitectureView:
    """Everything that is known of one candidate's network.

    Raises:
        NotFound: no such architecture.
    """
    found = parse_architecture_id(architecture_id)
    row = await CandidateRepository(session, owner).get(*found) if found is not None else None
    if row is None:
        raise NotFound(f"There is no architecture {architecture_id[:100]!r}; ids look like arch_<job>_<number>.")
    files = await ArtifactRepository(session, owner).of_candidate(row.job_id, row.n)
    exported = next((file for file in files if file.name == DESCRIPTION_FILE), None)
    described = json.loads(await read_whole(store, exported)) if exported is not None else {}
    candidate = CandidateView.of(row)
    known: dict[str, Any] = {
        **row.architecture,
        **described,
        "id": candidate.id,
        "job": format_id(IdKind.JOB, row.job_id),
        "costs": row.costs,
        "scores": row.scores,
        "accuracy": row.accuracy,
        "candidate": candidate,
        "artifacts": [ArtifactView.of(file) for file in files],
    }
    return ArchitectureView(**known)


async def winners_file(session: AsyncSession, owner: str, job_id: UUID, name: str) -> Artifact:
    """A file of the network that won a search, or that an extraction took out.

    Raises:
        NotFound: no such job, or it has no such file (yet).
    """
    job = await get_job(session, owner, job_id)
    winner = await CandidateRepository(session, owner).winner(job_id)
    if winner is None and job.kind != JobKind.EXTRACT:
        raise NotFound(
            f"Job {format_id(IdKind.JOB, job_id)} is {job.state} and has no winner; there is one when it has succeeded."
        )
    files = await ArtifactRepository(session, owner).of_candidate(job_id, winner.n if winner is not None else None)
    file = next((file for file in files if file.name == name), None)
    if file is None:
        raise NotFound(f"Job {format_id(IdKind.JOB, job_id)} is {job.state} and has no file {name}.")
    return file
