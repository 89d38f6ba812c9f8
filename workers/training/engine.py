"""The training loop: batch, objective, backward, step, measure, and room for a checkpoint after each step.

A run is a function of its objective, batches and schedule, which are functions of the step. So a loop that is restored
from a file at any step goes on with exactly the numbers that it would have had.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor, nn

from service.errors import LossDiverged
from workers.training.compute import Compute
from workers.training.files import WrittenFile, load_parameters, read_tensors, write_tensors
from workers.training.optimizer import optimizer_tensors, restore_optimizer, set_rate
from workers.training.schedule import WarmupCosine

# Name of the minimised sum among the metrics, and what the parts of a saved loop are called.
_TOTAL = "loss"
_WEIGHT = "weight:"
_OPTIMIZER = "optimizer:"
_PENDING = "pending:"

Batch = TypeVar("Batch")
Batch_co = TypeVar("Batch_co", covariant=True)
Batch_contra = TypeVar("Batch_contra", contravariant=True)


@dataclass(frozen=True, slots=True)
class Losses:
    """Scalars of a step or of one summand of it: what is minimised, and its parts by name for the record."""

    total: Tensor
    parts: Mapping[str, Tensor] = field(default_factory=dict)


class Objective(Protocol[Batch_contra]):
    """What is trained, and towards what. Its draws are functions of the step."""

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Everything that is trained, under names that are stable between versions."""
        ...

    def losses(self, batch: Batch_contra, step: int) -> Iterator[Losses]:
        """Forwards of one step, whose losses add up to the step's.

        Gradients of each are taken before the next is asked for, so that memory holds one of them at a time.
        """
        ...


class Batches(Protocol[Batch_co]):
    """Batches by step."""

    def at(self, step: int) -> Batch_co:
        """The batch of step ``step``, on the device."""
        ...


class Observer(Protocol):
    """Looks on after each step; may raise to end the loop, which is then in a state that can be saved."""

    def after_step(self, loop: TrainingLoop[Any]) -> None:
        """``loop.step`` steps are done."""
        ...

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Means over the steps since the last call."""
        ...


class TrainingLoop(Generic[Batch]):
    """A training that can be stopped after any step, saved, restored and continued.

    Args:
        objective: see :class:`Objective`.
        batches: see :class:`Batches`.
        optimizer: from ``workers.training.optimizer``.
        schedule: rate by step; its ``total_steps`` end the loop.
        compute: device and precision.
        clip_grad: largest global gradient norm, None for no limit.
        metrics_every: steps between two looks at the losses. Looking waits for the device, so it is not done each step.
    """

    def __init__(
        self,
        *,
        objective: Objective[Batch],
        batches: Batches[Batch],
        optimizer: torch.optim.AdamW,
        schedule: WarmupCosine,
        compute: Compute,
        clip_grad: float | None,
        metrics_every: int = 20,
    ) -> None:
        self.step = 0
        self.schedule = schedule
        self._objective = objective
        self._batches = batches
        self._optimizer = optimizer
        self._compute = compute
        self._clip_grad = clip_grad
        self._metrics_every = metrics_every
        self._pending: dict[str, list[Tensor]] = defaultdict(list)  # scalars that nobody has looked at
        self._last_finite: float | None = None

    @property
    def total_steps(self) -> int:
        """Steps in all."""
        return self.schedule.total_steps

    def run(self, observer: Observer) -> None:
        """Train to the end, or until the observer raises.

        Raises:
            LossDiverged: a loss is no finite number.
        """
        while self.step < self.total_steps:
            sums = self._advance()
            self.step += 1
            for name, value in sums.items():
                self._pending[name].append(value)
            if self.step % self._metrics_every == 0 or self.step == self.total_steps:
                observer.metrics(self.step, self._look())
            observer.after_step(self)

    def save(self, path: Path) -> WrittenFile:
        """Write everything that the rest of the run depends on; nothing of the run changes.

        The losses that nobody has looked at are part of it, so that a resumed run reports the same means.

        Raises:
            LossDiverged: rather than keeping weights that are no numbers.
        """
        self._check_finite()
        parameters = dict(self._objective.named_parameters())
        if not all(bool(parameter.isfinite().all()) for parameter in parameters.values()):
            raise self._diverged(self.step - 1, "weights are no finite numbers")
        tensors: dict[str, Tensor] = {f"{_WEIGHT}{name}": p for name, p in parameters.items()}
        for name, tensor in optimizer_tensors(self._optimizer, parameters.items()).items():
            tensors[f"{_OPTIMIZER}{name}"] = tensor
        for name, values in self._pending.items():
            tensors[f"{_PENDING}{name}"] = torch.stack(values)
        return write_tensors(path, tensors, {"step": self.step, "total_steps": self.total_steps})

    def restore(self, path: Path) -> None:
        """Continue from a file of :meth:`save`.

        Raises:
            TensorFileError: damaged, or of another training.
        """
        tensors, header = read_tensors(path)
        parameters = dict(self._objective.named_parameters())
        load_parameters(parameters, _part(tensors, _WEIGHT))
        restore_optimizer(self._optimizer, parameters.items(), _part(tensors, _OPTIMIZER))
        self.step = header["step"]
        self._pending.clear()
        self._pending.update({name: list(values.unbind()) for name, values in _part(tensors, _PENDING).items()})

    def _advance(self) -> dict[str, Tensor]:
        """One step; returns its losses by name."""
        set_rate(self._optimizer, self.schedule.rate(self.step))
        # To None, not to zero: a tensor that the sampled subnet does not use must be skipped by the optimizer.
        self._optimizer.zero_grad(set_to_none=True)
        sums: dict[str, Tensor] = {}
        for losses in self._summands():
            losses.total.backward()  # type: ignore[no-untyped-call]
            for name, value in {**losses.parts, _TOTAL: losses.total}.items():
                sums[name] = sums[name] + value.detach() if name in sums else value.detach()
        if self._clip_grad is not None:
            trained = [p for _, p in self._objective.named_parameters() if p.grad is not None]
            nn.utils.clip_grad_norm_(trained, self._clip_grad)
        self._optimizer.step()
        return sums

    def _summands(self) -> Iterator[Losses]:
        """The losses of a step one after the other, each from a forward in the chosen precision."""
        summands = self._objective.losses(self._batches.at(self.step), self.step)
        while True:
            with self._compute.forward():
                losses = next(summands, None)
            if losses is None:
                return
            yield losses

    def _look(self) -> dict[str, float]:
        """Means since the last look; the only place besides :meth:`save` that waits for the device."""
        self._check_finite()
        means = {name: torch.stack(values).mean().item() for name, values in self._pending.items()}
        self._pending.clear()
        return {**means, "lr": self.schedule.rate(self.step - 1)}

    def _check_finite(self) -> None:
        pending = self._pending.get(_TOTAL, [])  # an empty entry must not come into being: it would be saved
        first = self.step - len(pending)
        for offset, loss in enumerate(torch.stack(pending).tolist() if pending else []):
            if not math.isfinite(loss):
                raise self._diverged(first + offset, f"loss became {loss}")
            self._last_finite = loss

    def _diverged(self, step: int, what: str) -> LossDiverged:
        return LossDiverged(
            f"The {what} in step {step} of {self.total_steps}; the last finite loss was {self._last_finite}. "
            f"Lower the learning rate ({self.schedule.peak:g}) or lengthen the warm-up.",
            extra={"step": step, "last_finite_loss": self._last_finite},
        )


def _part(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
