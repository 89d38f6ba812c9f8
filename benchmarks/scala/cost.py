"""What a training step of 13 deliverables costs; each method in a process of its own, for its peak of memory."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch

from models.architecture import Architecture, Pool
from models.export_record import Interpolation, Preprocessing
from models.extract import build_timm
from models.slicing import count_parameters
from models.slimmable import Slimmable
from scala.plan import COMMON, HEAD_DIM
from workers.data.dataset import ImageSet, LabelledSet
from workers.training.augment import Augmentation
from workers.training.compute import Compute
from workers.training.engine import Objective, TrainingLoop
from workers.training.mixing import Mixing
from workers.training.optimizer import build_adamw
from workers.training.schedule import BatchOrder, WarmupCosine
from workers.training.slimmable import SlimmableSettings, SlimmableTraining, SubnetTeacher
from workers.training.streams import torch_stream
from workers.training.supervised import LabelledBatch, LabelledBatches, Supervised
from workers.training.widths import WidthPlan, WidthSampling

METHODS = ("scala", "usnet", "separate")

BATCH = 128

_CPU = Compute(torch.device("cpu"))
_IMAGES = 1024
_WARM_UPS = 2
_LARGEST = Architecture(
    embed_dim=3 * HEAD_DIM,
    depth=4,
    num_heads=(3,) * 4,
    mlp_ratio=(4.0,) * 4,
    head_dim=HEAD_DIM,
    img_size=16,
    patch_size=4,
    num_classes=10,
    pool=Pool.TOKEN,
)
_NET = Slimmable(largest=_LARGEST, head_dims=COMMON)


@dataclass(frozen=True, slots=True)
class Cost:
    """What a method needs for 13 widths.

    Attributes:
        step_s: seconds of one step of everything that is trained, 13 networks in the case of separate training.
        peak_mib: memory at its peak, above that of the process before.
        stored_m: parameters that are kept, in millions.
    """

    step_s: float
    peak_mib: float
    stored_m: float


def measure(method: str, steps: int) -> Cost:
    """Train for some steps in a fresh process.

    Args:
        method: one of ``METHODS``.
        steps: of each network that is trained; the median counts.
    """
    command = [sys.executable, "-m", "scala.cost", method, str(steps)]
    told = subprocess.run(command, capture_output=True, text=True, check=True)
    return Cost(**json.loads(told.stdout))


def _measure_here(method: str, steps: int) -> Cost:
    before = _peak_mib()
    trainings = list(_trainings(method))
    seconds = [_step_s(make(), steps) for make, _ in trainings]
    return Cost(sum(seconds), _peak_mib() - before, sum(stored for _, stored in trainings) / 1_000_000)


def _trainings(method: str) -> Iterator[tuple[Callable[[], Objective[LabelledBatch]], int]]:
    """Everything that is trained one after the other, with the number of its parameters."""
    if method == "separate":
        for head_dim in COMMON:
            arch = _NET.architecture(head_dim)

            def alone(arch: Architecture = arch) -> Supervised:
                return Supervised(build_timm(arch, torch_stream(0, "init")), label_smoothing=0.1)

            yield alone, count_parameters(arch)
        return
    usnet = method == "usnet"
    settings = SlimmableSettings(
        plan=WidthPlan(net=_NET, sampling=WidthSampling.USNET if usnet else WidthSampling.PAPER),
        subnet_teacher=SubnetTeacher.FULL if usnet else SubnetTeacher.NEXT_LARGER,
        labels_from_step=None if usnet else 0,
        seed=0,
        stage=("cost",),
    )
    yield lambda: SlimmableTraining(settings, _CPU), count_parameters(_LARGEST)


class _Stopwatch:
    """Notes when each step has ended."""

    def __init__(self) -> None:
        self.ended = [time.perf_counter()]

    def after_step(self, loop: object) -> None:
        """One more."""
        self.ended.append(time.perf_counter())

    def metrics(self, step: int, values: object) -> None:
        """Nothing of interest."""


def _step_s(objective: Objective[LabelledBatch], steps: int) -> float:
    pixels = np.random.default_rng(0).integers(0, 256, (_IMAGES, 3, 16, 16), dtype=np.uint8)
    how = Preprocessing(size=16, mean=(0.5,) * 3, std=(0.25,) * 3, interpolation=Interpolation.BICUBIC)
    data = LabelledSet(ImageSet(pixels, np.arange(_IMAGES), how), np.arange(_IMAGES) % 10, 10)
    total = steps + _WARM_UPS
    loop = TrainingLoop(
        objective=objective,
        batches=LabelledBatches(data, BatchOrder(_IMAGES, BATCH, 0, ("cost",)), Augmentation(), Mixing(), _CPU),
        optimizer=build_adamw(objective.named_parameters(), weight_decay=0.05),
        schedule=WarmupCosine.of_share(0.002, 0.1, total),
        compute=_CPU,
        clip_grad=1.0,
    )
    stopwatch = _Stopwatch()
    loop.run(stopwatch)
    return float(np.median(np.diff(stopwatch.ended)[_WARM_UPS:]))


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    torch.set_num_threads(1)
    cost = _measure_here(sys.argv[1], int(sys.argv[2]))
    print(json.dumps({"step_s": cost.step_s, "peak_mib": cost.peak_mib, "stored_m": cost.stored_m}))
