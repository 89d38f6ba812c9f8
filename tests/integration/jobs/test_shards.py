"""Shards in a real PostgreSQL: who gets which, who may write what, and what ends when."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest
from sqlalchemy import select
from sqlalchemy.orm import Session, sessionmaker

from service.db.models import Desired, Job, JobKind, JobState, Worker
from service.db.shard_models import Shard
from service.jobs import transitions
from service.jobs.values import Claim, Lost
from service.shards import board
from service.shards.board import Grant, Holder, Search, Turn
from tests.integration.jobs.rows import claim, claim_one, enqueue, expire, in_transaction, load
from tests.unit.workers.stages.test_scoring import SPACE, scorer
from tests.unit.workers.stages.test_shards import SUMS, population
from workers.channel import Channel
from workers.mediation import ShardMediator
from workers.protocol import TrainerMessage
from workers.stages.shards.boards import Idle, SharedBoard
from workers.stages.shards.crew import Crew
from workers.stages.shards.helper import HelperBoard
from workers.stages.shards.measuring import ShardMeter

Sessions = sessionmaker[Session]
LEASE_S = 60.0


class Scene:
    """A search that runs, and helpers of it."""

    def __init__(self, sessions: Sessions, helpers: int = 1) -> None:
        self.sessions = sessions
        self.claim = claim_one(sessions)
        self.search = Search(self.claim.job_id, self.claim.fence)
        self.seek(helpers)

    def seek(self, count: int) -> None:
        in_transaction(self.sessions, lambda session: board.seek_helpers(session, self.search, count, {}, []))

    def offer(self, *numbers: int, first: int = 0) -> None:
        tasks = {n: f"task {n}" for n in numbers}
        in_transaction(self.sessions, lambda session: board.offer(session, self.search, first, tasks))

    def take(self, *have: int, hand: int = 0, patience_s: float = 1e6, search: Search | None = None) -> Turn | Lost:
        return in_transaction(  # type: ignore[no-any-return]
            self.sessions,
            lambda session: board.take(
                session, search or self.search, hand, have=have, patience_s=patience_s, most_results=10
            ),
        )

    def help(self, helper: Claim, done: tuple[int, str] | None = None, hand: int = 0) -> Grant | Lost:
        holder = Holder(helper.job_id, helper.fence, hand)
        return in_transaction(  # type: ignore[no-any-return]
            self.sessions, lambda session: board.help_out(session, holder, self.search, done, LEASE_S)
        )

    def helpers(self, *states: JobState) -> list[Job]:
        with self.sessions() as session:
            query = select(Job).where(Job.parent_id == self.claim.job_id).order_by(Job.id)
            return [job for job in session.scalars(query) if job.state in (states or tuple(JobState))]

    def shards(self) -> list[Shard]:
        with self.sessions() as session:
            return list(session.scalars(select(Shard).order_by(Shard.n)))


@pytest.fixture
def scene(sessions: Sessions) -> Scene:
    return Scene(sessions)


def test_helpers_are_children_that_wait_behind_every_other_job(sessions: Sessions) -> None:
    scene = Scene(sessions, helpers=2)
    scene.seek(2)  # the answer to the first commit was lost
    first, second = scene.helpers()
    assert (first.kind, first.state, first.owner) == (JobKind.SCORING, JobState.QUEUED, "ada")
    assert first.spec["fence"] == scene.claim.fence
    last = enqueue(sessions, priority=-100)
    assert [claim(sessions).job_id for _ in range(3)] == [last, first.id, second.id]


def test_search_and_helper_take_the_longest_first_and_never_the_same(scene: Scene) -> None:
    helper = claim(scene.sessions)
    scene.offer(0, 1, 2)
    assert scene.help(helper) == Grant("task 0")
    assert scene.take() == Turn("task 1")
    assert scene.take(1) == Turn("task 2")
    assert scene.take(1, 2) == Turn()
    assert scene.help(helper, (0, "found 0")) == Grant()
    assert scene.take(1, 2) == Turn(results={0: "found 0"})


def test_who_asks_again_gets_the_shard_that_it_holds(scene: Scene) -> None:
    helper = claim(scene.sessions)
    scene.offer(0, 1, 2, 3)
    assert scene.help(helper) == scene.help(helper) == Grant("task 0")
    assert scene.take() == scene.take() == Turn("task 1")
    assert scene.take(hand=1) == scene.take(hand=1) == Turn("task 2")


def test_the_first_result_of_a_shard_stays(scene: Scene) -> None:
    helper = claim(scene.sessions)
    scene.offer(0)
    scene.help(helper)
    scene.help(helper, (0, "first"))
    scene.help(helper, (0, "second"))
    assert scene.take() == Turn(results={0: "first"})


def test_a_shard_is_free_again_when_the_attempt_that_held_it_is_over(scene: Scene) -> None:
    helper = claim(scene.sessions)
    scene.offer(0)
    scene.help(helper)
    assert scene.take() == Turn()
    expire(scene.sessions, helper.job_id)
    in_transaction(scene.sessions, lambda session: transitions.reap_expired(session, 0.0))
    assert scene.take() == Turn("task 0")
    assert scene.help(helper, (0, "late")) == Lost()
    assert scene.take() == Turn("task 0")


def test_what_is_held_for_too_long_is_measured_by_the_search_too(scene: Scene) -> None:
    helper = claim(scene.sessions)
    scene.offer(0)
    scene.help(helper)
    assert scene.take(hand=1, patience_s=0) == Turn()
    assert scene.take(patience_s=0) == Turn("task 0")
    scene.help(helper, (0, "slow but there"))
    assert scene.take(patience_s=0) == Turn(results={0: "slow but there"})


def test_answers_to_shards_that_are_over_are_dropped(scene: Scene) -> None:
    helper = claim(scene.sessions)
    scene.offer(0, 1)
    scene.help(helper)
    scene.offer(2, first=2)
    assert scene.help(helper, (0, "late")) == Grant("task 2")
    assert [(shard.n, shard.result) for shard in scene.shards()] == [(2, None)]


@pytest.mark.parametrize("end", ["succeed", "stop", "fail", "reap"])
def test_helpers_and_shards_end_with_the_attempt_of_the_search(sessions: Sessions, end: str) -> None:
    scene = Scene(sessions, helpers=2)
    helper, (job_id, fence) = claim(sessions), (scene.claim.job_id, scene.claim.fence)
    scene.offer(0)
    with sessions.begin() as session:
        match end:
            case "succeed":
                transitions.finish_succeeded(session, job_id, fence, result={})
            case "stop":
                transitions.finish_stopped(session, job_id, fence)
            case "fail":
                transitions.finish_failed(session, job_id, fence, error={}, retryable=True, backoff_s=0)
    if end == "reap":
        expire(sessions, job_id)
        in_transaction(sessions, lambda session: transitions.reap_expired(session, 0.0))
    assert scene.shards() == []
    running, queued = scene.helpers()
    assert (running.id, running.state, running.desired) == (helper.job_id, JobState.RUNNING, Desired.CANCEL)
    assert queued.state == JobState.CANCELLED
    assert scene.help(helper) == Grant(over="search")
    assert isinstance(scene.take(), Lost)


def test_the_next_attempt_has_helpers_and_shards_of_its_own(scene: Scene) -> None:
    scene.offer(0)
    old = scene.search
    in_transaction(scene.sessions, lambda session: transitions.finish_stopped(session, *_key(old)))
    again = claim(scene.sessions)
    assert again.job_id == old.job_id
    scene.search = Search(again.job_id, again.fence)
    scene.seek(1)
    scene.offer(0)
    assert [job.state for job in scene.helpers()] == [JobState.CANCELLED, JobState.QUEUED]
    assert scene.take(search=old) == Lost()
    assert scene.take() == Turn("task 0")


def _key(search: Search) -> tuple[UUID, int]:
    return search.job_id, search.fence


def worker(sessions: Sessions, busy: int) -> None:
    row: dict[str, Any] = {"name": f"w{busy}", "queues": ["cpu"], "slots": 3, "busy": busy, "info": {}}
    in_transaction(sessions, lambda session: session.add(Worker(**row)))


def test_the_youngest_helpers_hand_their_slots_to_jobs_that_wait(sessions: Sessions) -> None:
    scene = Scene(sessions, helpers=2)
    older, younger = claim(sessions), claim(sessions)
    scene.offer(0, 1)
    worker(sessions, busy=3)
    assert scene.help(older) == Grant("task 0")
    enqueue(sessions, priority=-100)
    assert scene.help(older, (0, "found 0")) == Grant("task 1")
    assert scene.help(younger) == Grant(over="slot")


def test_no_helper_makes_way_while_a_slot_is_idle(scene: Scene) -> None:
    helper = claim(scene.sessions)
    scene.offer(0)
    worker(scene.sessions, busy=2)
    enqueue(scene.sessions)
    assert scene.help(helper) == Grant("task 0")


class Wire(Channel):
    """Lets a mediator answer at once, as a supervisor does at the other end of the pipes."""

    def __init__(self, sessions: Sessions, claimed: Claim) -> None:
        super().__init__(io.BytesIO())
        self._mediator = ShardMediator(claimed, lambda change: in_transaction(sessions, change), LEASE_S)

    def send(self, message: TrainerMessage) -> None:
        self._mediator.take(message, self.deliver)  # type: ignore[arg-type]


@pytest.fixture
def over() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


@pytest.mark.parametrize("dies", [False, True], ids=["helps", "is killed"])
def test_a_population_has_the_same_measures_with_a_helper(scene: Scene, over: threading.Event, dies: bool) -> None:
    archs, one, other = population(), scorer(), scorer()
    helper, holds = claim(scene.sessions), threading.Event()
    measured: list[int] = []

    def lend_a_hand() -> None:
        tasks, meter = HelperBoard(Wire(scene.sessions, helper), Idle(1)), ShardMeter(other, SPACE)
        done = None
        while not over.is_set() and tasks.over is None:
            order = tasks.take(0, done)
            done = None
            if order is None:
                tasks.wait()
                continue
            if dies:
                expire(scene.sessions, helper.job_id)
                in_transaction(scene.sessions, lambda session: transitions.reap_expired(session, 0.0))
                holds.set()
                return
            holds.set()
            done = meter.measure(order, lambda: None)
            measured.append(order.n)

    def poll() -> None:
        assert holds.wait(30)

    thread = threading.Thread(target=lend_a_hand, daemon=True)
    thread.start()
    crew = Crew(one, ShardMeter(one, SPACE), SharedBoard(Wire(scene.sessions, scene.claim), Idle(1)), hands=2)
    found = crew.measure(archs, [SUMS] * len(archs), poll)
    assert found == scorer().score_all(archs, [SUMS] * len(archs))
    assert bool(measured) != dies
    assert load(scene.sessions, scene.claim.job_id).state == JobState.RUNNING
    over.set()
    thread.join()
