"""How much faster a search scores than the published procedure, and what each shortcut has of it.

The procedure is that of AutoFormer's ``evolution.py`` (Chen et al. 2021) with a label-free score: one candidate at a
time, batch by batch, first on the selection images and then on the test images, whose figure it prints beside the other
and does not use. The teacher answers anew for each candidate. It is written here with the plain forward pass of the
supernet, without the scoring engine. Then one shortcut after the other is added, and at last each one alone is left out
of the fastest; the same evolution runs from the same seed each time, and its ten best must be the same.

    python benchmarks/search_scoring.py [--population 50] [--generations 4] [--steps 200] [--threads 1]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from models.architecture import Architecture, Genotype
from models.distill import FeatureProjector, distillation_target
from models.extract import build_timm, extract_state
from models.masked import DecoderConfig, random_masking, visible_patches
from models.relations import consistency_score, log_relations
from models.supernet import Supernet
from models.teacher import FrozenTeacher
from search import presets
from search.asktell import Candidate
from search.evolution import EvolutionSettings
from search.factory import AlgorithmName, make_search
from search.measures import Measure
from search.prefixes import depth_first, path_of
from search.racing import Race
from search.space import Space
from service.datasets.builtin import BUILTINS
from workers.data.dataset import Dataset, DatasetRequest, ImageSet, open_dataset
from workers.stages.scoring import LOOKS, MeasureScorer, ScoringSettings, TrainedParts
from workers.training.compute import Compute
from workers.training.crops import RandomCrop
from workers.training.engine import TrainingLoop
from workers.training.masked import ImageBatches, MaskedDistillation, MaskedSettings
from workers.training.optimizer import build_adamw
from workers.training.schedule import BatchOrder, WarmupCosine
from workers.training.streams import torch_stream

SEED = 0
BEST = 10
BATCH = 64
"""Of the published script."""

LARGE_BATCH = 128
"""Of the engine: fewer calls; racing still has three tests of 448 images."""

MASK_RATIO = 0.5
RACING = 0.05
WHOLE_CANDIDATES = 10
CPU = Compute(torch.device("cpu"))
MEASURE = Measure.CONSISTENCY

Scores = Callable[[Sequence[Architecture], Sequence[Candidate]], list[float | None]]
"""From a generation and the best candidates so far, the best first, to the scores."""


@dataclass(frozen=True, slots=True)
class Case:
    """A row of the table: ``start`` makes ready, within the time that is measured."""

    name: str
    start: Callable[[], Scores]


@dataclass(frozen=True, slots=True)
class Run:
    """What a case has taken and found."""

    wall_s: float
    cpu_s: float
    evaluations: int
    dropped: int
    best: list[Genotype]


@dataclass(frozen=True, slots=True)
class Trained:
    """A supernet with its teacher, and images that neither has seen."""

    space: Space
    supernet: Supernet
    projector: FeatureProjector
    teacher: FrozenTeacher
    selection: ImageSet
    test: ImageSet

    @property
    def parts(self) -> TrainedParts:
        """For the scoring engine."""
        return TrainedParts(supernet=self.supernet, projector=self.projector)


def main() -> None:
    """Run all cases and print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--population", type=int, default=50, help="candidates of a generation (default 50)")
    parser.add_argument("--generations", type=int, default=4, help="after the random first one (default 4)")
    parser.add_argument("--images", type=int, default=448, help="for selection, and as many for the test (default 448)")
    parser.add_argument("--steps", type=int, default=200, help="of each training (default 200)")
    parser.add_argument("--threads", type=int, default=1, help="threads of one operation (default 1)")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    with tempfile.TemporaryDirectory() as folder:
        trained = train(Path(folder), arguments.images, arguments.steps)
    settings = EvolutionSettings(population=arguments.population, generations=arguments.generations)
    count = len(trained.selection)
    print(
        f"{trained.space.name}, {count} images for selection and {len(trained.test)} for the test, batches of {BATCH}, "
        f"half of the patches visible, population {settings.population}, {settings.generations + 1} generations, "
        f"{arguments.threads} thread(s)"
    )
    print(f"{'case':<44}{'networks/s':>11}{'times':>8}{'times CPU':>11}{'dropped':>9}  same best {BEST}")
    first: Run | None = None
    for case in cases(trained, settings):
        run = search(case, trained.space, settings)
        first = first or run
        same = "yes" if run.best == first.best else f"{len({*run.best} & {*first.best})} of {len(first.best)}"
        times, of_cpu = first.wall_s / run.wall_s, first.cpu_s / run.cpu_s
        rate = run.evaluations / run.wall_s
        print(f"{case.name:<44}{rate:>11.2f}{times:>8.2f}{of_cpu:>11.2f}{run.dropped:>9}  {same}", flush=True)
    print(whole_images(trained))


def cases(trained: Trained, settings: EvolutionSettings) -> list[Case]:
    """The published procedure, one shortcut after the other, and the fastest without each of them."""
    none = ScoringSettings(
        mask_ratio=MASK_RATIO, batch_size=BATCH, seed=SEED, shared_prefixes=False, teacher_cache=False
    )
    cached = replace(none, teacher_cache=True)
    shared = replace(cached, shared_prefixes=True)
    large = replace(shared, batch_size=LARGE_BATCH)
    raced = replace(large, shuffled=True)

    def case(name: str, how: ScoringSettings) -> Case:
        return Case(name, lambda: engine(trained, how, settings))

    return [
        Case("published procedure", lambda: published(trained, with_test=True)),
        Case("+ no test images", lambda: published(trained, with_test=False)),
        case("+ teacher's side cached", cached),
        case("+ shared beginnings", shared),
        case(f"+ batches of {LARGE_BATCH}", large),
        case("+ racing: all shortcuts", raced),
        case("all but the cached teacher", replace(raced, teacher_cache=False)),
        case("all but shared beginnings", replace(raced, shared_prefixes=False)),
        case(f"all but batches of {LARGE_BATCH}", replace(raced, batch_size=BATCH)),
    ]


def search(case: Case, space: Space, settings: EvolutionSettings) -> Run:
    """Run the evolution with the scores of a case."""
    algorithm = make_search(
        AlgorithmName.EVOLUTION,
        space=space,
        constraints=(),
        num_classes=0,
        settings=settings,
        rng=np.random.default_rng(SEED),
    )
    began, cpu_began = time.perf_counter(), time.process_time()
    scores = case.start()
    while proposals := algorithm.ask():
        mattering = max(settings.parents, BEST)
        archs = [space.decode(proposal.genotype) for proposal in proposals]
        algorithm.tell(scores(archs, algorithm.best(mattering)))
    wall_s, cpu_s = time.perf_counter() - began, time.process_time() - cpu_began
    dropped = sum(candidate.score is None for candidate in algorithm.candidates)
    best = [candidate.proposal.genotype for candidate in algorithm.best(BEST)]
    return Run(wall_s, cpu_s, len(algorithm.candidates), dropped, best)


def published(trained: Trained, *, with_test: bool, whole: bool = False) -> Scores:
    """One candidate at a time; the masks are those of the scoring engine, so that scores are."""
    parts = [trained.selection, trained.test] if with_test else [trained.selection]
    patches = trained.supernet.largest.num_patches
    if whole:
        seen = [torch.arange(patches).expand(len(images), -1) for images in parts]
    else:
        visible, generator = visible_patches(patches, MASK_RATIO), torch_stream(SEED, "search", "mask")
        seen = [random_masking(len(images), patches, visible, generator).ids_keep for images in parts]

    @torch.no_grad()
    def evaluate(arch: Architecture, images: ImageSet, ids_keep: torch.Tensor) -> float:
        total = 0.0
        for start, batch in zip(range(0, len(images), BATCH), images.batches(BATCH), strict=True):
            ids = ids_keep[start : start + BATCH]
            taught = trained.teacher.features(batch, ids, after=(trained.teacher.depth,))[0]
            student = trained.projector(trained.supernet.tokens(batch, arch, ids))
            total += consistency_score(student, log_relations(distillation_target(taught))).double().sum().item()
        return total / len(images)

    def scores(archs: Sequence[Architecture], best: Sequence[Candidate]) -> list[float | None]:
        figures = [[evaluate(arch, images, ids) for images, ids in zip(parts, seen, strict=True)] for arch in archs]
        return [of_selection for of_selection, *_ in figures]

    return scores


def engine(trained: Trained, how: ScoringSettings, settings: EvolutionSettings) -> Scores:
    """A generation at a time, by the engine that searches use."""
    scorer = MeasureScorer(trained.parts, trained.teacher, trained.selection, [MEASURE], how, CPU, lambda: None)
    tests = settings.population * (settings.generations + 1) * max(1, scorer.views - 1)
    mattering = max(settings.parents, BEST)

    def race(best: Sequence[Candidate]) -> tuple[Measure, Race] | None:
        if not how.shuffled or len(best) < mattering:
            return None
        rival = scorer.of_each_look(trained.space.decode(best[-1].proposal.genotype), MEASURE)
        return MEASURE, Race(rival, error=RACING, tests=tests)

    def scores(archs: Sequence[Architecture], best: Sequence[Candidate]) -> list[float | None]:
        order = depth_first([path_of(arch) for arch in archs])
        found = scorer.score_all([archs[i] for i in order], [[MEASURE]] * len(order), race=race(best))
        by_place = dict(zip(order, found, strict=True))
        return [None if LOOKS in by_place[i] else by_place[i][MEASURE.value] for i in range(len(archs))]

    return scores


def whole_images(trained: Trained) -> str:
    """The published procedure on all patches, which is another score: its rate beside that on the visible ones."""
    archs = [trained.space.centre()] * WHOLE_CANDIDATES
    seconds: list[float] = []
    for whole in (True, False):
        scores = published(trained, with_test=True, whole=whole)
        scores(archs[:1], [])
        began = time.process_time()
        scores(archs, [])
        seconds.append(time.process_time() - began)
    times = seconds[0] / seconds[1]
    return f"On all patches, which is another score, the published procedure takes {times:.2f} times as long."


def train(folder: Path, count: int, steps: int) -> Trained:
    """A teacher of the largest architecture, and a supernet that is distilled from it, on the built-in digits."""
    request = DatasetRequest(
        digest=BUILTINS["digits"].digest,
        blob=None,
        size=8,
        channels=1,
        val_fraction=0.25,
        holdout_fraction=0.25,
    )
    data: Dataset = open_dataset(request, folder)
    space = presets.resolve("micro", img_size=8, in_chans=1)
    ends = {axis: (getattr(space, axis)[-1],) for axis in ("embed_dim", "depth", "num_heads", "mlp_ratio")}
    alone = _objective(replace(space, name="largest", **ends), None, "teacher")
    _train(alone, data.train, steps)
    largest = space.largest()
    network = build_timm(largest, torch.Generator().manual_seed(SEED))
    network.load_state_dict(extract_state(alone.supernet.state_dict(), largest, largest))
    teacher = FrozenTeacher(network)
    objective = _objective(space, teacher, "supernet")
    _train(objective, data.train, steps)
    assert objective.projector is not None, "there is a teacher"
    return Trained(
        space=space,
        supernet=objective.supernet,
        projector=objective.projector,
        teacher=teacher,
        selection=data.val.first(count),
        test=data.holdout.first(count),
    )


def _objective(space: Space, teacher: FrozenTeacher | None, stage: str) -> MaskedDistillation:
    settings = MaskedSettings(
        space=space,
        mask_ratio=MASK_RATIO,
        decoder=DecoderConfig(dim=64, depth=1, num_heads=4),
        norm_targets=True,
        beta=1.0,
        seed=SEED,
        stage=stage,
    )
    return MaskedDistillation(settings, teacher, CPU)


def _train(objective: MaskedDistillation, images: ImageSet, steps: int) -> None:
    loop: TrainingLoop[Any] = TrainingLoop(
        objective=objective,
        batches=ImageBatches(
            images,
            BatchOrder(len(images), BATCH, SEED, ("benchmark",)),
            RandomCrop((1.0, 1.0), horizontal_flip=False),
            CPU,
        ),
        optimizer=build_adamw(objective.named_parameters(), weight_decay=0.05),
        schedule=WarmupCosine(1e-3, min(20, steps - 1), steps),
        compute=CPU,
        clip_grad=1.0,
    )
    loop.run(_Silent())


class _Silent:
    def after_step(self, loop: TrainingLoop[Any]) -> None:
        """Nothing to do."""

    def metrics(self, step: int, values: Any) -> None:
        """Nothing to keep."""


if __name__ == "__main__":
    main()
