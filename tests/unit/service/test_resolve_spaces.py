"""Spaces as a body may give them: a name, a name with changes, or a space of one's own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from search.errors import SpaceError
from search.presets import PresetName
from search.presets import resolve as preset_space
from search.space import Space
from service.datasets.builtin import BUILTINS
from service.errors import ValidationFailed
from service.jobs.resolve import Resolved, make_space, resolve_search, space_of, teacher_architecture
from service.jobs.resolve.spaces import space_spec
from service.jobs.spec import SearchSpec, SpaceSpec

DIGITS = BUILTINS["digits"]
OWN: dict[str, Any] = {
    "embed_dim": [32, 48],
    "depth": [2, 3],
    "num_heads": [1, 2],
    "mlp_ratio": [1.5, 2],
    "head_dim": 16,
    "img_size": 16,
    "patch_size": 4,
}


def resolve(space: Any, **dataset: Any) -> Resolved:
    body = {"method": "masktas", "dataset": "digits", "space": space}
    return resolve_search(SearchSpec.model_validate(body), replace(DIGITS, **dataset))


def pointers(**space: Any) -> list[str]:
    with pytest.raises(ValidationFailed) as caught:
        resolve(space)
    return [item.pointer for item in caught.value.errors]


def test_a_space_of_ones_own_is_what_was_written_and_defaults_of_the_record() -> None:
    assert resolve(OWN).space == Space(
        name="custom",
        embed_dim=(32, 48),
        depth=(2, 3),
        num_heads=(1, 2),
        mlp_ratio=(1.5, 2.0),
        head_dim=16,
        img_size=16,
        patch_size=4,
        in_chans=1,
    )


def test_channels_of_a_space_of_ones_own_are_the_images_unless_it_says_otherwise() -> None:
    assert resolve(OWN, channels=3).space.in_chans == 3
    assert resolve({**OWN, "in_chans": 1}, channels=3).space.in_chans == 1


@pytest.mark.parametrize(
    "space",
    [
        OWN,
        {**OWN, "name": "mine", "pool": "token", "norm_eps": 1e-5, "rel_pos": True},
        {"preset": "micro", "overrides": {"pool": "token", "norm_eps": 1e-5, "rel_pos": True, "depth": [2]}},
        "masktas-tiny",
    ],
    ids=["own", "own in full", "preset in full", "preset"],
)
def test_the_filled_spec_spells_the_space_out_and_resolves_to_itself(space: Any) -> None:
    resolved = resolve(space)
    assert space_of(resolved.spec) == resolved.space
    again = resolve_search(SearchSpec.model_validate(resolved.spec.model_dump(mode="json")), DIGITS)
    assert (again.spec, again.space) == (resolved.spec, resolved.space)


def test_a_filled_space_shows_the_form_that_was_asked_for_and_nothing_of_the_other() -> None:
    own = resolve(OWN)
    assert own.spec.model_dump(mode="json")["space"] == own.space.to_json()
    preset = resolve("micro").spec.model_dump(mode="json")["space"]
    assert set(preset) == {"preset", "img_size", "in_chans", "overrides"}


@pytest.mark.parametrize(
    "space", [OWN, {**OWN, "name": "micro"}, "micro"], ids=["own", "named like a preset", "preset"]
)
def test_a_space_of_another_job_is_spelt_out_though_this_one_asked_for_none(space: Any) -> None:
    taken_over = resolve(space).space
    assert make_space(space_spec(SpaceSpec(), taken_over)) == taken_over


@pytest.mark.parametrize("name", list(PresetName))
def test_the_json_of_any_space_is_a_valid_space_of_a_body(name: PresetName) -> None:
    space = preset_space(name, img_size=64, overrides={"patch_size": 8, "rel_pos": True})
    assert make_space(SpaceSpec.model_validate(space.to_json())) == space


def test_what_a_space_of_ones_own_lacks_is_named() -> None:
    left = ("depth", "num_heads", "mlp_ratio", "img_size", "patch_size")
    assert pointers(embed_dim=[32]) == [f"/space/{field}" for field in left]
    assert pointers(name="mine", img_size=16)[0] == "/space/embed_dim"


def test_a_preset_is_changed_by_its_overrides_alone() -> None:
    assert pointers(preset="micro", depth=[3], rel_pos=True) == ["/space/depth", "/space/rel_pos"]
    assert pointers(**OWN, overrides={"depth": [3]}) == ["/space/overrides"]


@pytest.mark.parametrize(
    ("change", "pointer", "allowed"),
    [
        ({"embed_dim": [32, 9000]}, "/space/embed_dim/1", "1 to 8192"),
        ({"depth": [2, 129]}, "/space/depth/1", "1 to 128"),
        ({"num_heads": [0]}, "/space/num_heads/0", "1 to 256"),
        ({"mlp_ratio": [2.0, 17.0]}, "/space/mlp_ratio/1", "at most 16"),
        ({"mlp_ratio": [2.0, 2.0]}, "/space/mlp_ratio/1", "each choice once"),
        ({"img_size": 18}, "/space/img_size", "a multiple of patch_size 4"),
        ({"img_size": 518, "patch_size": 2}, "/space/patch_size", "at most 65536 patches"),
    ],
)
def test_a_choice_out_of_bounds_is_named_with_what_is_allowed(
    change: dict[str, Any], pointer: str, allowed: str
) -> None:
    with pytest.raises(ValidationFailed) as caught:
        resolve({**OWN, **change})
    [item] = caught.value.errors
    assert item.pointer == pointer
    assert allowed in item.allowed


@pytest.mark.parametrize(
    "change",
    [
        {"img_size": 7},
        {"img_size": 519},
        {"patch_size": 1},
        {"patch_size": 33},
        {"in_chans": 2},
        {"pool": "max"},
        {"norm_eps": 0.1},
        {"rel_pos": 1},
        {"schema_version": 2},
        {"depth": []},
        {"depth": [2.5]},
        {"widths": [1]},
    ],
    ids=str,
)
def test_fields_out_of_bounds_are_refused_where_they_are_read(change: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as caught:
        SpaceSpec.model_validate({**OWN, **change})
    assert {error["loc"][0] for error in caught.value.errors()} == set(change)


def test_without_images_the_default_space_is_that_of_photos() -> None:
    assert make_space(SpaceSpec()) == preset_space("masktas-tiny")
    with pytest.raises(SpaceError, match="/preset"):
        make_space(SpaceSpec(preset="nano"))


def test_a_teacher_that_is_pretrained_has_no_relative_position() -> None:
    resolved = resolve({**OWN, "rel_pos": True})
    assert resolved.space.largest().rel_pos
    assert not teacher_architecture(resolved.spec.teacher.pretrain, resolved.space).rel_pos
