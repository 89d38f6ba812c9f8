"""What killed processes have left is cleared away, what living ones use is not."""

from __future__ import annotations

import fcntl
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from service.jobs.values import Claim
from tests.waiting import wait_until
from workers.context import WorkerContext
from workers.janitor import Janitor
from workers.rundirs import RunDirs


def test_folders_and_files_that_nobody_owns_are_removed(context: WorkerContext, claim: Callable[..., Claim]) -> None:
    dirs = RunDirs.of(context.settings)
    running, ended = claim(), claim()
    kept, orphan = dirs.make(running.job_id, running.fence), dirs.make(ended.job_id, ended.fence + 1)
    building, abandoned = dirs.pixels / "a-8px-1c.partial", dirs.pixels / "b-8px-1c.partial"
    for folder in (building, abandoned, dirs.cache / "blobs"):
        folder.mkdir(parents=True)
    (dirs.cache / "blobs" / ".partial-x").touch()
    (dirs.pixels / "b-8px-1c.lock").touch()
    with (dirs.pixels / "a-8px-1c.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert Janitor(context).sweep() == {"run_dirs": 1, "files": 2, "blobs": 0}
    assert (kept.exists(), orphan.exists()) == (True, False)
    assert (building.exists(), abandoned.exists()) == (True, False)


def test_it_sweeps_again_and_again(context: WorkerContext) -> None:
    def leave() -> Path:
        path = RunDirs.of(context.settings).cache / "blobs" / ".partial-left"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        return path

    impatient = replace(context, settings=context.settings.model_copy(update={"sweep_s": 0.05}))
    with Janitor(impatient):
        for _ in range(2):
            left = leave()
            wait_until(lambda left=left: not left.exists(), "it is cleared away")
