"""What a training does when its numbers break: back to a sound point, with a lower rate, the same way every time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from service.errors import LossDiverged
from tests.stage_runs import TINY, resumed, search_start
from tests.unit.workers.stages.runs import StopAt, StoppingChannel
from tests.unit.workers.training.toys import CPU, loop_of, settings, teacher
from workers.channel import StopRequested
from workers.protocol import Metric, Start, Warn
from workers.stages.context import Context
from workers.stages.training import TRAINING_FILE, train
from workers.training.engine import Losses, TrainingLoop
from workers.training.masked import MaskedDistillation
from workers.training.parts import WHOLE

pytestmark = pytest.mark.usefixtures("every_progress")

STEPS = 40
BREAKS_AT = 25


class Fragile:
    """An objective whose loss is no number in one step as long as the rate is too high there."""

    def __init__(self, bearable: float = 0.6, worst: float = torch.nan) -> None:
        self._whole = MaskedDistillation(settings(), teacher(), CPU)
        self._bearable, self._worst = bearable, worst
        self.rate_scale: Callable[[], float] = lambda: 1.0

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        return self._whole.named_parameters()

    def losses(self, batch: Tensor, step: int, part: slice = WHOLE) -> Iterator[Losses]:
        for losses in self._whole.losses(batch, step, part):
            broken = step == BREAKS_AT and self.rate_scale() > self._bearable
            yield Losses(losses.total * self._worst) if broken else losses

    def largest_losses(self, batch: Tensor, step: int, part: slice = WHOLE) -> Iterator[Losses]:
        return self._whole.largest_losses(batch, step, part)


def start_of(folder: Path, checkpoint_s: float = 1e9, **recovery: Any) -> Start:
    return search_start({**TINY, "recovery": recovery}, folder, checkpoint_s=checkpoint_s)


def attempt(start: Start, channel: StoppingChannel, **fragile: float) -> tuple[Context, TrainingLoop[Tensor]]:
    """Train in a fresh process, as it were."""
    ctx = Context(start, channel)
    ctx.enter("supernet")
    objective = Fragile(**fragile)
    loop = loop_of(objective, STEPS)
    objective.rate_scale = lambda: loop.rate_scale
    train(ctx, loop, batch_size=8)
    return ctx, loop


def final_weights(loop: TrainingLoop[Tensor]) -> list[Tensor]:
    return [parameter.detach().clone() for _, parameter in loop._objective.named_parameters()]


def rates(*channels: StoppingChannel) -> dict[int, float]:
    return {metric.step: metric.values["lr"] for channel in channels for metric in channel.of_type(Metric)}


def test_a_broken_loss_goes_back_to_a_sound_point_and_on_with_a_lower_rate(tmp_path: Path) -> None:
    channel = StoppingChannel()
    _, loop = attempt(start_of(tmp_path), channel)
    assert loop.step == STEPS
    [warning] = channel.of_type(Warn)
    assert warning.code == "rolled_back"
    assert "in step 25 of 40" in warning.detail
    assert "back to step 20" in warning.detail
    steps = [metric.step for metric in channel.of_type(Metric)]
    assert steps == [4, 8, 12, 16, 20, 24, 24, 28, 32, 36, 40], "what was done again is told again"
    undisturbed = StoppingChannel()
    (tmp_path / "twin").mkdir()
    attempt(start_of(tmp_path / "twin"), undisturbed, bearable=1.0)
    halved = {step: rate / 2 if step > 20 else rate for step, rate in rates(undisturbed).items()}
    assert rates(channel) == halved


@pytest.mark.parametrize("stops", [[0.1, 0.7], [0.55, 0.62, 0.9]])
def test_a_killed_run_rolls_back_as_the_undisturbed_one(stops: list[float], tmp_path: Path) -> None:
    (tmp_path / "twin").mkdir()
    undisturbed = StoppingChannel()
    _, expected = attempt(start_of(tmp_path / "twin"), undisturbed)
    start, channels = start_of(tmp_path), []
    for fraction in stops:
        channels.append(StoppingChannel(StopAt("supernet", fraction)))
        with pytest.raises(StopRequested):
            attempt(start, channels[-1])
        start = resumed(start, channels[-1].last_checkpoint, tmp_path)
    channels.append(StoppingChannel())
    _, loop = attempt(start, channels[-1])
    assert all(torch.equal(*pair) for pair in zip(final_weights(loop), final_weights(expected), strict=True))
    assert rates(*channels) == rates(undisturbed)


def test_noticing_by_a_checkpoint_is_the_same_as_noticing_by_a_look(tmp_path: Path) -> None:
    (tmp_path / "twin").mkdir()
    _, looked = attempt(start_of(tmp_path / "twin"), StoppingChannel())
    channel = StoppingChannel()
    _, saved = attempt(start_of(tmp_path, checkpoint_s=0.0), channel)
    assert all(torch.equal(*pair) for pair in zip(final_weights(saved), final_weights(looked), strict=True))
    assert [warning.code for warning in channel.of_type(Warn)] == ["rolled_back"]


def test_roll_backs_are_bounded_and_told(tmp_path: Path) -> None:
    channel = StoppingChannel()
    with pytest.raises(LossDiverged, match=r"2 roll-backs, to 0\.25 times") as caught:
        attempt(start_of(tmp_path, rollbacks=2), channel, bearable=0.0, worst=torch.inf)
    extra = caught.value.extra
    assert (extra["step"], extra["rollbacks"], extra["rate_scale"]) == (BREAKS_AT, 2, 0.25)
    assert len(channel.of_type(Warn)) == 2


def test_resuming_gives_no_further_roll_backs(tmp_path: Path) -> None:
    start = start_of(tmp_path, rollbacks=1)
    first = StoppingChannel(StopAt("supernet", 0.7))
    with pytest.raises(StopRequested):
        attempt(start, first)
    state = first.last_checkpoint.state["state"]["loop"]["recovery"]
    assert (state["rollbacks"], state["rate_scale"]) == (1, 0.5)
    ctx = Context(resumed(start, first.last_checkpoint, tmp_path), StoppingChannel())
    ctx.enter("supernet")
    loop = loop_of(Broken(), STEPS)
    with pytest.raises(LossDiverged, match="1 roll-backs"):
        train(ctx, loop, batch_size=8)


class Broken(Fragile):
    """No step gives a number."""

    def losses(self, batch: Tensor, step: int, part: slice = WHOLE) -> Iterator[Losses]:
        for losses in self._whole.losses(batch, step, part):
            yield Losses(losses.total * torch.nan)


def test_without_roll_backs_it_fails_at_once_and_keeps_no_points(tmp_path: Path) -> None:
    channel, start = StoppingChannel(), start_of(tmp_path, rollbacks=0, checkpoint_s=0.0)
    with pytest.raises(LossDiverged) as caught:
        attempt(start, channel)
    assert "rollbacks" not in caught.value.extra
    assert {ref.name for ref in channel.last_checkpoint.files} == {TRAINING_FILE}
    assert not channel.of_type(Warn)


@pytest.mark.parametrize(("stop", "worst", "codes"), [(0.5, 1e6, ["loss_rose"]), (None, 1.0, [])])
def test_a_loss_that_only_rose_is_told(stop: float | None, worst: float, codes: list[str], tmp_path: Path) -> None:
    class Rising(Fragile):
        def losses(self, batch: Tensor, step: int, part: slice = WHOLE) -> Iterator[Losses]:
            for losses in self._whole.losses(batch, step, part):
                yield Losses(losses.total * (worst if step > 10 else 1.0))

    start = start_of(tmp_path)
    if stop is not None:
        channel = StoppingChannel(StopAt("supernet", stop))
        ctx = Context(start, channel)
        ctx.enter("supernet")
        with pytest.raises(StopRequested):
            train(ctx, loop_of(Rising(), STEPS), batch_size=8)
        start = resumed(start, channel.last_checkpoint, tmp_path)
    channel = StoppingChannel()
    ctx = Context(start, channel)
    ctx.enter("supernet")
    train(ctx, loop_of(Rising(), STEPS), batch_size=8)
    assert [warning.code for warning in channel.of_type(Warn)] == codes


def test_a_training_that_is_over_leaves_no_files_in_checkpoints(tmp_path: Path) -> None:
    ctx, _ = attempt(start_of(tmp_path), StoppingChannel())
    assert ctx.digests == {}


def test_broken_weights_of_the_last_step_are_no_result(tmp_path: Path) -> None:
    class LastStep(Fragile):
        def losses(self, batch: Tensor, step: int, part: slice = WHOLE) -> Iterator[Losses]:
            yield from self._whole.losses(batch, step, part)
            if step == STEPS - 1 and self.rate_scale() == 1:
                parameters = [p for _, p in self.named_parameters()]
                yield Losses((parameters[0].sum() - parameters[0].sum().detach()) * 1e38 * 1e38)

    ctx = Context(start_of(tmp_path), StoppingChannel())
    ctx.enter("supernet")
    objective = LastStep()
    loop = loop_of(objective, STEPS)
    objective.rate_scale = lambda: loop.rate_scale
    train(ctx, loop, batch_size=8)
    assert loop.rate_scale == 0.5
    assert all(bool(parameter.isfinite().all()) for parameter in final_weights(loop))
