"""Where the frozen teacher comes from."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from models.architecture import MAX_HEADS
from service.jobs.spec.base import Spec
from service.jobs.spec.masked import MaskedSpec

# Neither "hf-hub:" nor "local-dir:", by which timm would load from anywhere.
_TIMM_NAME = r"^[a-z0-9_]+(\.[a-z0-9_]+)?$"

TimmName = Annotated[
    str,
    Field(
        min_length=1,
        max_length=200,
        pattern=_TIMM_NAME,
        description="Name of a Vision Transformer of timm with its weights' tag, such as `vit_base_patch16_224.mae`.",
    ),
]
ChannelValues = Annotated[list[Annotated[float, Field(ge=0, le=1)]], Field(min_length=1, max_length=3)]


class TeacherArchitecture(Spec):
    """Size of a teacher that is pretrained here; patch, image and channels are those of the space.

    What a space may hold a teacher may be, whose default is the size of the space's largest network.
    """

    embed_dim: int = Field(ge=1, le=8192)
    depth: int = Field(ge=1, le=128)
    num_heads: int = Field(ge=1, le=MAX_HEADS)
    head_dim: int = Field(ge=1, le=1024)
    mlp_ratio: float = Field(gt=0, le=16)


class PretrainSpec(MaskedSpec):
    """Pretrain a masked autoencoder on the dataset's images, labels unseen."""

    architecture: TeacherArchitecture | None = None


class TeacherSpec(Spec):
    """Where the frozen teacher comes from: exactly one of the fields. Without any it is pretrained."""

    pretrain: PretrainSpec | None = Field(None, description="Pretrain one on the dataset itself; the default.")
    id: str | None = Field(None, min_length=1, max_length=200, description="A registered teacher, `tch_...`.")
    timm: TimmName | None = Field(None, description="Fetch a timm network's weights, from the hub or its cache.")

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        given = [name for name in ("pretrain", "id", "timm") if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(f"exactly one of pretrain, id and timm; found {' and '.join(given)}")
        return self


class TeacherSource(Spec):
    """Weights that exist already: exactly one of `timm` and `path`.

    Heads, epsilon, activation and normalisation are in no tensor of a file; timm knows those of its own networks.
    """

    timm: TimmName | None = None
    path: str | None = Field(
        None,
        min_length=1,
        max_length=4096,
        description="A .safetensors, .pth, .pt or .bin file, relative to the import root.",
    )
    num_heads: int | None = Field(
        None, ge=1, le=256, description="Attention heads of each block; required for sizes that were never published."
    )
    norm_eps: float | None = Field(None, gt=0, le=1e-2, description="Epsilon of the norms; 1e-6 unless stated.")
    activation: Literal["gelu", "gelu_tanh", "quick_gelu"] | None = Field(
        None, description="Of the MLPs; `gelu` unless stated. A gated MLP is recognised."
    )
    mean: ChannelValues | None = Field(None, description="Of the normalisation, per channel; ImageNet's unless stated.")
    std: ChannelValues | None = Field(None, description="As `mean`; values above 0.")
    licence: str | None = Field(None, min_length=1, max_length=200, description="What is known of the terms of use.")

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.timm is None) == (self.path is None):
            raise ValueError("exactly one of timm and path")
        hints = ("num_heads", "norm_eps", "activation", "mean", "std")
        if self.timm is not None and (stated := [name for name in hints if getattr(self, name) is not None]):
            raise ValueError(f"timm knows {', '.join(stated)} of its networks; state it for files only")
        if (self.mean is None) != (self.std is None) or len(self.mean or []) != len(self.std or []):
            raise ValueError("mean and std go together, with one value for each channel")
        if self.std is not None and min(self.std) <= 0:
            raise ValueError("std must be above 0")
        return self


class TeacherImportSpec(Spec):
    """A teacher import job: read, check and convert weights that exist already."""

    name: str | None = Field(None, min_length=1, max_length=200, pattern=r"^\S(.*\S)?$")
    source: TeacherSource
