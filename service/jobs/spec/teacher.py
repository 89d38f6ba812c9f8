"""Where the frozen teacher comes from."""

from __future__ import annotations

from pydantic import Field

from service.jobs.spec.base import Spec
from service.jobs.spec.masked import MaskedSpec


class TeacherArchitecture(Spec):
    """Size of a teacher that is pretrained here; patch, image and channels are those of the space."""

    embed_dim: int = Field(ge=8, le=4096)
    depth: int = Field(ge=1, le=64)
    num_heads: int = Field(ge=1, le=64)
    head_dim: int = Field(ge=4, le=256)
    mlp_ratio: float = Field(gt=0, le=8)


class PretrainSpec(MaskedSpec):
    """Pretrain a masked autoencoder on the dataset's images, labels unseen."""

    architecture: TeacherArchitecture | None = None


class TeacherSpec(Spec):
    """Where the frozen teacher comes from."""

    pretrain: PretrainSpec = Field(default_factory=lambda: PretrainSpec())
