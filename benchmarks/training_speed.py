"""How fast the stages of a search compute: images a second of each kind of training, candidates a second of scoring.

Random images, real networks of the space ``micro``. Cases are measured in turn, round by round, and the median of the
rounds is shown, so that a change of the machine's load hits all cases alike.

    python benchmarks/training_speed.py [--size 8] [--rounds 5] [--threads 1] [--device cpu]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from models.architecture import Architecture
from models.export_record import Interpolation, Preprocessing
from models.extract import build_timm
from models.masked import DecoderConfig
from models.teacher import FrozenTeacher
from search import presets
from search.measures import Measure
from search.space import Space
from workers.data.dataset import ImageSet, LabelledSet
from workers.stages.scoring import MeasureScorer, ScoringSettings, TrainedParts
from workers.training.augment import Augmentation
from workers.training.compute import Compute, choose_compute
from workers.training.crops import RandomCrop
from workers.training.engine import TrainingLoop
from workers.training.masked import ImageBatches, MaskedDistillation, MaskedSettings
from workers.training.mixing import Mixing
from workers.training.optimizer import build_adamw
from workers.training.schedule import BatchOrder, WarmupCosine
from workers.training.supervised import LabelledBatches, Supervised

BATCH = 64
STEPS = 20
IMAGES = 256
WHOLE = RandomCrop((1.0, 1.0), horizontal_flip=False)
SCORED = 5
MASK_RATIO = 0.5
DECODER = DecoderConfig(dim=64, depth=1, num_heads=4)


@dataclass(frozen=True, slots=True)
class Case:
    """A row of the table: ``run`` does ``amount`` units of work."""

    name: str
    unit: str
    amount: int
    run: Callable[[], Any]


def main() -> None:
    """Measure all cases and print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=8, help="side of the images in pixels, a multiple of 4 (default 8)")
    parser.add_argument("--rounds", type=int, default=5, help="measurements of each case (default 5)")
    parser.add_argument("--threads", type=int, default=1, help="threads of one operation (default 1)")
    parser.add_argument("--device", default="cpu", help="cpu, cuda (default cpu)")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    compute = choose_compute(arguments.device, "fp32")
    channels = 1 if arguments.size <= 8 else 3
    cases = make_cases(presets.resolve("micro", img_size=arguments.size, in_chans=channels), compute)
    for case in cases:
        case.run()  # the first round pays for memory and kernel choices
    seconds: dict[str, list[float]] = {case.name: [] for case in cases}
    for _ in range(arguments.rounds):
        for case in cases:
            began = time.perf_counter()
            case.run()
            seconds[case.name].append(time.perf_counter() - began)
    setting = f"{channels} channel(s), batch {BATCH}, {arguments.threads} thread(s), {compute.device}"
    print(f"micro at {arguments.size} px, {setting}")
    for case in cases:
        rates = [case.amount / taken for taken in seconds[case.name]]
        print(f"{case.name:<44} {statistics.median(rates):>9.1f} {case.unit}/s  (best {max(rates):.1f})")


def make_cases(space: Space, compute: Compute) -> list[Case]:
    """All rows of the table."""
    images = _images(space)
    teacher = FrozenTeacher(build_timm(space.largest(), torch.Generator().manual_seed(0)))
    only = Space(
        name="largest",
        embed_dim=space.embed_dim[-1:],
        depth=space.depth[-1:],
        num_heads=space.num_heads[-1:],
        mlp_ratio=space.mlp_ratio[-1:],
        head_dim=space.head_dim,
        img_size=space.img_size,
        patch_size=space.patch_size,
        in_chans=space.in_chans,
    )
    trainings = {
        "teacher: reconstruction, largest network": _masked_loop(images, only, None, compute),
        "supernet: reconstruction": _masked_loop(images, space, None, compute),
        "supernet: reconstruction and distillation": _masked_loop(images, space, teacher, compute),
        "fine-tuning: middle network, all patches": _supervised_loop(images, space.centre(10), compute),
    }
    cases = [Case(name, "images", STEPS * BATCH, _steps(loop)) for name, loop in trainings.items()]
    objective = MaskedDistillation(_settings(space), teacher, compute)
    scorer = MeasureScorer(
        TrainedParts(supernet=objective.supernet, projector=objective.projector, decoder=objective.decoder),
        teacher,
        images,
        tuple(Measure),
        ScoringSettings(mask_ratio=MASK_RATIO, batch_size=IMAGES, seed=0),
        compute,
        poll=lambda: None,
    )
    subjects: dict[str, tuple[Measure, ...]] = {
        "consistency": (Measure.CONSISTENCY,),
        "and effective rank": (Measure.CONSISTENCY, Measure.EFFECTIVE_RANK),
        "and bare tokens, features": (Measure.CONSISTENCY, Measure.CONSISTENCY_BARE, Measure.FEATURE),
        "and reconstruction": tuple(Measure),
    }
    for name, measures in subjects.items():
        run = _scores(scorer, space.centre(), measures)
        cases.append(Case(f"scoring, {IMAGES} images: {name}", "networks", SCORED, run))
    return cases


def _images(space: Space) -> ImageSet:
    shape = (IMAGES, space.in_chans, space.img_size, space.img_size)
    pixels = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    preprocessing = Preprocessing(
        size=space.img_size,
        mean=(0.5,) * space.in_chans,
        std=(0.25,) * space.in_chans,
        interpolation=Interpolation.BICUBIC,
    )
    return ImageSet(pixels, np.arange(IMAGES), preprocessing)


def _settings(space: Space) -> MaskedSettings:
    return MaskedSettings(
        space=space, mask_ratio=MASK_RATIO, decoder=DECODER, norm_targets=True, beta=1.0, seed=0, stage="benchmark"
    )


def _masked_loop(images: ImageSet, space: Space, teacher: FrozenTeacher | None, compute: Compute) -> TrainingLoop[Any]:
    objective = MaskedDistillation(_settings(space), teacher, compute)
    return TrainingLoop(
        objective=objective,
        batches=ImageBatches(images, BatchOrder(IMAGES, BATCH, 0, ("benchmark",)), WHOLE, compute),
        optimizer=build_adamw(objective.named_parameters(), weight_decay=0.05),
        schedule=WarmupCosine(1e-4, 0, STEPS),
        compute=compute,
        clip_grad=1.0,
    )


def _supervised_loop(images: ImageSet, arch: Architecture, compute: Compute) -> TrainingLoop[Any]:
    network = build_timm(arch, torch.Generator().manual_seed(0)).to(compute.device)
    data = LabelledSet(images, np.arange(IMAGES) % arch.num_classes, arch.num_classes)
    return TrainingLoop(
        objective=Supervised(network, label_smoothing=0.1),
        batches=LabelledBatches(data, BatchOrder(IMAGES, BATCH, 0, ("benchmark",)), Augmentation(), Mixing(), compute),
        optimizer=build_adamw(network.named_parameters(), weight_decay=0.05),
        schedule=WarmupCosine(1e-4, 0, STEPS),
        compute=compute,
        clip_grad=1.0,
    )


class _Silent:
    def after_step(self, loop: TrainingLoop[Any]) -> None:
        """Nothing to do."""

    def metrics(self, step: int, values: Any) -> None:
        """Nothing to keep."""


def _steps(loop: TrainingLoop[Any]) -> Callable[[], None]:
    def run() -> None:
        loop.step = 0
        loop.run(_Silent())

    return run


def _scores(scorer: MeasureScorer, arch: Architecture, measures: tuple[Measure, ...]) -> Callable[[], None]:
    def run() -> None:
        for _ in range(SCORED):
            scorer.score(arch, measures)

    return run


if __name__ == "__main__":
    main()
