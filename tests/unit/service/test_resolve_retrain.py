"""What a body leaves open of its retraining is filled; what excludes itself is refused with a pointer."""

from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from service.datasets.builtin import BUILTINS
from service.datasets.info import DatasetInfo
from service.errors import ValidationFailed
from service.jobs.resolve import Resolved, resolve_search
from service.jobs.spec import RetrainSpec, SearchSpec

DIGITS = BUILTINS["digits"]
PHOTOS = replace(DIGITS, name="photos", images=100_000, channels=3, min_side=300)


def resolve(dataset: DatasetInfo = DIGITS, **retrain: Any) -> Resolved:
    return resolve_search(
        SearchSpec.model_validate({"method": "masktas", "dataset": "digits", "retrain": retrain}), dataset
    )


def filled(dataset: DatasetInfo = DIGITS, **retrain: Any) -> RetrainSpec:
    return resolve(dataset, **retrain).spec.retrain


def test_crops_take_the_place_of_the_translation() -> None:
    spec = filled(crop_scale=[0.2, 1.0])
    assert (spec.crop_scale, spec.max_shift) == ((0.2, 1.0), 0.0)
    assert filled().crop_scale == (1.0, 1.0)


def test_crops_and_translation_together_are_refused() -> None:
    with pytest.raises(ValidationFailed) as caught:
        resolve(crop_scale=[0.2, 1.0], max_shift=0.1)
    assert [item.pointer for item in caught.value.errors] == ["/retrain/max_shift"]


@pytest.mark.parametrize("scale", [[0.0, 1.0], [0.8, 0.2], [0.5, 1.5], [0.5]])
def test_impossible_crops_are_refused_at_their_field(scale: list[float]) -> None:
    with pytest.raises(ValidationError) as caught:
        resolve(crop_scale=scale)
    assert {error["loc"][:2] for error in caught.value.errors()} == {("retrain", "crop_scale")}
