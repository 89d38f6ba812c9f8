from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from models.architecture import Architecture, ArchitectureError, Pool, json_schema
from tests.unit.published import GOLDEN, plain_vit

TINY = GOLDEN[0].arch
VALIDATOR = jsonschema.Draft202012Validator(json_schema())


@st.composite
def architectures(draw: st.DrawFn) -> Architecture:
    depth, patch, grid = draw(st.integers(1, 6)), draw(st.integers(1, 16)), draw(st.integers(2, 16))
    return Architecture(
        embed_dim=draw(st.integers(16, 1024)),
        depth=depth,
        num_heads=tuple(draw(st.lists(st.integers(1, 16), min_size=depth, max_size=depth))),
        mlp_ratio=tuple(draw(st.lists(st.floats(0.1, 16), min_size=depth, max_size=depth))),
        head_dim=draw(st.integers(1, 128)),
        img_size=patch * grid,
        patch_size=patch,
        in_chans=draw(st.sampled_from((1, 3))),
        num_classes=draw(st.integers(0, 1000)),
        pool=draw(st.sampled_from(Pool)),
        rel_pos=draw(st.booleans()),
        norm_eps=draw(st.sampled_from((1e-6, 1e-5))),
    )


ODD_VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**12), 10**12),
    st.integers(-2, 300),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(["", "avg", "token", "8", "map"]),
    st.lists(
        st.one_of(st.integers(-1, 300), st.floats(-1, 20), st.none(), st.booleans(), st.text(max_size=2)), max_size=8
    ),
    st.dictionaries(st.text(max_size=2), st.integers(), max_size=1),
)


@settings(deadline=None)
@given(architectures())
def test_json_round_trip_through_text_and_schema(arch: Architecture) -> None:
    document = json.loads(json.dumps(arch.to_json()))
    VALIDATOR.validate(document)
    back = Architecture.from_json(document)
    assert back == arch
    assert hash(back) == hash(arch)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(architectures(), st.data())
def test_record_and_schema_agree_on_every_changed_field(arch: Architecture, data: st.DataObject) -> None:
    document: dict[str, Any] = arch.to_json()
    key = data.draw(st.sampled_from([*document, "unknown"]))
    document[key] = data.draw(ODD_VALUES)
    assert is_accepted(document) == (VALIDATOR.is_valid(document) and not contradicts_itself(document))


def is_accepted(document: dict[str, Any]) -> bool:
    try:
        Architecture.from_json(document)
    except ArchitectureError:
        return False
    return True


def contradicts_itself(document: dict[str, Any]) -> bool:
    """What a schema cannot say: how the fields of a document that it accepts depend on each other."""
    depth, image, patch = document["depth"], document["img_size"], document["patch_size"]
    lengths = {len(document["num_heads"]), len(document["mlp_ratio"])}
    channels = [int(document["embed_dim"] * ratio) for ratio in document["mlp_ratio"]]
    misplaced = document["distilled"] and (document["rel_pos"] or document["pool"] != "token")
    return bool(misplaced or lengths != {depth} or image % patch or (image // patch) ** 2 > 65_536 or min(channels) < 1)


@pytest.mark.parametrize("key", ["embed_dim", "depth", "num_heads", "mlp_ratio"])
def test_required_fields(key: str) -> None:
    document = TINY.to_json()
    del document[key]
    with pytest.raises(ArchitectureError, match=f"/{key}: found None, allowed is required"):
        Architecture.from_json(document)
    assert not VALIDATOR.is_valid(document)


@pytest.mark.parametrize(
    ("change", "pointer"),
    [
        ({"embed_dim": 0}, "/embed_dim"),
        ({"embed_dim": True}, "/embed_dim"),
        ({"embed_dim": "192"}, "/embed_dim"),
        ({"depth": 10**9}, "/depth"),
        ({"head_dim": -64}, "/head_dim"),
        ({"num_heads": [3] * 13}, "/num_heads"),
        ({"num_heads": 3}, "/num_heads"),
        ({"num_heads": [0] + [3] * 11}, "/num_heads/0"),
        ({"mlp_ratio": [4.0] * 11 + [float("nan")]}, "/mlp_ratio/11"),
        ({"mlp_ratio": [4.0] * 5 + [0.001] + [4.0] * 6}, "/mlp_ratio/5"),
        ({"img_size": 225}, "/img_size"),
        ({"patch_size": 0}, "/patch_size"),
        ({"in_chans": 4}, "/in_chans"),
        ({"num_classes": -1}, "/num_classes"),
        ({"pool": "map"}, "/pool"),
        ({"rel_pos": 1}, "/rel_pos"),
        ({"norm_eps": 0}, "/norm_eps"),
        ({"schema_version": 2}, "/schema_version"),
        ({"embed_dims": 192}, "/embed_dims"),
        ({"a/b~c": 1}, "/a~1b~0c"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_fault_is_named_by_pointer(change: dict[str, Any], pointer: str) -> None:
    with pytest.raises(ArchitectureError) as caught:
        Architecture.from_json({**TINY.to_json(), **change})
    assert [problem.pointer for problem in caught.value.problems] == [pointer]


def test_all_faults_are_reported_at_once() -> None:
    with pytest.raises(ArchitectureError) as caught:
        Architecture.from_json({**TINY.to_json(), "embed_dim": -1, "pool": "x", "in_chans": 2})
    assert {problem.pointer for problem in caught.value.problems} == {"/embed_dim", "/pool", "/in_chans"}


def test_too_many_patches_are_refused() -> None:
    with pytest.raises(ArchitectureError, match="at most 65536 patches, not 262144"):
        replace(TINY, img_size=4096, patch_size=8)


def test_whole_floats_of_json_are_integers() -> None:
    document = TINY.to_json()
    document |= {"embed_dim": 192.0, "num_heads": [float(h) for h in TINY.num_heads]}
    assert Architecture.from_json(document) == TINY


def test_equal_records_are_one_network_whatever_their_spelling() -> None:
    spelt = Architecture(
        embed_dim=192,
        depth=12,
        num_heads=list(TINY.num_heads),  # type: ignore[arg-type]
        mlp_ratio=[int(r) if r == int(r) else r for r in TINY.mlp_ratio],  # type: ignore[arg-type]
        pool="avg",  # type: ignore[arg-type]
        norm_eps=1e-5,
    )
    assert spelt == TINY
    assert hash(spelt) == hash(TINY)
    assert spelt.genotype == TINY.genotype == (12, *TINY.mlp_ratio, *TINY.num_heads, 192)


def test_hidden_width_is_truncated() -> None:
    arch = Architecture(embed_dim=10, depth=2, num_heads=(1, 1), mlp_ratio=(2.29, 0.19), img_size=16, patch_size=8)
    assert arch.mlp_dims == (22, 1)
    assert arch.qkv_dims == (64, 64)


def test_uniform_means_a_plain_constructor_can_build_it() -> None:
    assert plain_vit(384, 6).is_uniform
    assert not TINY.is_uniform
    assert not replace(plain_vit(384, 6), head_dim=32).is_uniform
