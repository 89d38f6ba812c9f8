"""A search that goes on with another one's, on a real PostgreSQL and a real store."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest
from sqlalchemy.orm import Session, sessionmaker

from service.db.models import JobKind
from service.errors import SearchUnavailable
from service.jobs.values import Claim
from tests.integration.jobs.rows import in_transaction
from workers.context import WorkerContext
from workers.lease import LeaseKeeper
from workers.materialise import materialise
from workers.promote import promote_result
from workers.protocol import SEARCH_ARTIFACT, SEARCH_INPUT, ArtifactRef, Result, Start

ROWS = b'["end",{}]\n'
DIGEST = sha256(ROWS).hexdigest()
ON_DIGITS = {"dataset": {"id": "digits"}}


@pytest.fixture
def earlier(
    context: WorkerContext, sessions: sessionmaker[Session], claim: Callable[..., Claim], tmp_path: Path
) -> Claim:
    """A search that has succeeded and kept what it found."""
    mine = claim(spec=ON_DIGITS)
    (tmp_path / "rows").write_bytes(ROWS)
    context.store.put_file(tmp_path / "rows")
    kept = {"name": "search.jsonl", "path": "rows", "media_type": "application/x-ndjson", "kind": SEARCH_ARTIFACT}
    artifact = ArtifactRef(sha256=DIGEST, size_bytes=len(ROWS), **kept)
    in_transaction(sessions, lambda s: promote_result(s, mine, Result(result={}, artifacts=[artifact])))
    return mine


def prepared(context: WorkerContext, mine: Claim, folder: Path) -> Start:
    with LeaseKeeper(context.sessions, mine, context.settings, context.draining) as keeper:
        found = materialise(context, mine, keeper, folder)
    return found.start  # type: ignore[union-attr]


def test_it_finds_the_other_search_among_its_inputs(
    context: WorkerContext, claim: Callable[..., Claim], earlier: Claim, tmp_path: Path
) -> None:
    [blob] = prepared(context, claim(spec=ON_DIGITS, parent_id=earlier.job_id), tmp_path).inputs
    assert (blob.name, Path(blob.path).read_bytes()) == (SEARCH_INPUT, ROWS)


def test_without_the_stored_file_it_says_so(
    context: WorkerContext, claim: Callable[..., Claim], earlier: Claim, tmp_path: Path
) -> None:
    context.store.delete(DIGEST)
    with pytest.raises(SearchUnavailable, match="goes on with"):
        prepared(context, claim(spec=ON_DIGITS, parent_id=earlier.job_id), tmp_path)


def test_jobs_of_other_kinds_take_nothing_over_from_their_parents(
    context: WorkerContext, claim: Callable[..., Claim], earlier: Claim, tmp_path: Path
) -> None:
    mine = claim(kind=JobKind.LATENCY_TABLE, spec={}, parent_id=earlier.job_id)
    assert prepared(context, mine, tmp_path).inputs == []
