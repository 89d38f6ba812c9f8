"""How often widths leave the grid: where they may, and where it would not help."""

from __future__ import annotations

from typing import Any

import pytest

from service.datasets.builtin import BUILTINS
from service.errors import ValidationFailed
from service.jobs.resolve import resolve_slimmable
from service.jobs.spec import SlimmableSpec, SlimmableTrainingSpec


def training(**fields: Any) -> SlimmableTrainingSpec:
    """Of a network with heads of 32 channels."""
    body = {"method": "scala", "dataset": "digits", "widths": {"smallest": 0.25, "step": 0.125}, **fields}
    return resolve_slimmable(SlimmableSpec.model_validate(body), BUILTINS["digits"]).spec.training


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, (0.25, 0.25)),
        ({"training": {"off_grid": 0.0}}, (0.0, 0.25)),
        ({"training": {"off_grid": 1.0, "off_grid_smallest": 0.0}}, (1.0, 0.0)),
        ({"widths": {"smallest": 0.25, "step": "every"}}, (0.0, 0.0)),
        ({"slicing": {"qkv": "contiguous"}}, (0.0, 0.0)),
        ({"slicing": {"qkv": "contiguous"}, "training": {"off_grid": 0.5}}, (0.5, 0.0)),
        ({"method": "usnet"}, (0.0, 0.0)),
        ({"method": "usnet", "training": {"off_grid": 0.5}}, (0.5, 0.0)),
        ({"method": "separate"}, (None, None)),
    ],
)
def test_widths_leave_a_grid_with_gaps_unless_told_otherwise(
    fields: dict[str, Any], expected: tuple[float | None, float | None]
) -> None:
    found = training(**fields)
    assert (found.off_grid, found.off_grid_smallest) == expected


@pytest.mark.parametrize("name", ["off_grid", "off_grid_smallest"])
def test_widths_that_are_trained_alone_have_no_grid_to_leave(name: str) -> None:
    with pytest.raises(ValidationFailed) as caught:
        training(method="separate", training={name: 0.5})
    [item] = caught.value.errors
    assert (item.pointer, item.code) == (f"/training/{name}", "not_with_method")
