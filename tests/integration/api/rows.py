"""Rows and requests for tests of the API."""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path
from typing import Any
from uuid import UUID

from sqlalchemy.orm import Session

from models.architecture import Architecture
from search.cost import cost
from service.db.models import ApiKey, Artifact, Candidate, Dataset, Desired, FrontMember, Job, JobState
from service.keys.service import new_key
from service.keys.tokens import Token
from service.store import ArtifactStore
from tests.jobs import insert_job

TINY: dict[str, Any] = {"method": "masktas", "dataset": "digits"}
"""The smallest body of a search."""


def add_key(session: Session, *, owner: str, scopes: list[str], **changes: Any) -> str:
    key = new_key()
    token = Token.parse(key)
    assert token is not None
    values = {"owner": owner, "name": "test", "prefix": token.prefix, "sha256": token.sha256, "scopes": scopes}
    session.add(ApiKey(**{**values, **changes}))
    session.commit()
    return key


def add_job(
    session: Session, owner: str, state: JobState = JobState.QUEUED, desired: Desired = Desired.RUN, **changes: Any
) -> UUID:
    values = {"owner": owner, "spec": {"dataset": {"id": "digits"}}, **changes}
    job_id = insert_job(session, state, desired, **values)
    session.commit()
    return job_id


def architecture(embed_dim: int = 48) -> Architecture:
    return Architecture(
        embed_dim=embed_dim,
        depth=3,
        num_heads=(2, 3, 2),
        mlp_ratio=(2.0, 3.0, 2.0),
        head_dim=16,
        img_size=8,
        patch_size=2,
        in_chans=1,
        num_classes=10,
    )


def add_candidate(session: Session, job_id: UUID, n: int, *, on_front: bool = False, **changes: Any) -> Candidate:
    arch = architecture(48 + n)
    price = cost(arch)
    values = {
        "job_id": job_id,
        "n": n,
        "generation": n // 10,
        "genotype": [float(gene) for gene in arch.genotype],
        "parents": [],
        "score": -1.0 / (n + 1),
        "scores": {"consistency": -1.0 / (n + 1)},
        "costs": {"params_m": price.params_m, "gmacs": price.gmacs},
        "feasible": True,
        "architecture": arch.to_json(),
    }
    row = Candidate(**{**values, **changes})
    session.add(row)
    session.flush()
    if on_front:
        session.add(FrontMember(job_id=job_id, n=n))
    session.commit()
    return row


def add_artifact(
    session: Session,
    store: ArtifactStore,
    job_id: UUID,
    content: bytes,
    name: str = "weights.safetensors",
    **changes: Any,
) -> Artifact:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file"
        path.write_bytes(content)
        stored = store.put_file(path)
    job = session.get_one(Job, job_id)
    values = {
        "owner": job.owner,
        "job_id": job_id,
        "fence": 1,
        "name": name,
        "kind": "weights",
        "media_type": "application/octet-stream",
        "sha256": stored.sha256,
        "size_bytes": stored.size,
    }
    artifact = Artifact(**{**values, **changes})
    session.add(artifact)
    session.commit()
    return artifact


def add_dataset(session: Session, owner: str, name: str = "leaves", status: str = "ready", **changes: Any) -> UUID:
    values: dict[str, Any] = {
        "owner": owner,
        "name": name,
        "version": 1,
        "status": status,
        "source": {"path": name, "format": "folder", "labels": "auto"},
    }
    if status == "ready":
        values |= {
            "sha256": hashlib.sha256(name.encode()).hexdigest(),
            "size_bytes": 1000,
            "classes": ["ash", "oak"],
            "counts": {"images": 400, "splits": {"train": 400}, "classes": {"ash": 200, "oak": 200}},
            "image": {"channels": 3, "min_side": 32, "max_side": 32},
            "report": {"findings": []},
        }
    row = Dataset(**{**values, **changes})
    session.add(row)
    session.commit()
    return row.id
