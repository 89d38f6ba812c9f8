"""What the API shows of teachers."""

from __future__ import annotations

from typing import Self

from pydantic import Field

from service.db.models import Teacher
from service.ids import IdKind, format_id
from service.jobs.spec import TeacherImportSpec
from service.pagination import Page
from service.schemas import Answer, Json, UtcTime, example


class NewTeacher(TeacherImportSpec):
    """Register a teacher from weights that exist already."""

    model_config = example({"name": "MAE base", "source": {"timm": "vit_base_patch16_224.mae"}})


class TeacherView(Answer):
    """A frozen network that students learn from."""

    model_config = example(
        {
            "id": "tch_01980000000070008000000000000000",
            "job": "job_01980000000070008000000000000001",
            "name": "MAE base",
            "architecture": {
                "schema_version": 1,
                "embed_dim": 768,
                "depth": 12,
                "num_heads": [12] * 12,
                "head_dim": 64,
                "mlp_ratio": [4.0] * 12,
                "img_size": 224,
                "patch_size": 16,
                "in_chans": 3,
                "num_classes": 0,
                "pool": "token",
                "rel_pos": False,
                "norm_eps": 1e-06,
            },
            "digest": "b269f64319a2c684c95f1bbe4c003e15fb6d963796ccebfa169cd2e0024bbb17",
            "info": {
                "kind": "mae_encoder",
                "source": {"timm": "vit_base_patch16_224.mae"},
                "licence": {"name": "cc-by-nc-4.0", "commercial_use": False, "note": "not for commercial use"},
            },
            "created_at": "2026-11-30T12:00:00Z",
        }
    )

    id: str
    job: str
    name: str
    architecture: Json
    digest: str = Field(description="SHA-256 of the weights.")
    info: Json = Field(
        description="How it was made: `source`, `kind`, `layout`, `preprocessing`, `licence`, `dropped` and `notes` of "
        "one that was registered; `dataset` and `metrics` of one that a search pretrained."
    )
    created_at: UtcTime

    @classmethod
    def of(cls, row: Teacher) -> Self:
        """Show a row."""
        return cls(
            id=format_id(IdKind.TEACHER, row.id),
            job=format_id(IdKind.JOB, row.job_id),
            name=row.name,
            architecture=row.architecture,
            digest=row.sha256,
            info=row.info,
            created_at=row.created_at,
        )


class TeacherList(Page[TeacherView]):
    """Teachers, the newest first."""
