"""Where a search's teacher comes from, and what its users are told."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from models.architecture import Architecture, Pool
from search.space import Space
from service.datasets.builtin import BUILTINS
from service.errors import ValidationFailed
from service.jobs.resolve import on_students_grid, resolve_search, teacher_notices
from service.jobs.resolve.spaces import resolve_space
from service.jobs.resolve.teachers import adopted_teacher_notices
from service.jobs.spec import SearchSpec
from service.teachers.info import TeacherInfo

MAE_BASE = Architecture(
    embed_dim=768, depth=12, num_heads=(12,) * 12, mlp_ratio=(4.0,) * 12, num_classes=0, pool=Pool.TOKEN
)
MAE = TeacherInfo(id=UUID(int=1), name="MAE", digest="ab" * 32, architecture=MAE_BASE.to_json(), info={})
NON_COMMERCIAL = {"name": "CC-BY-NC-4.0", "commercial_use": False, "note": "not for commercial use"}


def resolved(**teacher: Any) -> SearchSpec:
    body = SearchSpec.model_validate({"method": "masktas", "dataset": "digits", "teacher": teacher})
    return resolve_search(body, BUILTINS["digits"], registered=MAE if teacher.get("id") else None).spec


def space(img_size: int = 8, patch_size: int = 2) -> Space:
    part = {"preset": "micro", "img_size": img_size, "overrides": {"patch_size": patch_size}}
    body = SearchSpec.model_validate({"method": "masktas", "dataset": "digits", "space": part})
    return resolve_space(body.space, BUILTINS["digits"])


def test_without_a_word_the_teacher_is_pretrained() -> None:
    teacher = resolved().teacher
    assert teacher.pretrain is not None
    assert (teacher.id, teacher.timm) == (None, None)


@pytest.mark.parametrize("source", [{"id": MAE.reference}, {"timm": "vit_base_patch16_224.mae"}], ids=str)
def test_a_teacher_that_exists_is_not_pretrained(source: dict[str, str]) -> None:
    spec = resolved(**source)
    assert spec.teacher.model_dump(exclude_none=True) == source
    assert resolve_search(spec, BUILTINS["digits"], registered=MAE).spec == spec


def test_a_teacher_on_its_own_grid_at_its_own_size_needs_no_word() -> None:
    assert teacher_notices("MAE", MAE_BASE, None, space(img_size=224, patch_size=16)) == []


def test_grids_and_sizes_are_told_when_they_differ() -> None:
    [resized] = teacher_notices("MAE", MAE_BASE, None, space(img_size=56, patch_size=4))
    assert "from 56 to 224 pixels" in resized.detail
    assert "positions" not in resized.detail
    [resampled] = teacher_notices("MAE", MAE_BASE, None, space(img_size=64, patch_size=8))
    assert resampled.detail.endswith(
        "from 64 to 128 pixels for the teacher, and its positions are resampled from 14x14 to 8x8"
    )


def test_the_licence_follows_the_weights_into_searches_that_take_their_student_over() -> None:
    outputs = {"name": "MAE", "architecture": MAE_BASE.to_json(), "licence": NON_COMMERCIAL}
    notices = adopted_teacher_notices(outputs, space(img_size=224, patch_size=16))
    assert [notice.code for notice in notices] == ["teacher_licence"]
    assert adopted_teacher_notices({"architecture": MAE_BASE.to_json()}, space()) == []


def test_a_grid_too_fine_for_the_teachers_patches_is_refused() -> None:
    coarse = Architecture(
        embed_dim=768, depth=1, num_heads=(12,), mlp_ratio=(4.0,), patch_size=32, num_classes=0, pool=Pool.TOKEN
    )
    with pytest.raises(ValidationFailed, match="need images of 8192 pixels"):
        on_students_grid(coarse, space(img_size=512, patch_size=2))


def test_only_a_teacher_of_this_search_has_a_decoder_to_repeat() -> None:
    body = {"method": "masktas", "dataset": "digits", "teacher": MAE.reference}
    body["supernet"] = {"recon_target": "teacher"}
    with pytest.raises(ValidationFailed) as caught:
        resolve_search(SearchSpec.model_validate(body), BUILTINS["digits"], registered=MAE)
    assert [item.pointer for item in caught.value.errors] == ["/supernet/recon_target"]
