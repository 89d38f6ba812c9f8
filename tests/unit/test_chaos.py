"""The soak's own parts: what it plans, and that its checks find what they look for."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.faults.checks import leftover_files, overlap_problems, stored_blobs
from benchmarks.faults.plan import Fault, make_plan


def test_a_plan_is_a_function_of_its_seed() -> None:
    assert make_plan(1, 60, 100, 10, 2) == make_plan(1, 60, 100, 10, 2)
    assert make_plan(1, 60, 100, 10, 2) != make_plan(2, 60, 100, 10, 2)


def test_every_kind_of_fault_is_planned() -> None:
    plan = make_plan(3, 60, 100, 10, 2)
    assert len(plan.moments) == 100
    assert {moment.fault for moment in plan.moments} == set(Fault)
    assert [moment.at_s for moment in plan.moments] == sorted(moment.at_s for moment in plan.moments)


@pytest.mark.parametrize(
    ("lines", "problems"),
    [("1 0 1.0\n1 1 1.1\n3 1 2.0\n", 0), ("1 0 1.0\n3 0 2.0\n1 1 2.1\n3 1 2.2\n", 1)],
    ids=["one after the other", "at once"],
)
def test_attempts_that_wrote_at_once_are_found(tmp_path: Path, lines: str, problems: int) -> None:
    (tmp_path / "trace").write_text(lines)
    assert len(list(overlap_problems(tmp_path / "trace"))) == problems


def test_files_that_are_left_are_found(tmp_path: Path) -> None:
    for name in ("runs/job_1/1/x", "store/partial/.partial-x", "cache/a.partial/x", "cache/a/x"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch()
    assert sorted(leftover_files(tmp_path)) == ["cache/a.partial", "runs/job_1", "store/partial/.partial-x"]


def test_blobs_are_found_by_their_digest(tmp_path: Path) -> None:
    digest = "ab" * 32
    path = tmp_path / "blobs" / "sha256" / digest[:2] / digest[2:]
    path.parent.mkdir(parents=True)
    path.touch()
    assert stored_blobs(tmp_path) == {digest}
