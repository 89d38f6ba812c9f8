"""Datasets on their way into a job and out of an import."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy.orm import Session, sessionmaker

from service.db.models import (
    Dataset,
    DatasetStatus,
    JobKind,
)
from service.errors import DatasetInvalid
from service.jobs.values import Claim, Finished
from tests.integration.jobs.rows import in_transaction
from workers.context import WorkerContext
from workers.lease import LeaseKeeper
from workers.materialise import Prepared, materialise
from workers.promote import promote_result
from workers.protocol import (
    ArtifactRef,
    Result,
)

IMPORTED = {
    "classes": ["cat", "dog"],
    "counts": {"images": 2, "labelled": 2, "splits": {}, "classes": {"cat": 1, "dog": 1}},
    "image": {"channels": 3, "min_side": 8, "max_side": 9},
    "report": {"findings": []},
}
BLOB = b"rows"
BLOB_DIGEST = sha256(BLOB).hexdigest()


@pytest.fixture
def dataset_id(sessions: sessionmaker[Session]) -> UUID:
    with sessions.begin() as session:
        row = Dataset(owner="ada", name="pets", version=1, source={})
        session.add(row)
    return row.id


def test_an_import_makes_its_dataset_ready_with_the_result(
    sessions: sessionmaker[Session], claim: Callable[..., Claim], dataset_id: UUID
) -> None:
    mine = claim(kind=JobKind.DATASET_IMPORT, dataset_id=dataset_id)
    blob = ArtifactRef(
        name="dataset.parquet",
        path="dataset.parquet",
        sha256=BLOB_DIGEST,
        size_bytes=len(BLOB),
        kind="dataset",
        media_type="application/vnd.apache.parquet",
    )
    result = Result(result={}, artifacts=[blob], dataset=IMPORTED)
    for _ in range(2):  # the second time after a lost answer
        finished = in_transaction(sessions, lambda s: promote_result(s, mine, result))
        assert isinstance(finished, Finished)
    row = in_transaction(sessions, lambda s: s.get_one(Dataset, dataset_id))
    assert (row.status, row.sha256, row.size_bytes) == (DatasetStatus.READY, BLOB_DIGEST, len(BLOB))
    assert (row.classes, row.counts, row.image, row.report) == tuple(IMPORTED.values())


@pytest.fixture
def ready(sessions: sessionmaker[Session], dataset_id: UUID) -> UUID:
    with sessions.begin() as session:
        row = session.get_one(Dataset, dataset_id)
        row.status, row.sha256 = DatasetStatus.READY, BLOB_DIGEST
        row.classes, row.counts, row.image = IMPORTED["classes"], IMPORTED["counts"], IMPORTED["image"]  # type: ignore[assignment]
    return dataset_id


@pytest.fixture
def prepare(context: WorkerContext, claim: Callable[..., Claim], tmp_path: Path) -> Callable[..., Prepared]:
    def make(**job: Any) -> Prepared:
        mine = claim(**job)
        with LeaseKeeper(context.sessions, mine, context.settings, context.draining) as keeper:
            prepared = materialise(context, mine, keeper, tmp_path)
        assert isinstance(prepared, Prepared)
        return prepared

    return make


def test_a_search_gets_the_facts_and_the_blob_of_its_dataset(
    context: WorkerContext, prepare: Callable[..., Prepared], ready: UUID, tmp_path: Path
) -> None:
    (tmp_path / "blob").write_bytes(BLOB)
    context.store.put_file(tmp_path / "blob")
    start = prepare(dataset_id=ready).start
    assert (start.dataset["classes"], start.dataset["digest"]) == (["cat", "dog"], BLOB_DIGEST)
    [blob] = start.inputs
    assert (blob.name, blob.sha256) == ("dataset", BLOB_DIGEST)
    assert Path(blob.path).read_bytes() == BLOB
    context.store.delete(BLOB_DIGEST)
    assert prepare(dataset_id=ready).start.inputs == [blob]  # cached on this host


def test_a_lost_blob_is_a_clear_error(prepare: Callable[..., Prepared], ready: UUID) -> None:
    with pytest.raises(DatasetInvalid, match="import it again"):
        prepare(dataset_id=ready)


def test_a_built_in_dataset_needs_no_blob(prepare: Callable[..., Prepared]) -> None:
    start = prepare(spec={"dataset": {"id": "digits"}}).start
    assert (start.dataset["name"], start.inputs, start.resume) == ("digits", [], None)
