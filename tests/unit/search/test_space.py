import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.architecture import Architecture
from search.errors import SpaceError
from search.presets import resolve
from search.space import Space
from tests.unit.search.spaces import small_space


def problems_of(**changes: Any) -> dict[str, str]:
    with pytest.raises(SpaceError) as caught:
        small_space(**changes)
    return {problem.pointer: str(problem) for problem in caught.value.problems}


@pytest.mark.parametrize(
    ("space", "size"),
    [
        (resolve("masktas-tiny"), 1_056_964_608),
        (resolve("masktas-small"), 77_103_263_459_313),
        (resolve("masktas-base"), 3 * (6**14 + 6**15 + 6**16)),
        (resolve("masktas-base-8-10"), 3 * (9**14 + 9**15 + 9**16)),
        (resolve("micro"), 3 * (9**3 + 9**4 + 9**5)),
    ],
)
def test_size_counts_every_combination_exactly(space: Space, size: int) -> None:
    assert space.size() == size


def test_members_are_distinct_and_as_many_as_the_size_says() -> None:
    space = small_space()
    members = list(space.members(num_classes=5))
    assert len(members) == len(set(members)) == space.size() == 2 * (6 + 6**3)
    assert all(space.contains(member) and member.num_classes == 5 for member in members)


def test_corners_and_centre() -> None:
    space = small_space()
    assert space.largest().genotype == (3, 4.0, 4.0, 4.0, 2, 2, 2, 24)
    assert space.smallest().genotype == (1, 2.0, 1, 16)
    assert space.centre(num_classes=7).genotype == (1, 2.5, 1, 16)
    assert space.centre(num_classes=7).num_classes == 7


def test_lists_are_sorted_and_numbers_normalised() -> None:
    space = small_space(embed_dim=[24, 16], mlp_ratio=[4, 2.5, 2], pool="token")
    assert space == small_space(pool=space.pool)
    assert space.mlp_ratio == (2.0, 2.5, 4.0)
    assert all(isinstance(ratio, float) for ratio in space.mlp_ratio)


def test_samples_are_members_and_cover_every_choice() -> None:
    space = small_space()
    rng = np.random.default_rng(0)
    samples = [space.sample(rng) for _ in range(300)]
    assert all(space.contains(sample) for sample in samples)
    assert {sample.depth for sample in samples} == {1, 3}
    assert {sample.embed_dim for sample in samples} == {16, 24}
    assert {heads for sample in samples for heads in sample.num_heads} == {1, 2}
    assert {ratio for sample in samples for ratio in sample.mlp_ratio} == {2.0, 2.5, 4.0}


def test_sampling_is_uniform_over_depths_not_members() -> None:
    space = small_space()
    rng = np.random.default_rng(1)
    shallow = sum(space.sample(rng).depth == 1 for _ in range(2000))
    assert 900 < shallow < 1100  # 6 of 222 combinations are shallow, yet half of the draws


def test_the_same_generator_gives_the_same_samples() -> None:
    space = resolve("masktas-small")
    first, second = np.random.default_rng(3), np.random.default_rng(3)
    assert [space.sample(first) for _ in range(20)] == [space.sample(second) for _ in range(20)]


@given(seed=st.integers(0, 2**32), preset=st.sampled_from(["micro", "masktas-tiny", "masktas-base"]))
def test_genotypes_decode_to_the_same_architecture_even_through_json(seed: int, preset: str) -> None:
    space = resolve(preset)
    arch = space.sample(np.random.default_rng(seed), num_classes=10)
    assert space.decode(arch.genotype, num_classes=10) == arch
    assert space.decode(json.loads(json.dumps(arch.genotype)), num_classes=10) == arch


@pytest.mark.parametrize(
    ("genotype", "pointer"),
    [
        ((), "/genotype"),
        ((2, 2.0, 2.0, 1, 1, 16), "/genotype"),  # no such depth
        ((1, 2.0, 1), "/genotype"),  # one entry short
        ((3, 2.0, 1, 16), "/genotype"),
        (("1", 2.0, 1, 16), "/genotype"),
        ((True, 2.0, 1, 16), "/genotype"),
        ((1, 3.0, 1, 16), "/mlp_ratio/0"),
        ((1, 2.0, 3, 16), "/num_heads/0"),
        ((1, 2.0, 1, 20), "/embed_dim"),
        ((1, 2.0, 1.5, 16), "/num_heads/0"),
    ],
)
def test_decode_refuses_what_is_no_member(genotype: tuple[Any, ...], pointer: str) -> None:
    with pytest.raises(SpaceError) as caught:
        small_space().decode(genotype)
    assert [problem.pointer for problem in caught.value.problems] == [pointer]


def test_explain_names_each_axis_and_both_values() -> None:
    space = small_space()
    stranger = Architecture(
        embed_dim=20,
        depth=2,
        num_heads=(1, 3),
        mlp_ratio=(2.0, 3.0),
        head_dim=16,
        img_size=16,
        patch_size=4,
        in_chans=1,
    )
    texts = {problem.pointer: str(problem) for problem in space.explain(stranger)}
    assert set(texts) == {"/embed_dim", "/depth", "/num_heads/1", "/mlp_ratio/1", "/head_dim", "/img_size"}
    assert "found 20" in texts["/embed_dim"]
    assert "16, 24 in space 'small'" in texts["/embed_dim"]
    assert "found 16" in texts["/head_dim"]
    assert "8 in space 'small'" in texts["/head_dim"]
    assert not space.contains(stranger)


@pytest.mark.parametrize("field", ["distilled", "layer_scale"])
def test_no_member_has_a_distillation_token_or_layer_scale(field: str) -> None:
    space = small_space(pool="token")
    stranger = replace(space.smallest(), **{field: True})  # type: ignore[arg-type]  # one of two booleans
    [problem] = space.explain(stranger)
    assert str(problem) == f"/{field}: found True, allowed is false: no space has such members"
    assert space.member_schema()["properties"][field] == {"const": False}


@pytest.mark.parametrize("rel_pos", [False, True])
def test_members_have_relative_position_exactly_when_the_space_has(rel_pos: bool) -> None:
    space = small_space(rel_pos=rel_pos)
    assert space.largest().rel_pos is rel_pos
    assert space.member_schema()["properties"]["rel_pos"] == {"const": rel_pos}
    other = replace(space.smallest(), rel_pos=not rel_pos)
    assert [p.pointer for p in space.explain(other)] == ["/rel_pos"]


def test_json_round_trip_keeps_the_space() -> None:
    space = small_space()
    document = json.loads(json.dumps(space.to_json()))
    assert Space.from_json(document) == space


def test_json_with_unknown_missing_and_foreign_keys_is_refused() -> None:
    document = small_space().to_json()
    del document["depth"]
    with pytest.raises(SpaceError) as caught:
        Space.from_json({**document, "dept/h": [1]})
    assert {problem.pointer for problem in caught.value.problems} == {"/dept~1h", "/depth"}
    with pytest.raises(SpaceError, match="schema_version"):
        Space.from_json({**small_space().to_json(), "schema_version": 2})


def test_digest_depends_on_members_only() -> None:
    space = small_space()
    assert space.digest() == small_space(name="other", embed_dim=(24, 16)).digest()
    assert space.digest() != small_space(embed_dim=(16,)).digest()
    assert space.digest() != small_space(norm_eps=1e-5).digest()
    assert space.digest() != small_space(rel_pos=True).digest()


def test_digest_never_changes() -> None:
    # Stored beside supernets: another digest for the same space would orphan them.
    digest = "f3a6d7f0222d2bb5097026874f993904658167f1411f5217c24bd4b00102cac4"
    assert resolve("micro", img_size=8, in_chans=1).digest() == digest


@pytest.mark.parametrize(
    ("changes", "pointer", "text"),
    [
        ({"name": ""}, "/name", "1 to 64 characters"),
        ({"embed_dim": []}, "/embed_dim", "1 to 64 choices"),
        ({"embed_dim": 16}, "/embed_dim", "a list of choices"),
        ({"embed_dim": [16, 0]}, "/embed_dim/1", "from 1 to 8192"),
        ({"embed_dim": [16, "24"]}, "/embed_dim/1", "found '24'"),
        ({"depth": [10**9]}, "/depth/0", "from 1 to 128"),
        ({"depth": [1, 1]}, "/depth/1", "each choice once"),
        ({"depth": [True]}, "/depth/0", "found True"),
        ({"num_heads": [1, -1]}, "/num_heads/1", "found -1"),
        ({"num_heads": [1.5]}, "/num_heads/0", "found 1.5"),
        ({"mlp_ratio": [2, float("nan")]}, "/mlp_ratio/1", "above 0"),
        ({"mlp_ratio": [0.01]}, "/mlp_ratio/0", "at least 0.0625"),
        ({"mlp_ratio": [2.0, 2.01]}, "/mlp_ratio", "also gives 32 hidden channels"),
        ({"img_size": 10}, "/img_size", "a multiple of patch_size 4"),
        ({"img_size": 6, "patch_size": 2}, "/img_size", "found 6, allowed is an integer from 8 to 518"),
        ({"img_size": 520}, "/img_size", "an integer from 8 to 518"),
        ({"img_size": 10**9}, "/img_size", "an integer from 8 to 518"),
        ({"img_size": None}, "/img_size", "an integer from 8 to 518"),
        ({"patch_size": 1}, "/patch_size", "found 1, allowed is an integer from 2 to 32"),
        ({"img_size": 66, "patch_size": 33}, "/patch_size", "an integer from 2 to 32"),
        ({"img_size": 518, "patch_size": 2}, "/patch_size", "at most 65536 patches, not 67081"),
        ({"rel_pos": 1}, "/rel_pos", "true or false"),
        ({"head_dim": 0}, "/head_dim", "found 0"),
        ({"pool": "max"}, "/pool", "avg or token"),
        ({"in_chans": 2}, "/in_chans", "1 or 3"),
    ],
)
def test_bad_fields_are_named_with_what_was_found_and_allowed(changes: dict[str, Any], pointer: str, text: str) -> None:
    found = problems_of(**changes)
    assert list(found) == [pointer]
    assert text in found[pointer]


def test_every_bad_field_is_reported_at_once() -> None:
    assert set(problems_of(embed_dim=[0], depth=["x"], head_dim=-1)) == {"/embed_dim/0", "/depth/0", "/head_dim"}


def test_spaces_whose_limits_could_not_be_decided_are_refused() -> None:
    ratios = [1 + 0.19 * i for i in range(30)]
    found = problems_of(embed_dim=[8192], depth=[128], mlp_ratio=ratios)
    assert "could not be decided" in found["/mlp_ratio"]
    found = problems_of(embed_dim=list(range(64, 128)), depth=list(range(65, 129)), mlp_ratio=[2, 4])
    assert "could not be decided" in found["/num_heads"]


def test_member_schema_lists_the_choices() -> None:
    schema = small_space().member_schema()["properties"]
    assert schema["embed_dim"] == {"enum": [16, 24]}
    assert schema["mlp_ratio"] == {"type": "array", "items": {"enum": [2.0, 2.5, 4.0]}, "minItems": 1, "maxItems": 3}
    assert schema["head_dim"] == {"const": 8}
    assert schema["rel_pos"] == {"const": False}
