"""Whatever a body combines: it is refused at fields that it has or could have, or becomes a whole spec."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest
from pydantic import ValidationError

from models.architecture import Architecture, Pool
from service.datasets.builtin import BUILTINS
from service.datasets.info import DatasetInfo
from service.errors import ServiceError
from service.jobs.resolve import Resolved, resolve_search, space_of, teacher_architecture
from service.jobs.spec import SearchSpec
from service.supernets.info import SupernetInfo
from service.teachers.info import TeacherInfo
from tests.bodies import SEARCHES, random_body

DIGITS = BUILTINS["digits"]
DATASETS = (
    DIGITS,
    replace(DIGITS, labelled=False, classes=()),
    replace(DIGITS, name="photos", digest="cd" * 32, images=100_000, channels=3, min_side=300, test_images=1000),
    replace(DIGITS, name="pictures", digest="ef" * 32, images=60_000, channels=3, min_side=32),
)
FOREIGN = Architecture(
    embed_dim=768, depth=12, num_heads=(12,) * 12, mlp_ratio=(4.0,) * 12, num_classes=0, pool=Pool.TOKEN
)
TEACHER = TeacherInfo(id=UUID(int=1), name="MAE", digest="ab" * 32, architecture=FOREIGN.to_json(), info={})

MAY_STAY_OPEN = {
    "/teacher",  # one of its sources
    "/warm_start",
    "/widths",
    "/constraints/min",
    "/constraints/max",
    "/supernet/clip_grad",
    "/teacher/pretrain/clip_grad",
    "/retrain/clip_grad",
    "/search/architectures",
    "/search/population_from",
    "/search/warm_start_zero_cost",
    "/search/evaluation/racing",
    "/search/architectures/name",
    "/search/fusion",  # where nothing could be fused
    "/budget/max_wall_seconds",
    "/budget/max_device_hours",
    "/retry/max_attempts",
}

LATER_OPTIONS = ("distill", "recon_target", "sampling", "students", "crop_scale", "horizontal_flip", "betas")
"""What specs of the first version did not have."""


def resolved(body: dict[str, Any], dataset: DatasetInfo, warm: SupernetInfo | None = None) -> Resolved | None:
    """None when the body was refused as it should be."""
    try:
        spec = SearchSpec.model_validate(body)
    except ValidationError:
        return None
    try:
        return resolve_search(spec, dataset, warm, TEACHER if spec.teacher.id else None)
    except ServiceError as error:
        check_refusal(error, body)
        return None


def check_refusal(refusal: ServiceError, body: dict[str, Any]) -> None:
    assert refusal.errors, refusal.detail
    assert [item.pointer for item in refusal.errors if not SEARCHES.is_place(item.pointer, body)] == []
    json.dumps(refusal.to_json(), allow_nan=False)


def open_fields(spec: SearchSpec) -> set[str]:
    """Places without a value that should have one; entries of lists are not told apart."""

    def walk(value: Any, pointer: str) -> set[str]:
        if isinstance(value, dict):
            return {found for key, part in value.items() for found in walk(part, f"{pointer}/{key}")}
        if isinstance(value, list):
            return {found for part in value for found in walk(part, pointer)}
        return {pointer} if value is None else set()

    found = walk(spec.model_dump(mode="json"), "") - MAY_STAY_OPEN
    return found - {f"/teacher/{source}" for source in ("pretrain", "id", "timm")}


def check_whole(found: Resolved, dataset: DatasetInfo, warm: SupernetInfo | None = None) -> None:
    assert open_fields(found.spec) == set()
    stored = json.loads(json.dumps(found.spec.model_dump(mode="json"), allow_nan=False))
    assert SearchSpec.model_validate(stored) == found.spec
    assert space_of(found.spec) == found.space
    again = resolved(stored, dataset, warm)
    assert again is not None
    assert (again.spec, again.space) == (found.spec, found.space)


def trained(found: Resolved, dataset: DatasetInfo, *, first_version: bool = False) -> SupernetInfo:
    """What such a search leaves for others to take over."""
    pretrain = found.spec.teacher.pretrain
    teacher = FOREIGN if pretrain is None else teacher_architecture(pretrain, found.space)
    spec = found.spec.model_dump(mode="json", include={"dataset", "teacher", "supernet"})
    if first_version:
        for part in (spec["supernet"], spec["teacher"]["pretrain"] or {}):
            for option in LATER_OPTIONS:
                part.pop(option, None)
    licence = None if pretrain else {"name": "CC-BY-NC-4.0", "commercial_use": False, "note": "ask"}
    return SupernetInfo(
        reference="sn_x",
        method="masktas",
        space=found.space.to_json(),
        dataset=dataset.digest,
        spec=spec,
        files={},
        outputs={"teacher": {"architecture": teacher.to_json(), "name": "T", "licence": licence}},
        trained_for={"sampling": found.spec.supernet.sampling},
    )


@pytest.mark.parametrize("seed", range(150))
def test_a_random_body_is_refused_at_its_fields_or_becomes_a_whole_spec(seed: int) -> None:
    rng = random.Random(seed)
    dataset = rng.choice(DATASETS)
    found = resolved(random_body(rng), dataset)
    if found is not None:
        check_whole(found, dataset)


@pytest.mark.parametrize("seed", range(80))
def test_a_random_body_takes_over_a_random_supernet_or_is_refused_at_its_fields(seed: int) -> None:
    rng = random.Random(seed)
    dataset = rng.choice(DATASETS)
    first = resolved(random_body(rng), dataset)
    if first is None:
        return
    body, filled = random_body(rng), first.spec.model_dump(mode="json")
    for part in ("space", "teacher", "supernet", "widths"):
        if rng.random() < 0.7:
            body.pop(part, None)
        elif rng.random() < 0.7:
            body[part] = filled[part]
    other = rng.choice((dataset, *DATASETS))
    warm = trained(first, dataset)
    found = resolved({**body, "warm_start": warm.reference}, other, warm)
    if found is not None:
        check_whole(found, other, warm)
        assert found.space.digest() == first.space.digest()


def test_random_bodies_get_through_often_enough_to_say_something() -> None:
    drawn = [random_body(random.Random(seed)) for seed in range(50)]
    assert sum(resolved(body, DIGITS) is not None for body in drawn) > 10


def test_a_supernet_of_the_first_version_is_taken_over_with_the_options_that_it_had() -> None:
    first = resolved({"method": "masktas", "dataset": "digits"}, DIGITS)
    assert first is not None
    warm = trained(first, DIGITS, first_version=True)
    found = resolved({"method": "masktas", "dataset": "digits", "warm_start": "sn_x"}, DIGITS, warm)
    assert found is not None
    check_whole(found, DIGITS, warm)
    assert (found.spec.supernet, found.spec.teacher) == (first.spec.supernet, first.spec.teacher)


def test_what_a_supernet_of_the_first_version_was_trained_by_may_be_repeated() -> None:
    first = resolved({"method": "masktas", "dataset": "digits"}, DIGITS)
    assert first is not None
    warm = trained(first, DIGITS, first_version=True)
    body = {"method": "masktas", "dataset": "digits", "warm_start": "sn_x"}
    assert resolved({**body, "supernet": warm.spec["supernet"], "teacher": warm.spec["teacher"]}, DIGITS, warm)


@pytest.mark.parametrize(
    "axes",
    [
        {"embed_dim": [4], "num_heads": [1], "head_dim": 2},
        {"embed_dim": [8192], "num_heads": [1], "head_dim": 1},
        {"embed_dim": [16], "num_heads": [1], "head_dim": 1024},
        {"embed_dim": [16], "num_heads": [1], "depth": [1, 128]},
    ],
    ids=str,
)
def test_the_default_teacher_is_as_large_as_any_network_of_a_space(axes: dict[str, Any]) -> None:
    space = {"depth": [1], "mlp_ratio": [2.0], "img_size": 8, "patch_size": 2, **axes}
    found = resolved({"method": "masktas", "dataset": "digits", "space": space}, DIGITS)
    assert found is not None
    check_whole(found, DIGITS)
    assert found.spec.teacher.pretrain is not None
    teacher, largest = teacher_architecture(found.spec.teacher.pretrain, found.space), found.space.largest()
    assert (teacher.embed_dim, teacher.depth) == (largest.embed_dim, largest.depth)


def test_a_smallest_width_that_rounds_to_the_largest_is_refused() -> None:
    body = {"method": "masktas", "dataset": "digits", "widths": {"smallest": 1 - 1e-9, "step": 0.5}}
    with pytest.raises(ServiceError) as caught:
        resolve_search(SearchSpec.model_validate(body), DIGITS)
    assert [item.pointer for item in caught.value.errors] == ["/widths/smallest"]
