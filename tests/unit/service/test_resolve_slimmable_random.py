"""Whatever a body of a slimmable network combines: it is refused at its fields, or becomes a whole spec."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from pydantic import ValidationError

from models.architecture import Architecture, Pool
from models.foreign.layout import VitLayout
from service.datasets.builtin import BUILTINS
from service.datasets.info import DatasetInfo
from service.errors import ServiceError
from service.jobs.resolve import ResolvedSlimmable, resolve_slimmable, slimmable_of
from service.jobs.spec import SlimmableSpec
from service.supernets.info import SupernetInfo
from service.teachers.info import TeacherInfo
from tests.bodies import SLIMMABLE

DIGITS = BUILTINS["digits"]
DATASETS = (
    DIGITS,
    replace(DIGITS, labelled=False, classes=()),
    replace(DIGITS, name="photos", digest="cd" * 32, images=100_000, channels=3, min_side=300, test_images=1000),
    replace(DIGITS, name="pictures", digest="ef" * 32, images=60_000, channels=3, min_side=32),
    replace(DIGITS, name="odd", digest="aa" * 32, images=200, channels=3, min_side=61),
)
FOREIGN = Architecture(
    embed_dim=384, depth=12, num_heads=(6,) * 12, mlp_ratio=(4.0,) * 12, num_classes=0, pool=Pool.TOKEN
)
TEACHERS = tuple(
    TeacherInfo(
        id=UUID(int=i),
        name="n" * 200,
        digest="ab" * 32,
        architecture=layout.arch.to_json(),
        info={"layout": layout.to_json()},
    )
    for i, layout in enumerate(
        (
            VitLayout(arch=FOREIGN),
            VitLayout(arch=FOREIGN, layer_scale=True),
            VitLayout(arch=FOREIGN, registers=4),
            VitLayout(arch=FOREIGN, registers=1),
        )
    )
)

MAY_STAY_OPEN = {
    "/init",
    "/init/teacher",
    "/init/timm",
    "/warm_start",
    "/teacher",
    "/teacher/id",
    "/teacher/timm",
    "/teacher/train",
    "/teacher/train/clip_grad",
    "/training/clip_grad",
    "/constraints/min",
    "/constraints/max",
    "/budget/max_wall_seconds",
    "/budget/max_device_hours",
    "/retry/max_attempts",
}
NOT_OF_METHOD = {
    "scala": set[str](),
    "usnet": {"/training/stable_sampling"},
    "separate": {
        f"/training/{name}"
        for name in (
            "stable_sampling",
            "off_grid",
            "off_grid_smallest",
            "teacher_of_subnets",
            "noise_calibration",
            "cross_entropy",
            "kd_weight",
            "early_distillation_after_epochs",
            "full_warm_epochs",
            "full_warm_factor",
        )
    },
}


def resolved(
    body: dict[str, Any], dataset: DatasetInfo, teacher: TeacherInfo, warm: SupernetInfo | None = None
) -> ResolvedSlimmable | None:
    """None when the body was refused as it should be."""
    try:
        spec = SlimmableSpec.model_validate(body)
    except ValidationError:
        return None
    known = teacher if spec.teacher is not None and spec.teacher.id is not None else None
    init = teacher if spec.init is not None and spec.init.teacher is not None else None
    try:
        return resolve_slimmable(spec, dataset, warm, known, init)
    except ServiceError as refusal:
        check_refusal(refusal, body)
        return None


def check_refusal(refusal: ServiceError, body: dict[str, Any]) -> None:
    assert refusal.errors, refusal.detail
    assert [item.pointer for item in refusal.errors if not SLIMMABLE.is_place(item.pointer, body)] == []
    json.dumps(refusal.to_json(), allow_nan=False)


def open_fields(spec: SlimmableSpec) -> set[str]:
    """Places without a value; entries of lists are not told apart."""

    def walk(value: Any, pointer: str) -> set[str]:
        if isinstance(value, dict):
            return {found for key, part in value.items() for found in walk(part, f"{pointer}/{key}")}
        if isinstance(value, list):
            return {found for part in value for found in walk(part, pointer)}
        return {pointer} if value is None else set()

    return walk(spec.model_dump(mode="json"), "") - MAY_STAY_OPEN - NOT_OF_METHOD[spec.method]


def check_whole(
    found: ResolvedSlimmable, dataset: DatasetInfo, teacher: TeacherInfo, warm: SupernetInfo | None = None
) -> None:
    assert open_fields(found.spec) == set()
    stored = json.loads(json.dumps(found.spec.model_dump(mode="json"), allow_nan=False))
    assert SlimmableSpec.model_validate(stored) == found.spec
    assert slimmable_of(found.spec, found.num_classes) == found.net
    assert found.within
    assert set(found.within) <= set(found.served)
    again = resolved(stored, dataset, teacher, warm)
    assert again is not None
    assert (again.spec, again.net) == (found.spec, found.net)


def trained(found: ResolvedSlimmable, dataset: DatasetInfo) -> SupernetInfo:
    """What such a job leaves for others to continue."""
    parts = {"dataset", "network", "widths", "slicing", "teacher", "training"}
    return SupernetInfo(
        reference="sn_x",
        method=found.spec.method,
        space=found.net.to_json(),
        dataset=dataset.digest,
        classes=dataset.classes if found.num_classes else (),
        spec=found.spec.model_dump(mode="json", include=parts),
        files={},
        outputs={},
        trained_for={},
    )


@pytest.mark.parametrize("seed", range(150))
def test_a_random_body_is_refused_at_its_fields_or_becomes_a_whole_spec(seed: int) -> None:
    rng = random.Random(seed)
    dataset, teacher = rng.choice(DATASETS), rng.choice(TEACHERS)
    found = resolved(SLIMMABLE.random(rng), dataset, teacher)
    if found is not None:
        check_whole(found, dataset, teacher)


@pytest.mark.parametrize("seed", range(60))
def test_a_random_body_continues_a_random_network_or_is_refused_at_its_fields(seed: int) -> None:
    rng = random.Random(seed)
    dataset, teacher = rng.choice(DATASETS), rng.choice(TEACHERS)
    first = resolved(SLIMMABLE.random(rng), dataset, teacher)
    if first is None:
        return
    body, filled = SLIMMABLE.random(rng), first.spec.model_dump(mode="json")
    for part in ("init", "network", "slicing", "method"):
        if rng.random() < 0.7:
            body.pop(part, None)
        elif rng.random() < 0.7:
            body[part] = filled[part]
    body.setdefault("method", filled["method"])
    other = rng.choice((dataset, *DATASETS))
    warm = trained(first, dataset)
    found = resolved({**body, "warm_start": warm.reference}, other, teacher, warm)
    if found is not None:
        check_whole(found, other, teacher, warm)
        assert found.net.largest == first.net.largest


def test_random_bodies_get_through_often_enough_to_say_something() -> None:
    drawn = [SLIMMABLE.random(random.Random(seed)) for seed in range(100)]
    found = [resolved(body, DIGITS, TEACHERS[0]) for body in drawn]
    assert {each.spec.method for each in found if each is not None} == {"scala", "usnet", "separate"}
    assert sum(each is not None for each in found) > 15
