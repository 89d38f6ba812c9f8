"""Teachers and supernets: what searches leave behind."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient
from sqlalchemy.orm import Session

from service.db.models import Supernet, Teacher
from service.ids import IdKind, format_id
from tests.integration.api.rows import add_job, architecture

DIGEST = "ab" * 32


def add_teacher(session: Session, owner: str) -> str:
    row = Teacher(
        owner=owner,
        job_id=add_job(session, owner),
        name="MAE",
        sha256=DIGEST,
        architecture=architecture().to_json(),
        info={"epochs": 3},
    )
    session.add(row)
    session.commit()
    return format_id(IdKind.TEACHER, row.id)


def add_supernet(session: Session, owner: str) -> str:
    row = Supernet(
        owner=owner,
        job_id=add_job(session, owner),
        method="masktas",
        space={"name": "micro"},
        sha256=DIGEST,
        info={"epochs": 3},
    )
    session.add(row)
    session.commit()
    return format_id(IdKind.SUPERNET, row.id)


@pytest.mark.parametrize(
    ("path", "add", "shown"),
    [
        ("/teachers", add_teacher, {"name": "MAE", "digest": DIGEST, "info": {"epochs": 3}}),
        ("/supernets", add_supernet, {"method": "masktas", "space": {"name": "micro"}, "digest": DIGEST}),
    ],
    ids=["teachers", "supernets"],
)
def test_they_are_listed_newest_first_to_their_owner_only(
    api: TestClient, stranger: TestClient, session: Session, owner: str, path: str, add: Any, shown: dict[str, Any]
) -> None:
    expected = [add(session, owner) for _ in range(3)][::-1]
    page = api.get(path, params={"limit": 2}).json()
    rest = api.get(path, params={"limit": 2, "after": page["next"]}).json()
    found = page["data"] + rest["data"]
    assert [entry["id"] for entry in found] == expected
    assert (page["has_more"], rest["has_more"]) == (True, False)
    one = api.get(f"{path}/{expected[0]}").json()
    assert one == found[0]
    assert one.items() >= shown.items()
    assert one["job"].startswith("job_")
    assert stranger.get(path).json()["data"] == []
    assert stranger.get(f"{path}/{expected[0]}").status_code == 404
    assert api.get(f"{path}/job_{'0' * 32}").status_code == 404
