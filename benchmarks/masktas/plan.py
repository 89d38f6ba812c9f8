"""What the ablation runs: one search job for each entry, all on the same images, with everything else equal.

Arms follow the response of MaskTAS' authors to its reviews: full; without reconstruction; without distillation, equally
long and four times as long. What needs no training of its own takes the supernet of the full arm over: random search,
the largest and a uniform network of equal cost, and the scores of networks that were trained on their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from study.plan import Entry, Made, Study

from masktas.found import found
from models.architecture import Architecture, Genotype
from search import presets
from search.constraints import Constraint, feasible_set
from search.metrics import Metric
from search.space import Space

Json = dict[str, Any]

NUM_CLASSES = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How large the study is.

    Attributes:
        name: as on the command line.
        splits: see ``Study``.
        img_size: side of the images in pixels.
        window: least and largest number of parameters of the budget window, in millions.
        networks: trained on their own, in the window and as many over the whole space.
        pretrain: fields of the masked training of teacher and supernet.
        longer: how many times longer the supernet without distillation trains in its second arm.
        retrain: fields of supervised training.
        search: fields of the search.
        seeds: of the supernets and everything after them.
        standalone_seeds: of the stand-alone trainings.
    """

    name: str
    splits: tuple[int, int, int]
    img_size: int
    window: tuple[float, float]
    networks: int
    pretrain: Mapping[str, Any]
    longer: int
    retrain: Mapping[str, Any]
    search: Mapping[str, Any]
    seeds: tuple[int, ...]
    standalone_seeds: tuple[int, ...]

    @property
    def space(self) -> Space:
        """The space that is searched."""
        return presets.resolve("micro", img_size=self.img_size, in_chans=3)


_RECIPE = {"batch_size": 64, "lr": 0.002, "mask_ratio": 0.5}

SCALES: Mapping[str, Scale] = {
    scale.name: scale
    for scale in (
        Scale(
            name="toy",  # seconds a job: whether everything works
            splits=(300, 200, 200),
            img_size=8,
            window=(0.15, 0.25),
            networks=4,
            pretrain={**_RECIPE, "epochs": 1},
            longer=2,
            retrain={"epochs": 1, "batch_size": 64, "lr": 0.002, "horizontal_flip": True},
            search={"population": 4, "generations": 1, "parents": 2, "evaluation": {"images": 64}},
            seeds=(0,),
            standalone_seeds=(0,),
        ),
        Scale(
            name="full",
            splits=(10_000, 8_000, 10_000),
            img_size=16,
            window=(0.19, 0.21),
            networks=24,
            pretrain={**_RECIPE, "epochs": 50, "crop_scale": [0.4, 1.0], "horizontal_flip": True},
            longer=4,
            retrain={"epochs": 24, "batch_size": 64, "lr": 0.002, "horizontal_flip": True},
            search={"population": 50, "generations": 7, "max_evaluations": 400, "evaluation": {"images": 1024}},
            seeds=(0, 1, 2),
            standalone_seeds=(0, 1),
        ),
    )
}


def study(scale: Scale) -> Study:
    """All of it."""
    return Study(name=scale.name, splits=scale.splits, entries=entries(scale), found=found)


def entries(scale: Scale) -> list[Entry]:
    """All jobs, each after those that it needs."""
    jobs = [
        _standalone(scale, f"standalone {where}", genotypes, seed)
        for where, genotypes in given_networks(scale).items()
        for seed in scale.standalone_seeds
    ]
    for seed in scale.seeds:
        jobs += [
            _supernet(scale, "full", seed, {}),
            _supernet(scale, "no reconstruction", seed, {"reconstruction": False}),
            _supernet(scale, "no distillation", seed, {"distillation": False}),
            _supernet(
                scale, f"no distillation, {scale.longer} times longer", seed, {"distillation": False}, scale.longer
            ),
            _taking_over(scale, "random search", seed, _search(scale) | {"algorithm": "random"}, retrain=True),
            _taking_over(scale, "largest", seed, _listed([largest_in_window(scale).genotype], scale), retrain=True),
            _taking_over(scale, "uniform", seed, _listed([uniform_in_window(scale).genotype], scale), retrain=True),
            *_scorings(scale, seed),
        ]
    return jobs


def given_networks(scale: Scale) -> dict[str, list[Genotype]]:
    """The networks that are trained on their own, drawn as a random search draws them."""
    low, high = scale.window
    window = _drawn(scale, [Constraint(Metric.PARAMS_M, min=low, max=high)], np.random.default_rng(1), [])
    return {"window": window, "space": _drawn(scale, [], np.random.default_rng(2), window)}


def largest_in_window(scale: Scale) -> Architecture:
    """Of the networks within the limit the one with the most parameters among 10,000 random ones."""
    return max(_candidates(scale), key=Metric.PARAMS_M.count_of)


def uniform_in_window(scale: Scale) -> Architecture:
    """Of the networks within the limit whose blocks are all alike the one with the most parameters."""
    return max((arch for arch in _uniform(scale.space) if _within(scale, arch)), key=Metric.PARAMS_M.count_of)


def _uniform(space: Space) -> list[Architecture]:
    return [
        space.decode((depth, *[ratio] * depth, *[heads] * depth, width), NUM_CLASSES)
        for width in space.embed_dim
        for depth in space.depth
        for heads in space.num_heads
        for ratio in space.mlp_ratio
    ]


def _candidates(scale: Scale) -> list[Architecture]:
    members = feasible_set(scale.space, [Constraint(Metric.PARAMS_M, max=scale.window[1])], NUM_CLASSES)
    rng = np.random.default_rng(3)
    return [scale.space.decode(members.sample(rng), NUM_CLASSES) for _ in range(10_000)]


def _within(scale: Scale, arch: Architecture) -> bool:
    return Metric.PARAMS_M.count_of(arch) <= scale.window[1] * 1_000_000


def _drawn(
    scale: Scale, limits: Sequence[Constraint], rng: np.random.Generator, without: Sequence[Genotype]
) -> list[Genotype]:
    members = feasible_set(scale.space, limits, NUM_CLASSES)
    drawn: dict[Genotype, None] = {}
    while len(drawn) < scale.networks:
        genotype = members.sample(rng)
        if genotype not in without:
            drawn[genotype] = None
    return list(drawn)


def _common(scale: Scale, name: str, dataset: str, seed: int) -> Json:
    return {"name": name, "method": "masktas", "dataset": dataset, "seed": seed}


def _search(scale: Scale) -> Json:
    return {**scale.search, "baseline": "none"}


def _limit(scale: Scale) -> list[Json]:
    return [{"metric": "params_m", "max": scale.window[1]}]


def _listed(genotypes: Sequence[Genotype], scale: Scale) -> Json:
    networks = [scale.space.decode(genotype) for genotype in genotypes]
    return {
        "algorithm": "listed",
        "evaluation": scale.search["evaluation"],
        "architectures": [
            {
                "embed_dim": network.embed_dim,
                "depth": network.depth,
                "num_heads": list(network.num_heads),
                "mlp_ratio": list(network.mlp_ratio),
            }
            for network in networks
        ],
    }


def _standalone(scale: Scale, arm: str, genotypes: Sequence[Genotype], seed: int) -> Entry:
    """Every network from random weights; the supernet, which takes no part in it, is trained as little as possible."""
    size = {"embed_dim": 32, "depth": 1, "num_heads": 2, "head_dim": 16, "mlp_ratio": 2.0}
    name = f"{arm}-{seed}"

    def body(dataset: str, made: Made) -> Json:
        return {
            **_common(scale, name, dataset, seed),
            "space": {"preset": "micro", "img_size": scale.img_size, "in_chans": 3},
            "teacher": {"pretrain": {"architecture": size, "epochs": 1, "batch_size": 256}},
            "supernet": {"epochs": 1, "batch_size": 256},
            "search": {**_listed(genotypes, scale), "evaluation": {"images": 64}},
            "retrain": {**scale.retrain, "mode": "scratch", "layer_decay": 1.0, "top_k": len(genotypes)},
        }

    return Entry(name, arm, seed, body)


def _supernet(scale: Scale, arm: str, seed: int, changes: Json, times: int = 1) -> Entry:
    name = f"{arm}-{seed}"

    def body(dataset: str, made: Made) -> Json:
        pretrain = dict(scale.pretrain)
        return {
            **_common(scale, name, dataset, seed),
            "space": {"preset": "micro", "img_size": scale.img_size, "in_chans": 3},
            "constraints": _limit(scale),
            "teacher": {"pretrain": pretrain} if arm == "full" else {"id": made[f"teacher/full-{seed}"]},
            "supernet": {**pretrain, "epochs": pretrain["epochs"] * times, **changes},
            "search": _search(scale),
            "retrain": {**scale.retrain, "mode": "finetune", "top_k": 1},
        }

    return Entry(name, arm, seed, body, needs=None if arm == "full" else f"full-{seed}")


def _taking_over(scale: Scale, arm: str, seed: int, search: Json, *, retrain: bool) -> Entry:
    name = f"{arm}-{seed}"

    def body(dataset: str, made: Made) -> Json:
        finetune = {**scale.retrain, "mode": "finetune", "top_k": 1}
        return {
            **_common(scale, name, dataset, seed),
            "warm_start": made[f"supernet/full-{seed}"],
            "constraints": _limit(scale) if retrain else [],
            "search": search,
            "retrain": finetune if retrain else {"mode": "none"},
        }

    return Entry(name, arm, seed, body, needs=f"full-{seed}", keeps_candidates=not retrain)


def _scorings(scale: Scale, seed: int) -> list[Entry]:
    """Every measure of the networks that were trained on their own, by the full arm's supernet."""
    networks = [genotype for genotypes in given_networks(scale).values() for genotype in genotypes]
    images = scale.search["evaluation"]["images"]
    variants: dict[str, Json] = {
        "scores": {},
        "scores, four masks": {"mask_seeds": 4},
        "scores, three depths": {"depths": [0.5, 0.75, 1.0]},
        "scores, rows not standardised": {"standardise": False},
        "scores, two patches hidden": {"mask_ratio": 0.1},
    }
    return [
        _taking_over(
            scale,
            arm,
            seed,
            {**_listed(networks, scale), "evaluation": {"images": images, "companions": True, **changes}},
            retrain=False,
        )
        for arm, changes in variants.items()
    ]
