"""A grid of widths in place of the space's, in whole channels or refused with the nearest that is one."""

from __future__ import annotations

from typing import Any

import pytest

from service.datasets.builtin import BUILTINS
from service.errors import ErrorItem, ValidationFailed
from service.jobs.resolve import Resolved, resolve_search
from service.jobs.spec import SearchSpec

DIGITS = BUILTINS["digits"]


def resolve(smallest: float, step: float, **fields: Any) -> Resolved:
    """A search in ``micro``, whose largest width is 96."""
    body = {"method": "masktas", "dataset": "digits", "widths": {"smallest": smallest, "step": step}, **fields}
    return resolve_search(SearchSpec.model_validate(body), DIGITS)


def refusal(smallest: float, step: float, **fields: Any) -> ErrorItem:
    with pytest.raises(ValidationFailed) as caught:
        resolve(smallest, step, **fields)
    [item] = caught.value.errors
    return item


@pytest.mark.parametrize(
    ("smallest", "step", "widths"),
    [
        (0.25, 0.25, (24, 48, 72, 96)),
        (0.5, 0.125, (48, 60, 72, 84, 96)),
        (1 / 3, 1 / 3, (32, 64, 96)),
        (0.5, 0.5, (48, 96)),
        (0.875, 1 / 96, tuple(range(84, 97))),
    ],
)
def test_the_grid_replaces_the_widths_of_the_space(smallest: float, step: float, widths: tuple[int, ...]) -> None:
    resolved = resolve(smallest, step)
    assert resolved.space.embed_dim == widths
    assert resolve_search(resolved.spec, DIGITS).spec == resolved.spec


def test_widths_are_trained_as_a_sandwich_by_relations_and_marked_experimental() -> None:
    resolved = resolve(0.5, 0.25)
    supernet = resolved.spec.supernet
    assert (supernet.sampling, supernet.students) == ("sandwich", 3)
    assert (supernet.distill.loss, supernet.distill.projector) == ("relation", "none")
    assert [(item.pointer, item.code) for item in resolved.warnings] == [("/widths", "experimental")]


@pytest.mark.parametrize(
    ("smallest", "step", "pointer", "nearest"),
    [
        (0.3, 0.1, "/widths/smallest", 29 / 96),  # 28.8 channels
        (0.5, 0.1, "/widths/step", 8 / 96),  # 9.6 channels; 8 and 12 divide 48
        (0.5, 0.375, "/widths/step", 24 / 96),  # 36 channels, which do not divide 48
        (0.25, 1 / 96, "/widths/step", 2 / 96),  # 73 widths
        (0.5, 0.75, "/widths/step", 48 / 96),  # beyond the largest
    ],
)
def test_a_grid_without_whole_widths_names_the_nearest_that_has_them(
    smallest: float, step: float, pointer: str, nearest: float
) -> None:
    item = refusal(smallest, step)
    assert (item.pointer, item.allowed) == (pointer, {"nearest": nearest})
    other = (nearest, 0.25) if pointer.endswith("smallest") else (smallest, nearest)
    if pointer.endswith("step"):
        assert resolve(*other).space.embed_dim[-1] == 96


@pytest.mark.parametrize(
    ("supernet", "pointer", "allowed"),
    [
        ({"sampling": "uniform"}, "/supernet/sampling", ["sandwich"]),
        ({"distill": {"loss": "l1"}}, "/supernet/distill/loss", ["relation"]),
        ({"students": 1}, "/supernet/students", {"min": 2}),
    ],
)
def test_other_objectives_are_refused(supernet: dict[str, Any], pointer: str, allowed: Any) -> None:
    item = refusal(0.5, 0.25, supernet=supernet)
    assert (item.pointer, item.allowed) == (pointer, allowed)


def test_ratios_that_coincide_at_a_narrow_width_are_refused_as_the_widths_fault() -> None:
    space = {"preset": "micro", "overrides": {"embed_dim": [32], "mlp_ratio": [2.0, 2.1, 3.0]}}
    item = refusal(1 / 32, 1 / 32, space=space)
    assert item.pointer == "/widths/smallest"
    assert "also gives" in item.detail
