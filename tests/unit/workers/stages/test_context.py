from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from service.errors import CheckpointIncompatible
from tests.channels import RecordingChannel
from tests.stage_runs import TINY, search_start
from tests.unit.search.latency_tables import table_for
from workers.channel import StopRequested
from workers.protocol import CHECKPOINT_FORMAT, CheckpointMessage, Progress, Resume
from workers.stages import context
from workers.stages.context import BudgetReached, Context
from workers.stages.estimate import Estimator, planned_work
from workers.stages.search_context import SearchContext
from workers.training.files import write_tensors


class Clock:
    """Stands in for the monotonic clock."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(context.time, "monotonic", clock.monotonic)
    return clock


@pytest.fixture
def channel() -> RecordingChannel:
    return RecordingChannel()


def made(tmp_path: Path, channel: RecordingChannel, checkpoint_s: float = 10.0) -> Context:
    ctx = Context(search_start(TINY, tmp_path, checkpoint_s=checkpoint_s), channel)
    ctx.enter("teacher")
    return ctx


def test_progress_is_reported_at_most_four_times_a_second(
    clock: Clock, channel: RecordingChannel, tmp_path: Path
) -> None:
    ctx = made(tmp_path, channel)
    for i in range(100):
        clock.now += 0.02
        ctx.progress(i / 100)
    assert 8 <= len(channel.of_type(Progress)) <= 9  # two seconds, and the entry


def test_checkpoints_come_when_their_time_has_come(clock: Clock, channel: RecordingChannel, tmp_path: Path) -> None:
    ctx = made(tmp_path, channel)
    for _ in range(100):
        clock.now += 1.0
        ctx.safe_point(lambda: ctx.checkpoint({}))
    assert len(channel.of_type(CheckpointMessage)) == 10


def test_slow_checkpoints_take_a_tenth_of_the_time(clock: Clock, channel: RecordingChannel, tmp_path: Path) -> None:
    ctx = made(tmp_path, channel)

    def slow() -> None:
        clock.now += 5.0
        ctx.checkpoint({})

    for _ in range(500):
        clock.now += 1.0
        ctx.safe_point(slow)
    assert 10 <= len(channel.of_type(CheckpointMessage)) <= 12


def test_stop_saves_first(channel: RecordingChannel, tmp_path: Path) -> None:
    ctx = made(tmp_path, channel)
    ctx.safe_point(lambda: ctx.checkpoint({}))
    assert not channel.of_type(CheckpointMessage)
    channel.request_stop("drain")
    with pytest.raises(StopRequested):
        ctx.safe_point(lambda: ctx.checkpoint({"step": 3}))
    assert channel.of_type(CheckpointMessage)[-1].state["state"] == {"step": 3}


def test_wish_that_comes_during_a_save_waits_for_the_next_safe_point(
    clock: Clock, channel: RecordingChannel, tmp_path: Path
) -> None:
    ctx = made(tmp_path, channel)
    clock.now += 11.0

    def interrupted() -> None:
        ctx.checkpoint({"step": 1})
        channel.request_stop("cancel")

    ctx.safe_point(interrupted)
    with pytest.raises(StopRequested):
        ctx.safe_point(lambda: ctx.checkpoint({"step": 2}))
    assert channel.of_type(CheckpointMessage)[-1].state["state"] == {"step": 2}


def test_budget_is_raised_once_and_lets_the_job_finish(channel: RecordingChannel, tmp_path: Path) -> None:
    ctx = made(tmp_path, channel)
    channel.request_stop("budget")
    with pytest.raises(BudgetReached):
        ctx.poll()
    ctx.poll()
    ctx.safe_point(lambda: pytest.fail("nothing is due"))
    assert ctx.budget_reached
    channel.request_stop("cancel")
    with pytest.raises(StopRequested):
        ctx.safe_point(lambda: ctx.checkpoint({}))


def test_time_in_a_stage_adds_up_over_attempts(clock: Clock, channel: RecordingChannel, tmp_path: Path) -> None:
    ctx = made(tmp_path, channel)
    clock.now += 3.0
    ctx.checkpoint({})
    clock.now += 2.0
    ctx.complete({"a": 1})
    assert ctx.timings == {"teacher": 5.0}


def test_files_are_part_of_checkpoints_until_they_are_dropped(channel: RecordingChannel, tmp_path: Path) -> None:
    ctx = made(tmp_path, channel)
    ctx.keep(write_tensors(ctx.path("x.safetensors"), {"a": torch.zeros(1)}, {}))
    ctx.checkpoint({})
    ctx.drop("x.safetensors")
    ctx.drop("never kept")
    ctx.checkpoint({})
    assert [[ref.name for ref in c.files] for c in channel.of_type(CheckpointMessage)] == [["x.safetensors"], []]


def test_costs_of_a_search_include_the_latency_that_its_table_predicts(
    channel: RecordingChannel, tmp_path: Path
) -> None:
    plain = SearchContext(search_start(TINY, tmp_path / "plain"), channel)
    table = table_for(plain.space, len(plain.classes))
    limit = {"metric": "latency_ms", "max": 1.0, "table": table.to_json()}
    ctx = SearchContext(search_start({**TINY, "constraints": [limit]}, tmp_path / "limited"), channel)
    arch = plain.space.largest()
    assert ctx.costs(arch) == {**plain.costs(arch), "latency_ms": ctx.table.predict_ns(arch.with_classes(10)) / 1e6}
    assert ctx.table == table
    assert plain.table is None


def test_planned_work_covers_the_stages_that_compute(channel: RecordingChannel, tmp_path: Path) -> None:
    work = planned_work(SearchContext(search_start(TINY, tmp_path), channel))
    assert list(work) == ["teacher", "supernet", "search", "retrain", "report"]
    assert all(amount > 0 for amount in work.values())


def test_planned_work_follows_the_spec(channel: RecordingChannel, tmp_path: Path) -> None:
    def work(name: str, **changes: object) -> dict[str, float]:
        return planned_work(SearchContext(search_start({**TINY, **changes}, tmp_path / name), channel))

    once = work("once")
    twice = work("twice", retrain={**TINY["retrain"], "epochs": 2})
    assert twice["retrain"] == pytest.approx(2 * once["retrain"], rel=0.05)  # both are measured once
    assert twice["teacher"] == once["teacher"]
    no_baseline = work("none", search={**TINY["search"], "baseline": "none"})
    # Not exactly: the teacher's pass is the same for both.
    assert no_baseline["search"] == pytest.approx(once["search"] / 2, rel=0.2)


def test_time_left_is_work_left_over_speed_so_far(clock: Clock) -> None:
    estimator = Estimator({"teacher": 100.0, "supernet": 300.0})
    assert estimator.seconds_left("data", 0.0) is None
    assert estimator.seconds_left("teacher", 0.0) is None
    clock.now += 10.0
    assert estimator.seconds_left("teacher", 0.5) == pytest.approx(10.0 + 60.0)
    clock.now += 10.0
    assert estimator.seconds_left("teacher", 1.0) == pytest.approx(60.0)
    estimator.seconds_left("supernet", 0.0)
    clock.now += 40.0
    assert estimator.seconds_left("supernet", 0.5) == pytest.approx(150.0 * 60.0 / 250.0)


def test_time_left_after_a_resume_counts_only_what_this_attempt_did(clock: Clock) -> None:
    estimator = Estimator({"teacher": 100.0, "supernet": 100.0})
    assert estimator.seconds_left("teacher", 0.8) is None
    clock.now += 10.0
    assert estimator.seconds_left("teacher", 0.9) == pytest.approx(10.0 + 100.0)


def resumed(tmp_path: Path, channel: RecordingChannel, state: dict[str, Any]) -> Context:
    start = search_start(TINY, tmp_path / str(len(list(tmp_path.iterdir()))))
    resume = Resume(stage="search", state=state, files=[])
    return Context(start.model_copy(update={"resume": resume}), channel)


def test_a_checkpoint_tells_its_format_and_one_of_another_is_refused(channel: RecordingChannel, tmp_path: Path) -> None:
    ctx = made(tmp_path, channel)
    ctx.enter("data")
    ctx.complete({"images": 5})
    [written] = channel.of_type(CheckpointMessage)
    assert resumed(tmp_path, channel, written.state).outputs == {"data": {"images": 5}}
    of_old = {name: value for name, value in written.state.items() if name != "format"}
    assert resumed(tmp_path, channel, of_old).outputs == {"data": {"images": 5}}
    with pytest.raises(CheckpointIncompatible) as caught:
        resumed(tmp_path, channel, {**written.state, "format": CHECKPOINT_FORMAT + 1})
    told = caught.value.to_json()
    assert (told["code"], told["retryable"], told["stage"]) == ("checkpoint_incompatible", False, "search")
    assert (told["found"], told["allowed"]) == (f"format {CHECKPOINT_FORMAT + 1}", f"format {CHECKPOINT_FORMAT}")
    assert "replay" in told["detail"]
