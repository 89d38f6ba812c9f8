"""Steps in parts: the same training up to rounding, and only where memory asks for it."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from models.extract import build_timm
from service.errors import GpuOutOfMemory, OutOfMemory
from tests.unit.workers.training.toys import CPU, SPACE, Watcher, images, loop_of, settings, teacher
from workers.child import LIMITED
from workers.training.engine import Losses, TrainingLoop
from workers.training.masked import MaskedDistillation
from workers.training.parts import WHOLE, MicroBatches, in_parts_that_fit
from workers.training.stochastic_depth import StochasticDepth
from workers.training.subnets import Sampling, SubnetPlan
from workers.training.supervised import LabelledBatch, Supervised

HOST = "[enforce fail at alloc_cpu.cpp:118] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes."


class Hungry:
    """An objective of which so many images fit into memory at once, fewer of its largest network."""

    def __init__(self, fits: int, largest_fits: int | None = None, error: Exception | None = None) -> None:
        self._whole = MaskedDistillation(settings(), teacher(), CPU)
        self._fits, self._largest_fits = fits, fits if largest_fits is None else largest_fits
        self._error = error or RuntimeError(HOST)
        self.forwards: list[int] = []

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        return self._whole.named_parameters()

    def losses(self, batch: Tensor, step: int, part: slice = WHOLE) -> Iterator[Losses]:
        self._allocate(batch[part], self._fits)
        return self._whole.losses(batch, step, part)

    def largest_losses(self, batch: Tensor, step: int, part: slice = WHOLE) -> Iterator[Losses]:
        self._allocate(batch[part], self._largest_fits)
        return self._whole.largest_losses(batch, step, part)

    def _allocate(self, part: Tensor, fits: int) -> None:
        if len(part) > fits:
            raise self._error
        self.forwards.append(len(part))


def weights(loop: TrainingLoop[Any]) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in loop._objective.named_parameters()}


def gradients(losses: Callable[[slice], Iterator[Losses]], module: nn.Module, micro: MicroBatches) -> list[Tensor]:
    module.zero_grad(set_to_none=True)
    for part, share in micro.parts():
        for loss in losses(part):
            (loss.total * share).backward()  # type: ignore[no-untyped-call]
    return [p.grad.clone() for p in module.parameters() if p.grad is not None]


@pytest.mark.parametrize("size", [1, 3, 4])
@pytest.mark.parametrize("beta", [0.0, 1.0])
def test_masked_training_in_parts_takes_the_same_gradient(size: int, beta: float) -> None:
    whole = MaskedDistillation(
        settings(beta=beta, subnets=SubnetPlan(sampling=Sampling.SANDWICH, students=3)), teacher(), CPU
    )
    batch = next(images().batches(8))
    found, expected = (
        gradients(lambda part: whole.losses(batch, 3, part), whole._modules, MicroBatches(8, n)) for n in (size, 8)
    )
    for part, all_at_once in zip(found, expected, strict=True):
        torch.testing.assert_close(part, all_at_once, rtol=2e-4, atol=1e-6)


@pytest.mark.parametrize("size", [1, 5])
def test_supervised_training_in_parts_takes_the_same_gradient(size: int) -> None:
    arch = replace(SPACE.largest(), num_classes=3)
    network = build_timm(arch, torch.Generator().manual_seed(0))
    objective = Supervised(network, label_smoothing=0.1, stochastic_depth=StochasticDepth(network, 0.5, 0, ("x",)))
    batch = LabelledBatch(next(images().batches(8)), torch.arange(8) % 3)
    found, expected = (
        gradients(lambda part: objective.losses(batch, 1, part), network, MicroBatches(8, n)) for n in (size, 8)
    )
    for part, all_at_once in zip(found, expected, strict=True):
        torch.testing.assert_close(part, all_at_once, rtol=2e-4, atol=1e-6)


def test_a_step_that_does_not_fit_is_halved_until_it_does_and_stays_so() -> None:
    hungry = Hungry(fits=2)
    loop, parts, whole = loop_of(hungry, 6), Watcher(), Watcher()
    loop.run(parts)
    loop_of(MaskedDistillation(settings(), teacher(), CPU), 6).run(whole)
    assert loop.micro.size == 2
    assert hungry.forwards == [2, 2, 2, 2] * 7, "the trial, and six steps of eight images"
    assert parts.rows.keys() == whole.rows.keys()
    for step, row in whole.rows.items():
        assert parts.rows[step] == pytest.approx(row, rel=1e-4)


def test_memory_runs_out_on_the_largest_network_before_the_first_step() -> None:
    hungry, watcher = Hungry(fits=8, largest_fits=4), Watcher()
    loop = loop_of(hungry, 2)
    loop.run(watcher)
    assert hungry.forwards[:2] == [4, 4]
    assert loop.micro.size == 4


def test_trying_the_largest_network_changes_no_number() -> None:
    class Untried(MaskedDistillation):
        def largest_losses(self, batch: Tensor, step: int, part: slice = WHOLE) -> Iterator[Losses]:
            return iter(())

    tried, untried = (loop_of(kind(settings(), teacher(), CPU), 5) for kind in (MaskedDistillation, Untried))
    rows = []
    for loop in (tried, untried):
        watcher = Watcher()
        loop.run(watcher)
        rows.append(watcher.rows)
    assert rows[0] == rows[1]
    assert all(torch.equal(tensor, weights(untried)[name]) for name, tensor in weights(tried).items())


def test_a_network_of_which_not_one_image_fits_is_refused_with_what_is_known() -> None:
    with pytest.raises(OutOfMemory) as caught:
        loop_of(Hungry(fits=0), 2).run(Watcher())
    error = caught.value
    assert (error.code, error.retryable) == ("out_of_memory", True)
    assert (error.extra["batch_size"], error.extra["micro_batch"]) == (8, 1)
    assert error.extra["last_known"]["rss_bytes"] > 0
    assert "smaller network" in error.detail


def test_without_parts_the_error_suggests_a_batch_size_that_was_tried() -> None:
    hungry = Hungry(fits=3)
    loop = loop_of(hungry, 2)
    loop.micro = replace(loop.micro, may_shrink=False)
    with pytest.raises(OutOfMemory, match=r"step of 8 images.*batch_size of 2") as caught:
        loop.run(Watcher())
    assert caught.value.extra["suggested_batch_size"] == 2
    assert hungry.forwards == [2, 2, 2, 2]
    assert loop.step == 0


def test_memory_of_a_device_has_a_code_of_its_own() -> None:
    with pytest.raises(GpuOutOfMemory) as caught:
        loop_of(Hungry(fits=0, error=torch.OutOfMemoryError("CUDA out of memory.")), 2).run(Watcher())
    assert caught.value.code == "gpu_oom"


def test_other_errors_pass() -> None:
    with pytest.raises(RuntimeError, match="device-side assert"):
        loop_of(Hungry(fits=0, error=RuntimeError("device-side assert")), 2).run(Watcher())


@pytest.mark.parametrize(("sampling", "tried"), [(Sampling.UNIFORM, True), (Sampling.SANDWICH, False)])
def test_the_largest_network_is_tried_where_steps_do_not_train_it_anyway(sampling: Sampling, tried: bool) -> None:
    plan = SubnetPlan(sampling=sampling, students=2)
    assert plan.largest(SPACE) == (SPACE.largest() if tried else None)


def test_a_space_of_one_network_needs_no_trial() -> None:
    only = replace(SPACE, embed_dim=(16,), depth=(1,), num_heads=(1,), mlp_ratio=(1.0,))
    assert SubnetPlan().largest(only) is None


@pytest.mark.parametrize(("images_", "size"), list(itertools.product([1, 7, 8], [1, 3])))
def test_parts_cover_every_image_once(images_: int, size: int) -> None:
    micro = MicroBatches(images_, min(size, images_))
    covered = [image for part, _ in micro.parts() for image in range(images_)[part]]
    assert covered == list(range(images_))
    assert sum(share for _, share in micro.parts()) == pytest.approx(1)


@pytest.mark.parametrize("fits", [1, 3, 8])
def test_answers_come_in_parts_that_fit(fits: int) -> None:
    seen: list[int] = []

    def forward(images_: Tensor) -> Tensor:
        if len(images_) > fits:
            raise RuntimeError(HOST)
        seen.append(len(images_))
        return images_ * 2

    x = torch.arange(8.0)
    assert torch.equal(in_parts_that_fit(forward, x), x * 2)
    assert max(seen) <= fits
    assert sum(seen) == 8


def test_answers_that_fit_in_no_part_are_refused() -> None:
    def forward(images_: Tensor) -> Tensor:
        raise RuntimeError(HOST)

    with pytest.raises(RuntimeError, match="DefaultCPUAllocator"):
        in_parts_that_fit(forward, torch.zeros(4))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="limits of data are Linux's")
def test_a_training_adapts_to_a_real_limit_of_memory() -> None:
    found = []
    for spare_mb in (0, 60):
        command = (sys.executable, "-m", "tests.unit.workers.training.hungry", str(spare_mb))
        told = subprocess.run(command, env=os.environ | LIMITED, capture_output=True, text=True, check=True).stdout
        size, loss = told.split()
        found.append((int(size), float(loss)))
    (whole, all_at_once), (size, in_parts) = found
    assert 1 < size < whole
    assert in_parts == pytest.approx(all_at_once, rel=1e-4)
