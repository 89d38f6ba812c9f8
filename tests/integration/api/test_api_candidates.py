"""Candidates and the Pareto front."""

from __future__ import annotations

import csv
import io
import random
from typing import Any, cast
from uuid import UUID

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from service.candidates.repository import CandidateFilter, CandidateRepository, Place
from service.candidates.schemas import Order
from service.db.models import JobState
from service.ids import IdKind, format_id
from tests.integration.api.rows import add_candidate, add_job


def path_of(job_id: UUID) -> str:
    return f"/jobs/{format_id(IdKind.JOB, job_id)}"


@pytest.fixture
def job_id(session: Session, owner: str) -> UUID:
    return add_job(session, owner, JobState.RUNNING)


def all_pages(api: TestClient, path: str, **params: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    cursor: str | None = None
    while True:
        page = api.get(path, params={**params, "limit": 3, **({"after": cursor} if cursor else {})}).json()
        found += page["data"]
        if not page["has_more"]:
            return found
        cursor = page["next"]


def test_candidates_are_listed_in_the_order_of_evaluation(api: TestClient, session: Session, job_id: UUID) -> None:
    for n in range(7):
        add_candidate(session, job_id, n)
    found = all_pages(api, f"{path_of(job_id)}/candidates")
    assert [c["n"] for c in found] == list(range(7))
    first = found[0]
    assert first["id"] == f"arch_{job_id.hex}_0"
    assert first["architecture"] == f"/architectures/{first['id']}"
    assert api.get(first["architecture"]).json()["candidate"] == first


def test_the_best_come_first_when_sorted_by_score(api: TestClient, session: Session, job_id: UUID) -> None:
    scores = [-0.5, -0.1, None, -0.3, -0.1, -0.30000000000000004, -2.0]
    for n, score in enumerate(scores):
        add_candidate(session, job_id, n, score=score, feasible=n != 1)
    found = all_pages(api, f"{path_of(job_id)}/candidates", sort="score")
    assert [c["n"] for c in found] == [1, 4, 3, 5, 0, 6]
    feasible = all_pages(api, f"{path_of(job_id)}/candidates", sort="score", feasible=True)
    assert [c["n"] for c in feasible] == [4, 3, 5, 0, 6]
    assert [c["n"] for c in all_pages(api, f"{path_of(job_id)}/candidates", feasible=False)] == [1]


def test_costs_sort_from_the_cheapest_without_those_that_lack_them(
    api: TestClient, session: Session, job_id: UUID
) -> None:
    latencies = [3.0, 0.1 + 0.2, None, 3.0, 0.3, 3.0, 3.0]
    for n, latency in enumerate(latencies):
        known = {} if latency is None else {"latency_ms": latency}
        add_candidate(session, job_id, n, costs={"params_m": 1.0, "gmacs": 7 - n, **known})
    path = f"{path_of(job_id)}/candidates"
    assert [c["n"] for c in all_pages(api, path, sort="latency_ms")] == [4, 1, 0, 3, 5, 6]
    assert [c["n"] for c in all_pages(api, path, sort="gmacs")] == [6, 5, 4, 3, 2, 1, 0]
    assert [c["n"] for c in all_pages(api, path, sort="params_m")] == list(range(7))


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"on_front": True}, [1, 3]),
        ({"on_front": False, "feasible": True}, [2, 4, 5]),
        ({"min_params_m": 2, "max_params_m": 4}, [2, 3, 4]),
        ({"max_score": -0.3, "sort": "score"}, [3, 4, 5]),
        ({"min_latency_ms": 0}, []),
    ],
)
def test_filters_choose_and_combine(
    api: TestClient, session: Session, job_id: UUID, query: dict[str, Any], expected: list[int]
) -> None:
    for n in range(6):
        costs = {"params_m": float(n), "gmacs": 1.0}
        score = None if n == 0 else -n / 10
        add_candidate(session, job_id, n, score=score, costs=costs, feasible=n != 0, on_front=n in (1, 3))
    path = f"{path_of(job_id)}/candidates"
    assert [c["n"] for c in all_pages(api, path, **query)] == expected
    table = api.get(path, params={**query, "format": "csv"}).text
    assert [int(row["n"]) for row in csv.DictReader(io.StringIO(table))] == expected


def test_a_range_that_holds_nothing_is_refused(api: TestClient, job_id: UUID) -> None:
    response = api.get(f"{path_of(job_id)}/candidates", params={"min_gmacs": 2, "max_gmacs": 1})
    [error] = response.json()["errors"]
    assert (response.status_code, error["pointer"], error["allowed"]) == (422, "min_gmacs", "at most 1")


def test_a_table_of_several_batches_has_every_candidate_once(
    api: TestClient, session: Session, job_id: UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("service.candidates.csv._BATCH", 2)
    for n in range(6):
        add_candidate(session, job_id, n, score=-float(n % 2))
    path = f"{path_of(job_id)}/candidates"
    for sort, expected in (("n", [0, 1, 2, 3, 4, 5]), ("score", [0, 2, 4, 1, 3, 5])):
        table = api.get(path, params={"format": "csv", "sort": sort}).text
        assert [int(row["n"]) for row in csv.DictReader(io.StringIO(table))] == expected


ORDERS = ("n", "score", "params_m", "gmacs", "weight_mb", "peak_mem_mb", "latency_ms")


@pytest.mark.parametrize("order", ORDERS)
def test_every_order_reads_a_page_from_its_index(session: Session, job_id: UUID, order: str) -> None:
    """Whatever the number of candidates: neither sorts them nor begins at the first one."""
    query = CandidateRepository(cast(AsyncSession, session), "any").page_query(
        job_id, CandidateFilter(), Order(order), Place(5, None if order == "n" else 0.5)
    )
    session.execute(text("SET LOCAL enable_seqscan = off"))
    session.execute(text("SET LOCAL enable_sort = off"))
    compiled = query.limit(3).compile(session.get_bind(), compile_kwargs={"literal_binds": True})
    plan = "\n".join(session.scalars(text("EXPLAIN " + str(compiled).replace(":", "\\:"))))
    assert "Sort" not in plan
    [condition] = [line for line in plan.splitlines() if "Index Cond" in line and ("ROW(" in line or "n > 5" in line)]
    assert "job_id" in condition


def test_a_cursor_of_another_order_is_refused(api: TestClient, session: Session, job_id: UUID) -> None:
    for n in range(3):
        add_candidate(session, job_id, n)
    cursor = api.get(f"{path_of(job_id)}/candidates", params={"limit": 1}).json()["next"]
    response = api.get(f"{path_of(job_id)}/candidates", params={"after": cursor, "sort": "score"})
    assert (response.status_code, response.json()["errors"][0]["pointer"]) == (422, "after")


@pytest.mark.parametrize("by", ["header", "parameter"])
def test_all_candidates_as_one_table(api: TestClient, session: Session, job_id: UUID, by: str) -> None:
    for n in range(5):
        add_candidate(session, job_id, n, rank=0 if n == 2 else None, accuracy={"val": 0.9} if n == 2 else None)
    path = f"{path_of(job_id)}/candidates"
    response = (
        api.get(path, headers={"Accept": "text/csv"}) if by == "header" else api.get(path, params={"format": "csv"})
    )
    assert response.headers["Content-Type"].startswith("text/csv")
    assert f"{format_id(IdKind.JOB, job_id)}-candidates.csv" in response.headers["Content-Disposition"]
    rows = list(csv.DictReader(io.StringIO(response.text)))
    shown = api.get(path).json()["data"]
    assert [int(row["n"]) for row in rows] == [0, 1, 2, 3, 4]
    assert [float(row["score"]) for row in rows] == [c["score"] for c in shown]
    assert [float(row["params_m"]) for row in rows] == [c["costs"]["params_m"] for c in shown]
    assert [float(row["scores.consistency"]) for row in rows] == [c["scores"]["consistency"] for c in shown]
    assert [row["scores.fused"] for row in rows] == [""] * 5
    assert [row["rank"] for row in rows] == ["", "", "0", "", ""]
    assert rows[2]["val_accuracy"] == "0.9"


def test_json_wins_where_the_client_likes_both(api: TestClient, session: Session, job_id: UUID) -> None:
    accept = {"Accept": "text/html, text/csv;q=0.5, */*;q=0.8"}
    assert api.get(f"{path_of(job_id)}/candidates", headers=accept).headers["Content-Type"] == "application/json"


def dominates(a: tuple[float, float], b: tuple[float, float]) -> bool:
    return a[0] <= b[0] and a[1] <= b[1] and a != b


def test_the_front_over_two_figures_is_what_nothing_dominates(api: TestClient, session: Session, job_id: UUID) -> None:
    rng = random.Random(0)
    points: dict[int, tuple[float, float]] = {}
    for n in range(60):  # few distinct values, so that there are ties in one and in both figures
        params, score, feasible = rng.randint(1, 12) / 4, -rng.randint(1, 12) / 8, rng.random() < 0.8
        add_candidate(session, job_id, n, score=score, costs={"params_m": params, "gmacs": 1.0}, feasible=feasible)
        if feasible:
            points[n] = (params, -score)
    add_candidate(session, job_id, 60, score=None)
    expected = {p for p in points.values() if not any(dominates(q, p) for q in points.values())}
    answer = api.get(f"{path_of(job_id)}/pareto", params={"x": "params_m", "y": "score"}).json()
    found = [(c["costs"]["params_m"], -c["score"]) for c in answer["data"]]
    assert found == sorted(expected)
    assert all(c["n"] == min(n for n, p in points.items() if p == points[c["n"]]) for c in answer["data"])
    assert (answer["x"], answer["y"], answer["feasible"]) == ("params_m", "score", True)


def test_infeasible_candidates_take_part_when_asked_for(api: TestClient, session: Session, job_id: UUID) -> None:
    add_candidate(session, job_id, 0, score=-1.0, costs={"params_m": 2.0, "gmacs": 1.0})
    add_candidate(session, job_id, 1, score=-0.5, costs={"params_m": 1.0, "gmacs": 1.0}, feasible=False)
    query = {"x": "params_m", "y": "score"}
    assert [c["n"] for c in api.get(f"{path_of(job_id)}/pareto", params=query).json()["data"]] == [0]
    both = api.get(f"{path_of(job_id)}/pareto", params={**query, "feasible": False}).json()["data"]
    assert [c["n"] for c in both] == [1]


def test_by_default_the_front_is_the_searchs_own(api: TestClient, session: Session, job_id: UUID) -> None:
    for n in range(4):
        add_candidate(session, job_id, n, on_front=n in (1, 3))
    answer = api.get(f"{path_of(job_id)}/pareto").json()
    assert ([c["n"] for c in answer["data"]], answer["x"], answer["y"]) == ([3, 1], None, None)


@pytest.mark.parametrize(
    ("query", "pointer"),
    [
        ("x=score", "y"),
        ("y=gmacs", "x"),
        ("x=score&y=score", "y"),
        ("x=beauty&y=score", "x"),
        ("feasible=maybe", "feasible"),
    ],
)
def test_bad_axes_are_refused(api: TestClient, job_id: UUID, query: str, pointer: str) -> None:
    response = api.get(f"{path_of(job_id)}/pareto?{query}")
    assert response.status_code == 422
    assert response.json()["errors"][0]["pointer"] == pointer
