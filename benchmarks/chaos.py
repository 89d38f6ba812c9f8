"""Many small jobs under random faults: does each end exactly once, with the result of its undisturbed twin?

The whole service runs as real processes: two relays, two workers of two slots, the API, PostgreSQL and Valkey behind
TCP proxies. Most jobs run a light trainer whose result depends on every step (``faults/chain.py``), some the real
stages. What is done when follows from the seed; whom it hits depends on who is there, and so on the machine.

Checked at the end: all jobs are terminal, each ended once, results, candidates and files equal those of a twin that
nothing disturbed, no attempt wrote after a later one had begun, and no process, temporary file or unreferenced blob is
left.

    python benchmarks/chaos.py [--minutes 20] [--seed 1] [--jobs 100] [--faults 500] [--real 4]
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from uuid import UUID

from faults import checks
from faults.plan import Fault, LightJob, Moment, Plan, make_plan
from faults.world import NoVictim, World, command_of, marked_processes
from sqlalchemy import select
from sqlalchemy.exc import DBAPIError

from service.client import Client
from service.client.errors import ClientError
from service.db.models import TERMINAL_STATES, Attempt, Job, JobState
from service.ids import IdKind, format_id, parse_id
from service.store import open_store
from workers.retention import sweep_blobs

_TICK_S = 0.05
_DRAIN_LIMIT_S = 300.0
_LEFT_BEHIND_S = 15.0

REAL = {
    "method": "masktas",
    "dataset": "digits",
    "teacher": {
        "pretrain": {
            "architecture": {"embed_dim": 32, "depth": 1, "num_heads": 2, "head_dim": 16, "mlp_ratio": 2.0},
            "decoder": {"embed_dim": 16, "depth": 1, "num_heads": 2},
            "epochs": 1,
            "batch_size": 128,
        }
    },
    "space": {
        "preset": "micro",
        "overrides": {"embed_dim": [16, 32], "depth": [1, 2], "num_heads": [1, 2], "mlp_ratio": [1.0, 2.0]},
    },
    "supernet": {"decoder": {"embed_dim": 16, "depth": 1, "num_heads": 2}, "epochs": 1, "batch_size": 128},
    "search": {"population": 6, "generations": 2, "parents": 3, "evaluation": {"images": 64}},
    "retrain": {"epochs": 1, "batch_size": 128, "top_k": 1},
    "retry": {"max_failures": 100},
    "seed": 0,
}


class Run:
    """One run of a plan, and what it found."""

    def __init__(self, world: World, plan: Plan) -> None:
        self._world = world
        self._plan = plan
        self.jobs: dict[LightJob, UUID] = {}
        self.real: list[UUID] = []
        self.inflicted: Counter[Fault] = Counter()
        self.instead = 0
        self.swept = 0
        self._twins: dict[object, checks.Outcome] = {}

    def undisturbed(self) -> None:
        """Run each kind of job once in peace."""
        shapes = {job.twin: job for job in self._plan.jobs if not job.poisonous}
        ids = {twin: self._world.submit(job, f"twin-{number}") for number, (twin, job) in enumerate(shapes.items())}
        if self._plan.real_at_s:
            ids |= {REAL["method"]: self._submit_real()}
        self._wait(lambda: self._open(ids.values()) == 0, "the undisturbed twins end")
        with self._world.sessions() as session:
            self._twins = {twin: checks.outcome_of(session, job_id) for twin, job_id in ids.items()}
            for job_id in ids.values():
                assert session.get_one(Job, job_id).state == JobState.SUCCEEDED, "a twin fails without any fault"

    def disturbed(self) -> None:
        """Submit and hurt as planned, then let everything come to its end."""
        begun = time.monotonic()
        for at_s, act in self._agenda():
            while time.monotonic() - begun < at_s:
                self._world.tend()
                time.sleep(_TICK_S)
            act()
        self._world.calm()
        self._wait(self._over, "all jobs end")

    def _agenda(self) -> list[tuple[float, Callable[[], None]]]:
        agenda: list[tuple[float, Callable[[], None]]] = []
        agenda += [(job.at_s, lambda job=job: self._submit(job)) for job in self._plan.jobs]
        agenda += [(at_s, lambda: self.real.append(self._submit_real())) for at_s in self._plan.real_at_s]
        agenda += [(moment.at_s, lambda moment=moment: self._inflict(moment)) for moment in self._plan.moments]
        return sorted(agenda, key=lambda entry: entry[0])

    def _submit(self, job: LightJob) -> None:
        job_id = self._world.submit(job)
        self.jobs[job] = job_id
        if job.poisonous or job.cancel_at_s is not None:
            self._world.left_alone.add(job_id)
        if job.cancel_at_s is not None:
            self._world.want(job_id, "cancel", time.monotonic() + job.cancel_at_s - job.at_s)

    def _submit_real(self) -> UUID:
        while True:
            try:
                with Client(self._world.service.url, self._world.service.api_key) as client:
                    return parse_id(IdKind.JOB, client.search(REAL).id)
            except ClientError:  # after several tries; the key of the request was the same in each
                self._world.tend()

    def _inflict(self, moment: Moment) -> None:
        """Let the fault happen; one that finds no victim just now makes room for the next kind that does."""
        kinds = list(Fault)
        first = kinds.index(moment.fault)
        for kind in kinds[first:] + kinds[:first]:
            try:
                self._world.inflict(Moment(moment.at_s, kind, moment.choice, moment.strength))
            except NoVictim:
                continue
            self.inflicted[kind] += 1
            self.instead += kind is not moment.fault
            return

    def _over(self) -> bool:
        return not self._world.has_wishes and self._open([*self.jobs.values(), *self.real]) == 0

    def _open(self, job_ids: object) -> int:
        ids = list(job_ids)  # type: ignore[call-overload]
        try:
            with self._world.sessions() as session:
                states = session.scalars(select(Job.state).where(Job.id.in_(ids))).all()
        except DBAPIError:
            return len(ids)
        return sum(state not in TERMINAL_STATES for state in states)

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        give_up_at = time.monotonic() + _DRAIN_LIMIT_S
        while not condition():
            if time.monotonic() > give_up_at:
                print(f"waited {_DRAIN_LIMIT_S:g} s in vain: {what}")
                return
            self._world.tend()
            time.sleep(0.2)

    # --- what came of it ---

    def problems(self) -> Iterator[str]:
        """Everything that is not as it must be while the service still runs."""
        with self._world.sessions() as session:
            for job, job_id in self.jobs.items():
                found = [*checks.job_problems(session, job_id), *checks.overlap_problems(self._world.trace(job.name))]
                found += self._unexpected(session.get_one(Job, job_id), job)
                if session.get_one(Job, job_id).state == JobState.SUCCEEDED:
                    found += _differences(self._twins[job.twin], checks.outcome_of(session, job_id))
                yield from (f"{job.name} {format_id(IdKind.JOB, job_id)}: {problem}" for problem in found)
            for job_id in self.real:
                found = list(checks.job_problems(session, job_id))
                if (state := session.get_one(Job, job_id).state) != JobState.SUCCEEDED:
                    found.append(f"is {state}")
                else:
                    found += _differences(self._twins[REAL["method"]], checks.outcome_of(session, job_id))
                yield from (f"real {format_id(IdKind.JOB, job_id)}: {problem}" for problem in found)
        yield from self._left_behind()

    def _unexpected(self, job: Job, order: LightJob) -> list[str]:
        expected = {JobState.SUCCEEDED}
        if order.poisonous:
            expected = {JobState.FAILED}
        if order.cancel_at_s is not None:
            expected |= {JobState.CANCELLED}
        if job.state not in expected:
            return [f"is {job.state}, expected {' or '.join(sorted(expected))}: {job.error}"]
        return []

    def _left_behind(self) -> Iterator[str]:
        data_dir = self._world.service.settings.data_dir
        store = data_dir / "store"

        def found() -> list[str]:
            # The workers' sweep waits an hour before it takes a blob for an orphan.
            self.swept += sweep_blobs(self._world.sessions, open_store(store.as_uri()), min_age_s=0)
            with self._world.sessions() as session:
                referenced = checks.referenced_blobs(session)
            stored = checks.stored_blobs(store)
            orphans, missing = stored - referenced, referenced - stored
            return [
                *(f"process {pid} is left: {command_of(pid)!r}" for pid in self._world.trainers()),
                *(f"file {name} is left" for name in checks.leftover_files(data_dir)),
                *([f"{len(orphans)} blobs are left that no row names"] if orphans else []),
                *([f"{len(missing)} blobs are missing that rows name"] if missing else []),
            ]

        give_up_at = time.monotonic() + _LEFT_BEHIND_S
        while (left := found()) and time.monotonic() < give_up_at:
            time.sleep(0.5)
        yield from left

    def attempts(self) -> Mapping[str, int]:
        """How the attempts ended."""
        with self._world.sessions() as session:
            return Counter(map(str, session.scalars(select(Attempt.outcome))))


def _differences(expected: checks.Outcome, found: checks.Outcome) -> list[str]:
    names = ("result", "candidates", "files")
    return [
        f"its {name} are not those of its twin" for name in names if getattr(expected, name) != getattr(found, name)
    ]


def main() -> None:
    """Run, print what was done and what was found, and fail when anything was."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20.0, help="of faults (default 20)")
    parser.add_argument("--seed", type=int, default=1, help="of what is done when (default 1)")
    parser.add_argument("--jobs", type=int, default=100, help="light jobs (default 100)")
    parser.add_argument("--faults", type=int, default=None, help="how many (default 25 a minute)")
    parser.add_argument("--real", type=int, default=4, help="jobs with the real stages beside them (default 4)")
    parser.add_argument("--keep", action="store_true", help="keep the folder when something was found")
    given = parser.parse_args()
    faults = given.faults if given.faults is not None else round(25 * given.minutes)
    plan = make_plan(given.seed, 60 * given.minutes, faults, given.jobs, given.real)
    with World() as world:
        run = Run(world, plan)
        run.undisturbed()
        begun = time.monotonic()
        run.disturbed()
        length_s = time.monotonic() - begun
        problems = list(run.problems())
        ends = run.attempts()
        if problems and given.keep:
            print(f"kept: {world.keep()}")
    problems += [f"process {pid} outlives the service: {command_of(pid)!r}" for pid in marked_processes(world.mark)]
    print(f"seed {given.seed}: {len(run.jobs)} light and {len(run.real)} real jobs in {length_s / 60:.1f} minutes")
    for kind, count in sorted(run.inflicted.items()):
        print(f"{count:>6}  {kind}")
    print(f"{run.inflicted.total():>6}  faults, {run.instead} of them in place of one that found no victim")
    print("attempts: " + ", ".join(f"{count} {outcome}" for outcome, count in sorted(ends.items())))
    print(f"blobs that the last sweep removed: {run.swept}")
    for problem in problems:
        print(f"PROBLEM {problem}")
    raise SystemExit(f"{len(problems)} problems" if problems else None)


if __name__ == "__main__":
    main()
