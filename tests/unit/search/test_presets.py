from typing import Any

import pytest

from search import cost
from search.errors import SpaceError
from search.presets import PRESETS, PresetName, resolve
from search.published import PUBLISHED, Published


def pointers(**arguments: Any) -> list[str]:
    with pytest.raises(SpaceError) as caught:
        resolve(**arguments)
    return [problem.pointer for problem in caught.value.problems]


@pytest.mark.parametrize("name", list(PresetName))
def test_every_preset_resolves_to_a_space_of_its_name(name: PresetName) -> None:
    space = resolve(name)
    assert space.name == name
    assert space.contains(space.largest())
    assert space.img_size == PRESETS[name].default_img_size


@pytest.mark.parametrize(
    ("img_size", "name", "patch_size"),
    [(8, "micro", 2), (28, "micro", 7), (64, "micro", 16), (80, "masktas-tiny", 16), (None, "masktas-tiny", 16)],
)
def test_default_space_follows_the_image_size(img_size: int | None, name: str, patch_size: int) -> None:
    space = resolve(img_size=img_size)
    assert (space.name, space.patch_size) == (name, patch_size)


def test_overrides_replace_fields() -> None:
    space = resolve("micro", img_size=30, in_chans=1, overrides={"patch_size": 5, "depth": [2], "pool": "token"})
    assert (space.patch_size, space.depth, space.pool, space.in_chans) == (5, (2,), "token", 1)
    assert space.embed_dim == PRESETS[PresetName.MICRO].embed_dim


def test_problems_point_to_where_the_user_wrote() -> None:
    assert pointers(preset="nano") == ["/preset"]
    assert pointers(overrides={"dep/th": [1]}) == ["/overrides/dep~1th"]
    assert pointers(preset="micro", img_size=30) == ["/img_size"]
    assert pointers(preset="micro", img_size="8") == ["/img_size"]
    assert pointers(preset="micro", img_size=0) == ["/img_size"]
    assert pointers(preset="micro", img_size=-4) == ["/img_size"]
    assert pointers(preset="micro", img_size=224) == ["/img_size"]  # patches of 56 pixels
    assert pointers(preset="masktas-tiny", img_size=528) == ["/img_size"]
    assert pointers(overrides={"rel_pos": "yes"}) == ["/overrides/rel_pos"]
    assert pointers(preset="masktas-tiny", img_size=100) == ["/img_size"]
    assert pointers(overrides={"depth": [3, 0]}) == ["/overrides/depth/1"]
    assert pointers(overrides={"patch_size": "8"}) == ["/overrides/patch_size"]
    assert pointers(in_chans=2) == ["/in_chans"]


def test_both_readings_of_the_base_heads_have_names() -> None:
    narrow, wide = resolve("masktas-base"), resolve("masktas-base-8-10")
    assert (f"{narrow.size():.2e}", f"{wide.size():.2e}") == ("1.01e+13", "6.25e+15")
    assert wide.contains(PUBLISHED["masktas-base"].architecture)


@pytest.mark.parametrize("entry", PUBLISHED.values(), ids=lambda entry: entry.name)
def test_published_architectures_lie_in_their_space(entry: Published) -> None:
    assert resolve(entry.preset).explain(entry.architecture) == ()


@pytest.mark.parametrize(
    ("name", "params", "macs"),
    [
        ("masktas-tiny", 5_902_600, 1_319_799_552),
        ("masktas-small", 21_955_048, 4_619_256_832),
        ("masktas-base", 51_850_312, 10_723_943_680),
    ],
)
def test_published_architectures_have_their_known_cost(name: str, params: int, macs: int) -> None:
    assert cost.cost(PUBLISHED[name].architecture) == cost.Cost(params=params, macs=macs)
