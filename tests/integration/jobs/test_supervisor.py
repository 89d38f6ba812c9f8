"""One attempt from claim to end, in this process, with a real database, a real store and real trainer processes."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select, text

from service.db.models import Artifact, Attempt, Candidate, Checkpoint, Job, JobEvent, JobState, Teacher
from service.jobs import transitions
from service.jobs.events import EventType
from service.jobs.states import AttemptOutcome
from service.jobs.values import Finished, Lost
from tests.integration.jobs.bench import Bench
from tests.waiting import is_alive, wait_until
from workers.rundirs import RunDirs
from workers.supervisor import supervise


def test_normal_run_records_everything(bench: Callable[..., Bench]) -> None:
    run = bench(steps=10)
    assert run.attempt() == Finished(AttemptOutcome.SUCCEEDED, JobState.SUCCEEDED)
    job = run.job
    assert (job.result, job.stage, job.error, job.failures) == ({"steps": 10}, "count", None, 0)
    assert job.device_seconds > 0
    [attempt] = run.rows(Attempt)
    assert attempt.info["versions"] == {"counting": "1"}
    [artifact] = run.rows(Artifact)
    assert (artifact.name, artifact.candidate_n, artifact.fence, artifact.owner) == ("weights.bin", 0, 1, "ada")
    assert b"".join(run.context.store.open_range(artifact.sha256)) == b'{"steps": 10}'
    candidates = run.rows(Candidate)
    assert [row.n for row in candidates] == list(range(10))
    assert [row.n for row in candidates if row.on_front] == [9]
    assert (candidates[0].rank, candidates[0].accuracy) == (0, {"val": 0.5})
    [teacher] = run.rows(Teacher)
    assert teacher.architecture == {"depth": 8}
    assert [(row.n, row.state) for row in run.rows(Checkpoint)] == [(1, {"step": 4}), (2, {"step": 8})]


def test_events_tell_the_story_in_order(bench: Callable[..., Bench]) -> None:
    run = bench(steps=10)
    run.attempt()
    events = run.rows(JobEvent)
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert events[-1].type == EventType.END
    statuses = [event.payload["status"] for event in events if event.type == EventType.JOB_STATUS]
    assert statuses == ["queued", "running", "succeeded"]
    assert [event.payload["step"] for event in events if event.type == EventType.METRIC] == list(range(10))
    told = [c["n"] for event in events if event.type == EventType.CANDIDATE for c in event.payload["best"]]
    assert told == list(range(10))


def test_nothing_is_left_on_disk_but_the_log(bench: Callable[..., Bench]) -> None:
    run = bench()
    run.attempt()
    dirs = RunDirs.of(run.context.settings)
    assert list(dirs.runs.iterdir()) == []
    assert "chatter of a library" in dirs.log_path(run.job_id, 1).read_text()


def test_a_crash_is_retried_from_the_last_checkpoint(bench: Callable[..., Bench], tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    run = bench(fault="crash", fault_at=6, fault_attempts=1, trace=str(trace))
    assert run.attempt() == Finished(AttemptOutcome.FAILED, JobState.QUEUED)
    assert run.attempt() == Finished(AttemptOutcome.SUCCEEDED, JobState.SUCCEEDED)
    assert trace.read_text().split("\n") == [*(f"1 {n}" for n in range(6)), *(f"2 {n}" for n in range(4, 10)), ""]
    first, second = run.rows(Attempt)
    assert (first.error["code"], first.exit_code, first.error["last_known"]["stage"]) == ("worker_lost", 9, "count")
    assert second.info["resumed_from"] == 1
    told = [c["n"] for event in run.events(EventType.CANDIDATE) for c in event.payload["best"]]
    assert told == list(range(10))  # those that were sent again are not told again


def test_a_crash_loop_ends_after_max_failures(bench: Callable[..., Bench]) -> None:
    run = bench(fault="crash", fault_at=2)
    outcomes = [run.attempt() for _ in range(3)]
    assert [o.state for o in outcomes if isinstance(o, Finished)] == [
        JobState.QUEUED,
        JobState.QUEUED,
        JobState.FAILED,
    ]
    error = run.job.error
    assert error is not None
    assert (error["code"], error["retryable"], error["exit_code"]) == ("worker_lost", True, 9)


def test_progress_between_crashes_forgives_them(bench: Callable[..., Bench]) -> None:
    """Only failures without a checkpoint in between count, so a long job survives many rare ones."""
    run = bench(fault="crash", fault_at=6, checkpoint_every=1, steps=10)
    run.attempt()
    assert run.job.failures == 1
    with run.context.sessions.begin() as session:
        session.execute(text("UPDATE job SET failures = 2, spec = spec || '{\"fault_at\": 8}'"))
    run.attempt()
    assert (run.job.state, run.job.failures) == (JobState.QUEUED, 1)


@pytest.mark.parametrize(
    ("fault", "code"), [("diverge", "loss_diverged"), ("bug", "internal"), ("full_disk", "storage_full")]
)
def test_a_typed_error_ends_the_job_at_once(bench: Callable[..., Bench], fault: str, code: str) -> None:
    run = bench(fault=fault)
    assert run.attempt() == Finished(AttemptOutcome.FAILED, JobState.FAILED)
    error = run.job.error
    assert error is not None
    assert error["code"] == code
    assert "secret" not in str(error)
    assert run.rows(Attempt)[0].exit_code == 1


@pytest.mark.parametrize(
    ("fault", "state"),
    [("gpu_oom", JobState.QUEUED), ("crash", JobState.FAILED), ("diverge", JobState.FAILED)],
)
def test_only_errors_that_the_job_names_are_tried_again(
    bench: Callable[..., Bench], fault: str, state: JobState
) -> None:
    run = bench(fault=fault, retry={"on": ["gpu_oom"]})
    assert run.attempt() == Finished(AttemptOutcome.FAILED, state)


@pytest.mark.parametrize(
    ("fault", "settings", "code"),
    [
        ("ignore_stop", {"stall_s": 0.6}, "device_hung"),
        ("frozen", {"lease_s": 1.0}, "device_hung"),
        ("hoard", {"trainer_memory_mb": 700}, "out_of_memory"),
        ("killed", {}, "worker_lost"),
    ],
)
def test_a_trainer_that_cannot_go_on_is_tried_again_with_what_was_known(
    bench: Callable[..., Bench], fault: str, settings: dict[str, Any], code: str
) -> None:
    run = bench(fault=fault, fault_attempts=1)
    run.context = replace(run.context, settings=run.context.settings.model_copy(update=settings))
    assert run.attempt() == Finished(AttemptOutcome.FAILED, JobState.QUEUED)
    error = run.rows(Attempt)[0].error
    assert error is not None
    assert (error["code"], error["retryable"], error["last_known"]["stage"]) == (code, True, "count")
    assert error["last_known"]["peak_rss_bytes"] > 10**6
    assert run.attempt() == Finished(AttemptOutcome.SUCCEEDED, JobState.SUCCEEDED)


def test_a_trainer_that_breaks_the_protocol_is_ended(bench: Callable[..., Bench]) -> None:
    run = bench(fault="garbage", fault_attempts=1)
    assert run.attempt() == Finished(AttemptOutcome.FAILED, JobState.QUEUED)
    assert run.attempt() == Finished(AttemptOutcome.SUCCEEDED, JobState.SUCCEEDED)


def test_a_process_that_escaped_with_the_pipe_does_not_hold_the_job(
    bench: Callable[..., Bench], tmp_path: Path
) -> None:
    run = bench(fault="leak_pipe", fault_at=0, trace=str(tmp_path / "pid"))
    assert run.attempt() == Finished(AttemptOutcome.FAILED, JobState.QUEUED)
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)


def test_processes_that_a_trainer_leaves_behind_are_killed(bench: Callable[..., Bench], tmp_path: Path) -> None:
    run = bench(fault="leave_child", fault_at=0, trace=str(tmp_path / "pid"))
    run.attempt()
    pid = int((tmp_path / "pid").read_text())
    wait_until(lambda: not is_alive(pid), "the loader process is gone")


@pytest.mark.parametrize(
    ("action", "outcome", "state"),
    [
        (transitions.request_cancel, AttemptOutcome.CANCELLED, JobState.CANCELLED),
        (transitions.request_pause, AttemptOutcome.PAUSED, JobState.PAUSED),
    ],
)
def test_cancel_and_pause_of_a_running_job(
    bench: Callable[..., Bench],
    background: Callable[..., Future[Any]],
    action: Callable[..., Any],
    outcome: AttemptOutcome,
    state: JobState,
) -> None:
    run = bench(hold_at=6, gate="/nonexistent")
    attempt = background(run.attempt)
    wait_until(lambda: run.reached(5), "step 5")
    run.act(action)
    assert attempt.result(timeout=10) == Finished(outcome, state)
    assert run.rows(Checkpoint)[-1].state == {"step": 6}  # the one that was written because of the stop
    assert run.job.failures == 0


def test_cancel_between_claim_and_start_starts_nothing(bench: Callable[..., Bench]) -> None:
    run = bench()
    with run.context.sessions.begin() as session:
        claim = transitions.claim_next(session, ["cpu"], "test", 60)
    assert claim is not None
    run.act(transitions.request_cancel)
    assert supervise(run.context, claim) == Finished(AttemptOutcome.CANCELLED, JobState.CANCELLED)
    assert not RunDirs.of(run.context.settings).log_path(run.job_id, 1).exists()


def test_a_paused_job_goes_on_where_it_was(
    bench: Callable[..., Bench], background: Callable[..., Future[Any]], tmp_path: Path
) -> None:
    trace, gate = tmp_path / "trace", tmp_path / "gate"
    run = bench(hold_at=6, gate=str(gate), trace=str(trace))
    attempt = background(run.attempt)
    wait_until(lambda: run.reached(5), "step 5")
    run.act(transitions.request_pause)
    attempt.result(timeout=10)
    gate.touch()
    run.act(transitions.resume)
    run.attempt()
    assert trace.read_text().split("\n") == [*(f"1 {n}" for n in range(6)), *(f"2 {n}" for n in range(6, 10)), ""]


def test_draining_hands_the_job_back_without_a_failure(
    bench: Callable[..., Bench], background: Callable[..., Future[Any]]
) -> None:
    run = bench(hold_at=6, gate="/nonexistent")
    attempt = background(run.attempt)
    wait_until(lambda: run.reached(5), "step 5")
    run.context.draining.set()
    assert attempt.result(timeout=10) == Finished(AttemptOutcome.PREEMPTED, JobState.QUEUED)
    assert (run.job.failures, run.job.published_at) == (0, None)


def test_a_trainer_that_ignores_the_stop_is_killed(
    bench: Callable[..., Bench], background: Callable[..., Future[Any]]
) -> None:
    run = bench(fault="ignore_stop", fault_at=3)
    attempt = background(run.attempt)
    wait_until(lambda: run.reached(2), "step 2")
    run.act(transitions.request_cancel)
    assert attempt.result(timeout=10) == Finished(AttemptOutcome.CANCELLED, JobState.CANCELLED)
    assert run.rows(Attempt)[0].exit_code == -15


def test_a_spent_budget_ends_a_job_that_has_nothing_to_show(bench: Callable[..., Bench]) -> None:
    run = bench(hold_at=6, gate="/nonexistent", budget={"max_wall_seconds": 1})
    assert run.attempt() == Finished(AttemptOutcome.FAILED, JobState.FAILED)
    error = run.job.error
    assert error is not None
    assert error["code"] == "budget_exhausted"


def test_a_spent_budget_lets_a_job_finish_with_the_best_so_far(bench: Callable[..., Bench]) -> None:
    run = bench(hold_at=6, gate="/nonexistent", budget={"max_wall_seconds": 1}, finish_on_budget=True)
    assert run.attempt() == Finished(AttemptOutcome.SUCCEEDED, JobState.SUCCEEDED)
    assert run.job.stop_reason == "budget"


def test_cancel_does_not_wait_for_a_job_that_finishes_up(
    bench: Callable[..., Bench], background: Callable[..., Future[Any]]
) -> None:
    run = bench(fault="ignore_stop", fault_at=3, budget={"max_wall_seconds": 1})
    attempt = background(run.attempt)
    with run.context.sessions() as session:
        spent = select(Job.deadline_at < func.clock_timestamp())
        wait_until(lambda: session.scalar(spent), "the budget is spent")
    run.act(transitions.request_cancel)
    assert attempt.result(timeout=20) == Finished(AttemptOutcome.CANCELLED, JobState.CANCELLED)


def test_a_lost_fence_kills_the_trainer_and_writes_nothing(
    bench: Callable[..., Bench], background: Callable[..., Future[Any]]
) -> None:
    run = bench(hold_at=6, gate="/nonexistent")
    attempt = background(run.attempt)
    wait_until(lambda: run.reached(5), "step 5")
    with run.context.sessions.begin() as session:
        session.execute(text("UPDATE job SET lease_until = now() - interval '1 second'"))
        [reaped] = transitions.reap_expired(session, backoff_s=60)
    assert attempt.result(timeout=10) == Lost()
    job = run.job
    assert (job.state, job.fence) == (JobState.QUEUED, reaped.fence + 1)
    assert [row.outcome for row in run.rows(Attempt)] == [AttemptOutcome.LOST]
    assert max(row.state["step"] for row in run.rows(Checkpoint)) == 4
