"""What the study of slimmable networks runs: one search job for each entry, all on the same images.

The whole network is 96 wide, with three heads of 32 channels. *Arms* take one part of Scala away at a time (Zhang et
al. 2024, tables 7 and 10), or are what it is measured against. Each part is looked at under head-aligned slicing, ours,
and under the slicing of the released code (*official*: contiguous rows, isolated activation mirrored, attention scaled
by the whole network's heads). Grids of 4, 7, 13 and all 25 widths show what becomes of the widths between.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from study.plan import Entry, Made, Study

from scala.found import found

Json = dict[str, Any]

HEAD_DIM = 32
"""Channels of a head of the whole network."""

SMALLEST = 8
"""Channels of a head of the smallest network of all grids but one."""

COMMON = tuple(range(SMALLEST, HEAD_DIM + 1, 2))
"""The 13 widths that all arms are compared at."""

SCALA = "scala"
OFFICIAL = "official"
"""Beginning of the names of arms under the slicing of the released code."""

GRIDS: Mapping[str, float | str] = {"4 widths": 0.25, "7 widths": 0.125, "every width": "every"}
"""Steps of the grids beside that of 13 widths, which is the usual one."""

_ON_GRID = {"off_grid": 0.0, "off_grid_smallest": 0.0}
"""Scala as published; without it the service moves widths off coarse grids."""

PARTS: Mapping[str, Json] = {
    "whole network teaches all": {"training": {"teacher_of_subnets": "full"}},
    "no stable sampling": {"training": {"stable_sampling": "off"}},
    "no noise calibration": {"training": {"noise_calibration": False}},
}
"""Parts of Scala that are taken away under either slicing; isolated activation is on in one and off in the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How large the study is.

    Attributes:
        name: as on the command line.
        splits: see ``Study``.
        img_size: side of the images in pixels.
        recipe: of every training, the teacher's too.
        seeds: of the jobs.
    """

    name: str
    splits: tuple[int, int, int]
    img_size: int
    recipe: Json
    seeds: tuple[int, ...]


_RECIPE = {"batch_size": 128, "lr": 0.002, "horizontal_flip": True}

SCALES: Mapping[str, Scale] = {
    scale.name: scale
    for scale in (
        Scale(
            name="toy",  # seconds a job: whether everything works
            splits=(300, 200, 200),
            img_size=8,
            recipe={**_RECIPE, "epochs": 1},
            seeds=(0,),
        ),
        Scale(
            name="full",
            splits=(10_000, 10_000, 10_000),
            img_size=16,
            recipe={**_RECIPE, "epochs": 8},
            seeds=(0, 1, 2),
        ),
    )
}


def study(scale: Scale) -> Study:
    """All of it."""
    entries = [entry for seed in scale.seeds for entry in _of_seed(scale, seed)]
    return Study(name=f"scala-{scale.name}", splits=scale.splits, entries=entries, found=found)


def _of_seed(scale: Scale, seed: int) -> list[Entry]:
    aligned: dict[str, Json] = {
        SCALA: {},
        "isolated activation": {"slicing": {"isolated_activation": "paper"}},
        **PARTS,
        "s = 0.5": {"widths": {"smallest": 0.5}},
        "s = 0.5, isolated activation": {
            "widths": {"smallest": 0.5},
            "slicing": {"isolated_activation": "paper"},
        },
        **{name: {"widths": {"step": step}} for name, step in GRIDS.items()},
        "7 widths, off grid": {"widths": {"step": GRIDS["7 widths"]}, "training": dict.fromkeys(_ON_GRID)},
        "usnet": {"method": "usnet"},
        "separate": {"method": "separate"},
    }
    official: dict[str, Json] = {
        SCALA: {},
        "no isolated activation": {"slicing": {"isolated_activation": "off"}},
        **PARTS,
        "s = 0.5": {"widths": {"smallest": 0.5}},
        "s = 0.5, no isolated activation": {
            "widths": {"smallest": 0.5},
            "slicing": {"isolated_activation": "off"},
        },
        **{name: {"widths": {"step": step}} for name, step in GRIDS.items()},
        "usnet": {"method": "usnet", "slicing": {"isolated_activation": "off"}},
    }
    jobs = [_entry(scale, arm, seed, changes) for arm, changes in aligned.items()]
    jobs += [
        _entry(scale, f"{OFFICIAL}, {arm}", seed, {**changes, "slicing": _OFFICIAL | changes.get("slicing", {})})
        for arm, changes in official.items()
    ]
    return [*jobs, *_taught(scale, seed)]


_OFFICIAL = {"qkv": "contiguous", "isolated_activation": "official", "attention_scale": "full"}


def _taught(scale: Scale, seed: int) -> list[Entry]:
    """With a teacher as large as the whole network; the first of them trains it."""
    first = _entry(scale, f"{SCALA}, teacher", seed, {"teacher": {"train": scale.recipe}})
    return [first, *(_entry(scale, f"{method}, teacher", seed, {"method": method}, first.name) for method in _AGAINST)]


_AGAINST = ("usnet", "separate")


def _entry(scale: Scale, arm: str, seed: int, changes: Json, teacher_of: str | None = None) -> Entry:
    name = f"{arm}-{seed}"

    def body(dataset: str, made: Made) -> Json:
        method = changes.get("method", SCALA)
        teacher = {} if teacher_of is None else {"teacher": {"id": made[f"teacher/{teacher_of}"], "kind": "logits"}}
        return {
            "name": name,
            "method": method,
            "dataset": dataset,
            "seed": seed,
            "network": {"img_size": scale.img_size, "in_chans": 3},
            **changes,
            **teacher,
            "widths": {"smallest": SMALLEST / HEAD_DIM, "step": 1 / 16, **changes.get("widths", {})},
            "training": {**scale.recipe, **(_ON_GRID if method == SCALA else {}), **changes.get("training", {})},
        }

    return Entry(name, arm, seed, body, needs=teacher_of)
