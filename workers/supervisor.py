"""Runs one claimed job to its end: prepares, starts a trainer, records what it reports, and says how it ended."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, assert_never

import structlog
from sqlalchemy import update
from sqlalchemy.orm import Session

from service.db.models import Attempt, JobKind
from service.errors import BudgetExhausted, DeviceHung, ServiceError, StorageFull, Unavailable, WorkerLost
from service.ids import IdKind, format_id
from service.jobs import transitions
from service.jobs.retries import retries
from service.jobs.values import Claim, Finished, Lost
from service.store import BlobMissing
from service.store.room import is_full
from workers.child import Child
from workers.context import WorkerContext
from workers.lease import DATABASE_DOWN, LeaseKeeper
from workers.materialise import NotNeeded, Prepared, materialise, materialise_helper
from workers.mediation import ShardMediator
from workers.memory import suspicion
from workers.promote import FileRefused, hold, promote_checkpoint, promote_result, upload
from workers.protocol import (
    Alive,
    CheckpointMessage,
    ErrorMessage,
    ExitCode,
    FileRef,
    Metric,
    Progress,
    Resource,
    Result,
    TrainerMessage,
)
from workers.recording import Recorder
from workers.retention import remove_unneeded
from workers.rundirs import RunDirs
from workers.shard_messages import HelpWithShard, OpenShards, SeekHelpers, TakeShard

log = structlog.get_logger(__name__)
Json = dict[str, Any]
T = TypeVar("T")

_NO_TIME = "The job's time ran out before it had a result; start a search with a larger budget."

_FIRST_WORD_S = 120.0
"""A trainer that starts on a busy machine may need a while before it says anything."""

_NO_ROOM = "No room left in the worker's data folder; free some and retry the job."

_INTERNAL = ServiceError("Something went wrong inside the service; the attempt's log has the details.")


@dataclass(frozen=True, slots=True)
class Succeeded:
    """The trainer sent a result and ended in order."""

    result: Result


@dataclass(frozen=True, slots=True)
class Stopped:
    """The trainer was stopped on purpose, or never started."""

    exit_code: int | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """The attempt failed. ``error`` is ``ServiceError.to_json``; ``code``: what the job's ``retry.on`` may name."""

    error: Json
    code: str
    exit_code: int | None = None

    @classmethod
    def by(cls, error: ServiceError, exit_code: int | None = None) -> Failed:
        """The ending that an error means."""
        return cls.by_record(error.to_json(), exit_code)

    @classmethod
    def by_record(cls, error: Json, exit_code: int | None = None) -> Failed:
        """The ending that a stored error means."""
        return cls(error, error["code"], exit_code)


Ending = Succeeded | Stopped | Failed


def supervise(context: WorkerContext, claim: Claim) -> Finished | Lost:
    """Run a job that was just claimed until this attempt is over, whatever happens to it."""
    with structlog.contextvars.bound_contextvars(job=format_id(IdKind.JOB, claim.job_id), fence=claim.fence):
        log.info("attempt_started", attempt=claim.attempt, kind=claim.kind)
        with LeaseKeeper(context.sessions, claim, context.settings, context.draining) as keeper:
            finished = Supervisor(context, claim, keeper).run()
        match finished:
            case Lost():
                log.warning("attempt_lost")
            case Finished():
                log.info("attempt_ended", outcome=finished.outcome, state=finished.state)
    return finished


class Supervisor:
    """The owner of one attempt. Belongs to one thread."""

    def __init__(self, context: WorkerContext, claim: Claim, keeper: LeaseKeeper) -> None:
        self._context = context
        self._claim = claim
        self._keeper = keeper
        self._dirs = RunDirs.of(context.settings)
        self._recorder = Recorder(claim, keeper.write)
        self._mediator = ShardMediator(claim, keeper.write, context.settings.lease_s)
        self._run_dir = Path()
        self._next_checkpoint = 1
        self._stored: set[str] = set()  # digests of files that the store has had from this attempt, or given to it
        self._unpromoted: list[Resource] = []
        self._result: Result | None = None
        self._error: Json | None = None
        self._last_known: Json = {}
        # It says that it is alive several times a lease, see workers.watchdog.
        self._silence_s = 2 * context.settings.lease_s
        self._heard_by = 0.0
        self._is_frozen = False

    def run(self) -> Finished | Lost:
        """Prepare, train, conclude."""
        try:
            self._run_dir = self._dirs.make(self._claim.job_id, self._claim.fence)
            ending = self._execute()
            if isinstance(ending, Succeeded):
                self._upload_patiently(ending.result.artifacts)
                return self._write_held(ending.result.artifacts, lambda session: self._finish(session, ending))
            return self._keeper.write(lambda session: self._finish(session, ending))
        except ServiceError as error:
            ending = Failed.by(error)
        except Exception as error:
            log.exception("attempt_broke")
            if is_full(error):
                ending = Failed.by(StorageFull(_NO_ROOM))
            else:  # What broke is the service and not the job: to the job it is as if its worker had been lost.
                ending = Failed(_INTERNAL.to_json(), WorkerLost.code)
        finally:
            self._dirs.remove(self._claim.job_id, self._claim.fence)
        return self._keeper.write(lambda session: self._finish(session, ending))

    def _execute(self) -> Ending:
        if self._keeper.stop_reason is not None:
            return self._stopped(None)
        prepared = self._prepare()
        if isinstance(prepared, Lost):
            return Stopped()
        if isinstance(prepared, NotNeeded):
            return Succeeded(Result(result={"shards": 0}, artifacts=[]))
        self._note_start(prepared)
        log_path = self._dirs.log_path(self._claim.job_id, self._claim.fence)
        memory_bytes = self._context.settings.trainer_memory_mb * 10**6 or None
        child = Child(self._context.command, prepared.start.threads, log_path, memory_bytes)
        with closing(child):
            self._keeper.attach(child, prepared.start)
            self._pump(child)
            return self._judge(child)

    def _prepare(self) -> Prepared | NotNeeded | Lost:
        prepare = materialise_helper if self._claim.kind is JobKind.SCORING else materialise
        return prepare(self._context, self._claim, self._keeper, self._run_dir)

    def _note_start(self, prepared: Prepared) -> None:
        self._next_checkpoint = prepared.checkpoint_n + 1
        self._stored |= prepared.fetched
        note = {"threads": prepared.start.threads, "resumed_from": prepared.checkpoint_n or None}
        self._keeper.write(
            lambda session: session.execute(
                update(Attempt)
                .where(Attempt.job_id == self._claim.job_id, Attempt.fence == self._claim.fence)
                .values(info=Attempt.info.op("||")(note))
            )
        )

    def _pump(self, child: Child) -> None:
        """Take what the trainer says until it ends; one that cannot even say that it is alive is killed."""
        self._heard_by = time.monotonic() + max(self._silence_s, _FIRST_WORD_S)
        while not child.drained and not self._keeper.lost:
            message = child.receive(self._recorder.wait_s)
            if message is not None:
                self._take(message, child)
                self._heard_by = time.monotonic() + self._silence_s
            elif time.monotonic() > self._heard_by:
                self._is_frozen = True
                child.kill()
            self._recorder.flush_if_due()
        self._recorder.flush()

    def _take(self, message: TrainerMessage, child: Child) -> None:
        match message:
            case CheckpointMessage():
                self._promote_checkpoint(message)
            case Result():
                self._result = message
            case ErrorMessage():
                self._error = message.error
            case Alive():
                pass  # it was heard
            case SeekHelpers() | OpenShards() | TakeShard() | HelpWithShard():
                self._mediator.take(message, child.send)
            case _:
                if isinstance(message, Progress | Metric):
                    self._last_known |= message.model_dump(mode="json", include={"stage", "fraction", "step"})
                self._recorder.add(message)

    def _promote_checkpoint(self, message: CheckpointMessage) -> None:
        names = {ref.name for ref in message.files}
        held_over = [resource for resource in self._unpromoted if resource.file in names]
        message = message.model_copy(update={"resources": [*held_over, *message.resources]})
        self._unpromoted = message.resources  # until it is promoted: each resource is announced only once
        try:
            if message.binding:
                self._upload_patiently(message.files)
            else:
                upload(self._context.store, self._run_dir, message.files, self._stored)
            self._recorder.flush()
            replaced = self._write_held(message.files, lambda session: self._insert_checkpoint(session, message))
        except FileRefused as error:
            if message.binding:
                raise
            # A trainer that is ahead has replaced the files by those of a later checkpoint, whose message follows.
            log.info("checkpoint_superseded", stage=message.stage, why=str(error))
            return
        except Unavailable as error:
            if message.binding:
                raise
            log.warning("checkpoint_not_stored", stage=message.stage, error=error.detail)
            return
        self._next_checkpoint += 1
        self._unpromoted = []
        if not isinstance(replaced, Lost):
            self._remove(replaced)

    def _insert_checkpoint(self, session: Session, message: CheckpointMessage) -> frozenset[str] | Lost:
        hold(session, self._context.store, message.files)
        return promote_checkpoint(session, self._claim, self._next_checkpoint, message)

    def _write_held(self, refs: Sequence[FileRef], change: Callable[[Session], T]) -> T | Lost:
        """Write rows that name files; one that was removed since it was uploaded is uploaded again.

        Raises:
            StorageFull, Unavailable, FileRefused: see :meth:`_upload_patiently`.
        """
        while True:
            try:
                return self._keeper.write(change)
            except BlobMissing as error:
                log.info("blob_removed_meanwhile", sha256=error.sha256)
                self._stored.discard(error.sha256)
            except Unavailable as error:
                log.warning("store_not_asked", error=error.detail)
            self._upload_patiently(refs)

    def _remove(self, digests: frozenset[str]) -> None:
        """Remove what older checkpoints needed, or leave it to the sweep."""
        try:
            remove_unneeded(self._context.sessions, self._context.store, digests)
        except (Unavailable, *DATABASE_DOWN) as error:
            log.warning("blobs_not_removed", count=len(digests), error=str(error).splitlines()[0])
        self._stored -= digests

    def _judge(self, child: Child) -> Ending:
        code = child.wait()
        reason = self._keeper.stop_reason
        if code == ExitCode.DONE and self._result is not None:
            return Succeeded(self._result)
        if code == ExitCode.ERROR and self._error is not None:
            known = {**self._facts(), **self._error.get("last_known", {})}
            return Failed.by_record({**self._error, "last_known": known}, code)
        if reason is not None or code in (ExitCode.STOPPED, ExitCode.LEASE_LOST):
            return self._stopped(code)
        return Failed.by(self._crash(code), code)

    def _stopped(self, code: int | None) -> Ending:
        if self._keeper.stop_reason == "budget":
            return Failed.by(BudgetExhausted(_NO_TIME), code)
        return Stopped(code)

    def _crash(self, code: int) -> ServiceError:
        where = f"in stage {self._last_known.get('stage', 'start')} of attempt {self._claim.attempt}"
        extra = {"exit_code": code, "last_known": self._facts()}
        if self._is_frozen:
            detail = f"The trainer said nothing for {self._silence_s:g} s {where}: it is frozen."
            return DeviceHung(detail, extra=extra)
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        why = suspicion(self._keeper.facts) if code == -signal.SIGKILL else ""
        detail = f"The trainer {how} {where}, without saying why{why}."
        return WorkerLost(detail, extra=extra)

    def _facts(self) -> Json:
        """What was last known of the trainer: where its work was, and its memory."""
        return self._last_known | self._keeper.facts

    def _upload_patiently(self, refs: Sequence[FileRef]) -> None:
        """Upload what the attempt cannot do without; a store that does not answer gets as long as a lease to come back.

        Raises:
            StorageFull, Unavailable: the files cannot be stored.
            FileRefused: a file is not what the trainer said.
        """
        give_up_at = time.monotonic() + self._context.settings.lease_s
        while True:
            try:
                return upload(self._context.store, self._run_dir, refs, self._stored)
            except Unavailable:
                if time.monotonic() > give_up_at or self._keeper.lost:
                    raise
                time.sleep(self._context.settings.desired_poll_s)

    def _finish(self, session: Session, ending: Ending) -> Finished | Lost:
        job_id, fence = self._claim.job_id, self._claim.fence
        match ending:
            case Succeeded(result):
                hold(session, self._context.store, result.artifacts)
                return promote_result(session, self._claim, result)
            case Stopped(exit_code):
                return transitions.finish_stopped(session, job_id, fence, exit_code=exit_code)
            case Failed(error, code, exit_code):
                return transitions.finish_failed(
                    session,
                    job_id,
                    fence,
                    error=error,
                    retryable=retries(self._claim.spec, code),
                    backoff_s=self._context.settings.retry_backoff_s,
                    exit_code=exit_code,
                )
            case _:
                assert_never(ending)
