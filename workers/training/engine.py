"""The training loop: batch, objective, backward, step, measure, and room for a checkpoint after each step.

A run is a function of its objective, batches and schedule, which are functions of the step. So a loop that is restored
from a file at any step goes on with exactly the numbers that it would have had.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import torch
from torch import Tensor, nn

from service.errors import LossDiverged
from workers.memory import OUT_OF_MEMORY, is_out_of_memory, out_of_memory
from workers.training.compute import Compute
from workers.training.files import WrittenFile, load_parameters, read_tensors, write_tensors
from workers.training.optimizer import optimizer_tensors, restore_optimizer, set_rate
from workers.training.parts import WHOLE, MicroBatches
from workers.training.schedule import WarmupCosine

# Name of the minimised sum among the metrics, and what the parts of a saved loop are called.
_TOTAL = "loss"
_WEIGHT = "weight:"
_OPTIMIZER = "optimizer:"
_PENDING = "pending:"

_MOMENTS = 2  # tensors of a parameter's size that AdamW keeps for it

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

    def losses(self, batch: Batch_contra, step: int, part: slice = WHOLE) -> Iterator[Losses]:
        """Forwards of one step, whose losses add up to the step's.

        Gradients of each are taken before the next is asked for, so that memory holds one of them at a time.

        Args:
            batch: of the whole step; random draws are made for all of it.
            step: counted from 0.
            part: only these images of it are looked at. Losses are means over images, so that those of equal parts
                have the mean of the parts as their sum.
        """
        ...

    def largest_losses(self, batch: Batch_contra, step: int, part: slice = WHOLE) -> Iterator[Losses]:
        """The same of the step that needs most memory; nothing when every step does."""
        ...


class Batches(Protocol[Batch_co]):
    """Batches by step."""

    @property
    def batch_size(self) -> int:
        """Images of each batch."""
        ...

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

    Attributes:
        step: how many steps are done.
        schedule: see above.
        rate_scale: factor of all learning rates from now on, for a run that would not converge with those asked for.
        micro: how the images of a step are cut when memory does not hold all of them at once. Neither is part of
            :meth:`save`: who changes them keeps them.
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
        self.rate_scale = 1.0
        self.micro = MicroBatches(batches.batch_size, batches.batch_size)
        self._tried = False
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

        The step that needs most memory is tried first, so that a run that does not fit fails now and not at random.

        Raises:
            LossDiverged: a loss is no finite number, or a weight at the end.
            OutOfMemory: not even one image at a time fits.
        """
        if not self._tried and self.step < self.total_steps:
            self._try_largest()
            self._tried = True
        while self.step < self.total_steps:
            sums = self._advance()
            self.step += 1
            for name, value in sums.items():
                self._pending[name].append(value)
            if self.step % self._metrics_every == 0 or self.step == self.total_steps:
                observer.metrics(self.step, self._look())
            if self.step == self.total_steps:
                self._check_weights()
            observer.after_step(self)

    def save(self, path: Path) -> WrittenFile:
        """Write everything that the rest of the run depends on; nothing of the run changes.

        The losses that nobody has looked at are part of it, so that a resumed run reports the same means.

        Raises:
            LossDiverged: rather than keeping weights that are no numbers.
        """
        self._check_finite()
        self._check_weights()
        parameters = dict(self._objective.named_parameters())
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
        set_rate(self._optimizer, self._rate(self.step))
        batch, step = self._batches.at(self.step), self.step
        sums = self._accumulate(lambda part: self._objective.losses(batch, step, part))
        if self._clip_grad is not None:
            trained = [p for _, p in self._objective.named_parameters() if p.grad is not None]
            nn.utils.clip_grad_norm_(trained, self._clip_grad)
        # Memory that runs out in here is not to be mended: some weights may have been changed.
        self._optimizer.step()
        return sums

    def _try_largest(self) -> None:
        """Take the gradients of the step that needs most memory, beside what the optimizer will hold, and drop them."""
        batch, step = self._batches.at(self.step), self.step
        parameters = [parameter for _, parameter in self._objective.named_parameters()]
        # Written to, since memory that nobody has touched does not count.
        moments = [] if self._optimizer.state else [torch.ones_like(p) for p in parameters for _ in range(_MOMENTS)]
        self._accumulate(lambda part: self._objective.largest_losses(batch, step, part))
        self._optimizer.zero_grad(set_to_none=True)
        del moments

    def _accumulate(self, forwards: Callable[[slice], Iterator[Losses]]) -> dict[str, Tensor]:
        """Gradients of all parts of a step, which are made smaller until they fit; returns the losses by name."""
        before, reason = self.micro, None
        while True:
            # To None, not to zero: a tensor that the sampled subnet does not use must be skipped by the optimizer.
            self._optimizer.zero_grad(set_to_none=True)
            try:
                sums = self._backward(forwards)
                break
            except OUT_OF_MEMORY as error:
                if not is_out_of_memory(error):
                    raise
                reason = out_of_memory(error)
            # Out of the handler: as long as the error lives, so do the tensors of the frames that it passed.
            self.micro = self.micro.halved(reason)
            if self._compute.device.type == "cuda":
                torch.cuda.empty_cache()
        self.micro = self.micro.checked(before, reason)
        return sums

    def _backward(self, forwards: Callable[[slice], Iterator[Losses]]) -> dict[str, Tensor]:
        sums: dict[str, Tensor] = {}
        for part, share in self.micro.parts():
            for losses in self._summands(forwards(part)):
                total = losses.total if share == 1 else losses.total * share
                total.backward()  # type: ignore[no-untyped-call]
                for name, value in {**losses.parts, _TOTAL: losses.total}.items():
                    told = value.detach() if share == 1 else value.detach() * share
                    sums[name] = sums[name] + told if name in sums else told
        return sums

    def _summands(self, summands: Iterator[Losses]) -> Iterator[Losses]:
        """The losses of a part one after the other, each from a forward in the chosen precision."""
        while True:
            with self._compute.forward():
                losses = next(summands, None)
            if losses is None:
                return
            yield losses

    def _rate(self, step: int) -> float:
        return self.schedule.rate(step) * self.rate_scale

    def _look(self) -> dict[str, float]:
        """Means since the last look; the only place besides :meth:`save` that waits for the device."""
        self._check_finite()
        means = {name: torch.stack(values).mean().item() for name, values in self._pending.items()}
        self._pending.clear()
        return {**means, "lr": self._rate(self.step - 1)}

    def _check_finite(self) -> None:
        pending = self._pending.get(_TOTAL, [])  # an empty entry must not come into being: it would be saved
        first = self.step - len(pending)
        for offset, loss in enumerate(torch.stack(pending).tolist() if pending else []):
            if not math.isfinite(loss):
                raise self._diverged(first + offset, f"loss became {loss}")
            self._last_finite = loss

    def _check_weights(self) -> None:
        if not all(bool(parameter.isfinite().all()) for _, parameter in self._objective.named_parameters()):
            raise self._diverged(max(0, self.step - 1), "weights are no finite numbers")

    def _diverged(self, step: int, what: str) -> LossDiverged:
        return LossDiverged(
            f"The {what} in step {step} of {self.total_steps}; the last finite loss was {self._last_finite}. "
            f"Lower the learning rate ({self.schedule.peak * self.rate_scale:g}) or lengthen the warm-up.",
            extra={"step": step, "last_finite_loss": self._last_finite},
        )


def _part(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
