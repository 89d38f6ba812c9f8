"""Slimmable networks on their way out of an import, and into the jobs on them."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest
from sqlalchemy import delete, select
from sqlalchemy.orm import Session, sessionmaker

from service.db.models import Job, JobKind, Supernet
from service.errors import SupernetUnavailable
from service.ids import IdKind, format_id
from service.jobs.values import Claim, Finished
from tests.integration.jobs.rows import in_transaction
from workers.context import WorkerContext
from workers.lease import LeaseKeeper
from workers.materialise import materialise
from workers.promote import promote_result
from workers.protocol import ArtifactRef, Resource, Result, Start

WEIGHTS = b"slimmable"
DIGEST = sha256(WEIGHTS).hexdigest()
FILE = "supernet.safetensors"
INFO = {"widths": [], "spec": {}, "files": {FILE: DIGEST}, "dataset": None, "classes": []}


def bring_in(context: WorkerContext, sessions: sessionmaker[Session], claim: Callable[..., Claim], at: Path) -> str:
    mine = claim(kind=JobKind.SUPERNET_IMPORT)
    artifact = ArtifactRef(
        name=FILE, path=FILE, sha256=DIGEST, size_bytes=len(WEIGHTS), kind="supernet", media_type="application/x"
    )
    resource = Resource(kind="supernet", name="toy", file=FILE, info={"method": "scala", "space": {"k": 4}, **INFO})
    result = Result(result={"digest": DIGEST}, artifacts=[artifact], supernet=resource)
    finished = in_transaction(sessions, lambda s: promote_result(s, mine, result))
    assert isinstance(finished, Finished)
    row: Supernet = in_transaction(sessions, lambda s: s.scalars(select(Supernet)).one())
    reference = format_id(IdKind.SUPERNET, row.id)
    job = in_transaction(sessions, lambda s: s.get_one(Job, mine.job_id))
    assert job.result == {"digest": DIGEST, "supernet": reference}
    at.write_bytes(WEIGHTS)
    context.store.put_file(at)
    return reference


def prepared(context: WorkerContext, mine: Claim, folder: Path) -> Start:
    with LeaseKeeper(context.sessions, mine, context.settings, context.draining) as keeper:
        found = materialise(context, mine, keeper, folder)
    return found.start  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("kind", "rest"),
    [(JobKind.EXTRACT, {}), (JobKind.TRANSFER, {"dataset": {"id": "digits"}})],
)
def test_a_job_on_a_supernet_gets_its_facts_and_its_weights(
    kind: JobKind,
    rest: dict[str, object],
    context: WorkerContext,
    sessions: sessionmaker[Session],
    claim: Callable[..., Claim],
    tmp_path: Path,
) -> None:
    reference = bring_in(context, sessions, claim, tmp_path / "blob")
    start = prepared(context, claim(kind=kind, spec={"supernet": reference, **rest}), tmp_path)
    assert (start.supernet["id"], start.supernet["digest"]) == (reference, DIGEST)
    assert (start.supernet["space"], start.supernet["info"]) == ({"k": 4}, INFO)
    [blob] = start.inputs
    assert (blob.name, Path(blob.path).read_bytes()) == (FILE, WEIGHTS)
    assert start.dataset.get("name") == ("digits" if rest else None)


def test_a_search_that_continues_a_slimmable_network_runs_all_its_stages(
    context: WorkerContext, sessions: sessionmaker[Session], claim: Callable[..., Claim], tmp_path: Path
) -> None:
    reference = bring_in(context, sessions, claim, tmp_path / "blob")
    spec = {"method": "scala", "dataset": {"id": "digits"}, "warm_start": {"supernet": reference}}
    start = prepared(context, claim(spec=spec), tmp_path)
    assert start.adopted == {}
    assert [blob.name for blob in start.inputs] == [FILE]


def test_a_job_on_a_supernet_that_is_gone_says_so(
    context: WorkerContext, sessions: sessionmaker[Session], claim: Callable[..., Claim], tmp_path: Path
) -> None:
    reference = bring_in(context, sessions, claim, tmp_path / "blob")
    in_transaction(sessions, lambda s: s.execute(delete(Supernet)))
    with pytest.raises(SupernetUnavailable, match=reference):
        prepared(context, claim(kind=JobKind.EXTRACT, spec={"supernet": reference}), tmp_path)
