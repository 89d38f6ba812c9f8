from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from service.errors import LossDiverged
from tests.unit.workers.training.toys import CPU, Interrupt, Watcher, loop_of, masked_loop, settings, teacher
from workers.training.engine import Losses, TrainingLoop
from workers.training.files import TensorFileError, read_tensors
from workers.training.masked import MaskedDistillation
from workers.training.parts import WHOLE

STEPS = 25


def weights_of(loop: TrainingLoop[Any], path: Path) -> bytes:
    """Everything that the rest of a run depends on, as bytes."""
    loop.save(path)
    return path.read_bytes()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, Mapping[int, Mapping[str, float]]]:
    """Final weights and metrics of the run that nothing interrupted."""
    loop, watcher = masked_loop(STEPS), Watcher()
    loop.run(watcher)
    return weights_of(loop, tmp_path_factory.mktemp("twin") / "final"), watcher.rows


@pytest.mark.parametrize("seed", range(5))
def test_run_killed_at_random_steps_gives_identical_weights_and_metrics(
    seed: int, undisturbed: tuple[bytes, Mapping[int, Mapping[str, float]]], tmp_path: Path
) -> None:
    rng, saved, watcher = np.random.default_rng(seed), tmp_path / "state", Watcher()
    stops = sorted(rng.choice(np.arange(1, STEPS), size=3, replace=False).tolist())
    for stop in [*stops, None]:
        loop = masked_loop(STEPS)  # as in a new process: nothing but the file is left of the earlier one
        if saved.exists():
            loop.restore(saved)
        watcher.stop_at = stop
        if stop is None:
            loop.run(watcher)
        else:
            with pytest.raises(Interrupt):
                loop.run(watcher)
            loop.save(saved)
    assert weights_of(loop, tmp_path / "final") == undisturbed[0]
    assert watcher.rows == undisturbed[1]


def test_saving_does_not_change_the_run(
    undisturbed: tuple[bytes, Mapping[int, Mapping[str, float]]], tmp_path: Path
) -> None:
    class Saver(Watcher):
        def after_step(self, loop: TrainingLoop[Any]) -> None:
            if loop.step % 3 == 0:
                loop.save(tmp_path / "state")

    loop = masked_loop(STEPS)
    loop.run(Saver())
    assert weights_of(loop, tmp_path / "final") == undisturbed[0]


def test_parameters_that_were_never_used_are_left_alone(tmp_path: Path) -> None:
    loop = masked_loop(STEPS)
    before = {name: tensor.clone() for name, tensor in loop._objective.named_parameters()}
    with pytest.raises(Interrupt):
        loop.run(Watcher(stop_at=1))
    loop.save(tmp_path / "state")
    tensors, _ = read_tensors(tmp_path / "state")
    stepped = {name.split(":")[1].removesuffix(".step") for name in tensors if name.endswith(".step")}
    unused = before.keys() - stepped
    assert unused, "the first step of this seed uses a shallow network"
    for name in unused:
        assert torch.equal(tensors[f"weight:{name}"], before[name])


def test_learning_rate_is_continuous_over_a_restart(tmp_path: Path) -> None:
    whole, parts = Watcher(), Watcher(stop_at=10)
    masked_loop(STEPS).run(whole)
    first = masked_loop(STEPS)
    with pytest.raises(Interrupt):
        first.run(parts)
    first.save(tmp_path / "state")
    second = masked_loop(STEPS)
    second.restore(tmp_path / "state")
    parts.stop_at = None
    second.run(parts)
    assert [row["lr"] for row in parts.rows.values()] == [row["lr"] for row in whole.rows.values()]


def test_loss_falls() -> None:
    watcher = Watcher()
    masked_loop(120).run(watcher)
    losses = [row["loss"] for row in watcher.rows.values()]
    assert losses[-1] < 0.75 * losses[0]


def test_divergence_names_the_step_and_the_last_finite_loss() -> None:
    loop = masked_loop(STEPS, lr=1e30)
    with pytest.raises(LossDiverged) as caught:
        loop.run(Watcher())
    extra = caught.value.extra
    assert 1 <= extra["step"] < STEPS
    assert np.isfinite(extra["last_finite_loss"])
    assert f"in step {extra['step']} of {STEPS}" in caught.value.detail


def test_broken_weights_are_never_saved(tmp_path: Path) -> None:
    loop = masked_loop(STEPS)
    with pytest.raises(Interrupt):
        loop.run(Watcher(stop_at=2))
    with torch.no_grad():
        dict(loop._objective.named_parameters())["supernet.norm.weight"][0] = torch.nan
    with pytest.raises(LossDiverged, match="weights are no finite numbers"):
        loop.save(tmp_path / "state")
    assert not (tmp_path / "state").exists()


def test_state_of_another_training_is_refused(tmp_path: Path) -> None:
    loop = masked_loop(STEPS)
    with pytest.raises(Interrupt):
        loop.run(Watcher(stop_at=1))
    loop.save(tmp_path / "state")
    with pytest.raises(TensorFileError, match=r"decoder\."):
        masked_loop(STEPS, decoder=None).restore(tmp_path / "state")


class Halves:
    """An objective whose loss comes in two summands."""

    def __init__(self, whole: MaskedDistillation) -> None:
        self._whole = whole
        self.gradients_before: list[bool] = []

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        return self._whole.named_parameters()

    def losses(self, batch: Tensor, step: int, part: slice = WHOLE) -> Iterator[Losses]:
        for _ in range(2):
            self.gradients_before.append(any(p.grad is not None for _, p in self.named_parameters()))
            [losses] = self._whole.losses(batch, step, part)
            yield Losses(losses.total / 2, {name: part / 2 for name, part in losses.parts.items()})

    def largest_losses(self, batch: Tensor, step: int, part: slice = WHOLE) -> Iterator[Losses]:
        return iter(())


def test_summands_of_a_step_add_up_and_each_is_done_before_the_next_begins() -> None:
    whole, halves = (MaskedDistillation(settings(), teacher(), CPU) for _ in range(2))
    in_halves = Halves(halves)
    rows = []
    for loop in (loop_of(whole, 10), loop_of(in_halves, 10)):
        watcher = Watcher()
        loop.run(watcher)
        rows.append(watcher.rows)
    assert in_halves.gradients_before == [False, True] * 10
    assert rows[0].keys() == rows[1].keys()
    for step, row in rows[0].items():
        assert rows[1][step] == pytest.approx(row, rel=1e-4)
