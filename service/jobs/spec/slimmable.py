"""The body of a search over the widths of one slimmable network (Scala, US-Net), or of separately trained ones."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from models.architecture import MAX_HEADS, MAX_NORM_EPS
from search.space import IMG_SIZES, PATCH_SIZES
from service.jobs.spec.base import Spec, short_form
from service.jobs.spec.common import JobSpec, WarmStartSpec
from service.jobs.spec.recipe import Probability, SupervisedSpec
from service.jobs.spec.retrain import ExportSpec
from service.jobs.spec.teacher import TimmName

SlimmableMethod = Literal["scala", "usnet", "separate"]

EVERY: Literal["every"] = "every"
"""Step of a grid that has every whole number of channels of a head."""

_TeacherId = Annotated[str, Field(min_length=1, max_length=200, description="A registered teacher, `tch_...`.")]


class NetworkSpec(Spec):
    """The whole network, whose depth and number of heads all widths have; a width is a share of each head's channels.

    With `init` or `warm_start` its sizes follow from those weights. Otherwise, for images up to 64 pixels: 96 wide,
    3 heads, 4 blocks, a quarter of the image as patch; for larger ones: DeiT-S (384 wide, 6 heads, 12 blocks).
    """

    embed_dim: int | None = Field(None, ge=2, le=8192, description="Width of all heads of a block together.")
    depth: int | None = Field(None, ge=1, le=128)
    num_heads: int | None = Field(None, ge=1, le=MAX_HEADS, description="A divisor of embed_dim.")
    mlp_ratio: float | None = Field(None, gt=0, le=16, description="Of every block; its default is 4.")
    img_size: int | None = Field(None, ge=IMG_SIZES[0], le=IMG_SIZES[1], description="Side of the input in pixels.")
    patch_size: int | None = Field(None, ge=PATCH_SIZES[0], le=PATCH_SIZES[1], description="Pixels; divides img_size.")
    in_chans: Literal[1, 3] | None = Field(None, description="1: grey, 3: RGB; by default those of the images.")
    pool: Literal["avg", "token"] | None = Field(
        None, description="What the head reads: the mean of the patches or the class token (default)."
    )
    distilled: bool | None = Field(
        None, description="A distillation token with a head of its own (DeiT, section 4); its default is false."
    )
    layer_scale: bool | None = Field(
        None, description="Each branch is scaled by a learned vector (CaiT, section 3); its default is false."
    )
    norm_eps: float | None = Field(None, gt=0, le=MAX_NORM_EPS, description="Of every LayerNorm; its default is 1e-6.")


class InitSpec(Spec):
    """Weights that training starts from: exactly one of the fields."""

    teacher: _TeacherId | None = None
    timm: TimmName | None = None

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.teacher is None) == (self.timm is None):
            raise ValueError("exactly one of teacher and timm")
        return self


class WidthTeacherSpec(Spec):
    """The frozen network that the whole network learns from: exactly one of `id`, `timm` and `train`."""

    id: _TeacherId | None = None
    timm: TimmName | None = None
    train: SupervisedSpec | None = Field(
        None, description="Train a network of the whole network's size on the same images and labels first."
    )
    kind: Literal["logits", "features"] | None = Field(
        None,
        description="`logits`: its most likely class is a second label (DeiT, section 4). `features`: its tokens are "
        "matched through a linear map, without any label. Default: features for registered teachers without a head "
        "for the dataset's classes, and with cross_entropy false; else logits.",
    )

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if sum(source is not None for source in (self.id, self.timm, self.train)) != 1:
            raise ValueError("exactly one of id, timm and train")
        return self


class WidthGridSpec(Spec):
    """Which widths are trained, in shares of the whole network's, and which of the others are offered."""

    smallest: float | None = Field(
        None, gt=0, lt=1, description="The least width. Default: 0.25, or the next that gives whole channels of a head."
    )
    step: Annotated[float, Field(gt=0, lt=1)] | Literal["every"] | None = Field(
        None,
        description="From one width to the next; must lead from `smallest` to 1. `every`: all whole numbers of "
        "channels of a head. Default: the finest of 1/16, 1/8, 1/4 that gives whole channels, else `every`.",
    )
    max_dip: float = Field(
        1.5,
        ge=0,
        le=100,
        description="A width is not offered when its accuracy is more than this many points below the line between "
        "the trained widths beside it.",
    )


class SlicingSpec(Spec):
    """How a width is cut from the whole network."""

    qkv: Literal["head_aligned", "contiguous"] | None = Field(
        None,
        description="`head_aligned` (default): channels within each head of queries, keys and values. `contiguous`: "
        "one flat run of rows, as in Scala's released code; only trained widths work then.",
    )
    isolated_activation: Literal["off", "paper", "official"] | None = Field(
        None,
        description="Which widths take the trailing channels: none; the smallest (Scala, section 3.2); all between the "
        "smallest and the whole (released code). Default: off, for scala with contiguous slicing paper.",
    )
    attention_scale: Literal["per_width", "full"] | None = Field(
        None, description="Products of queries and keys are scaled by the width's own heads (default), or the whole's."
    )


class AfterEpochs(Spec):
    """From this epoch on."""

    after_epochs: int = Field(ge=0, le=100_000)


class SlimmableTrainingSpec(SupervisedSpec):
    """How widths are trained together; of `separate`, which trains them alone, only the fields of the recipe hold.

    Fields that a method has no use for stay null.
    """

    stable_sampling: Literal["paper", "code", "off"] | None = Field(
        None,
        description="Of scala. Each step trains the whole network, the smallest and one width from each half of the "
        "grid between; the middle one belongs to the lower half (`paper`, default) or to the upper (`code`). `off`: "
        "two widths from anywhere between.",
    )
    off_grid: Probability | None = Field(
        None,
        description="How often a width between the smallest and the whole is moved off the grid, to another one before "
        "its neighbours there, so that the widths between those of a coarse grid do not dip. 0: never, as published. "
        "Default: 0.25 for scala with head_aligned slicing and a grid that leaves widths out, else 0.",
    )
    off_grid_smallest: Probability | None = Field(
        None,
        description="The same of the smallest width, which each step trains otherwise. Default: 0.25, where that of "
        "off_grid is.",
    )
    teacher_of_subnets: Literal["next_larger", "full", "none"] | None = Field(
        None,
        description="Whose output a width learns: the next larger one's of the step (default of scala: progressive "
        "knowledge transfer) or the whole network's (usnet).",
    )
    noise_calibration: bool | AfterEpochs | None = Field(
        None, description="Widths learn from the labels too. Default: true for scala; false for usnet."
    )
    cross_entropy: bool | None = Field(
        None,
        description="False: nothing learns from labels, the whole network matches a teacher's features and each width "
        "those of the larger one; networks have no head then. Default: true, with a teacher of kind features false.",
    )
    kd_weight: float | None = Field(
        None, gt=0, le=1000, description="Weight of what a width learns from the larger network; its default is 1."
    )
    early_distillation_after_epochs: int | None = Field(
        None, ge=0, le=100_000, description="Widths learn from the larger network from this epoch on; default 0."
    )
    full_warm_epochs: int | None = Field(
        None, ge=0, le=100_000, description="Epochs in which only the whole network is trained; default 0."
    )
    full_warm_factor: float | None = Field(
        None, ge=1, le=1000, description="The rate of these epochs is divided by this; its default is 2."
    )


class WidthExportSpec(ExportSpec):
    """What is written, and of which widths."""

    top_k: int = Field(1, ge=1, le=100, description="Of how many of the best offered widths within the limits.")


class SlimmableSpec(JobSpec):
    """Train one network that runs at many widths, measure each of them, and export the best within the limits."""

    method: SlimmableMethod = Field(
        description="`scala` (Zhang et al. 2024), `usnet` (Yu and Huang 2019), or `separate`: each width alone."
    )
    network: NetworkSpec = Field(default_factory=lambda: NetworkSpec())
    init: Annotated[InitSpec, short_form("teacher", InitSpec)] | None = Field(
        None, description="Start from the weights of a Vision Transformer; the network's sizes follow from it."
    )
    warm_start: Annotated[WarmStartSpec, short_form("supernet", WarmStartSpec)] | None = Field(
        None,
        description="Continue a slimmable network that an earlier job trained, at these widths; network and slicing "
        "follow from it.",
    )
    teacher: Annotated[WidthTeacherSpec, short_form("id", WidthTeacherSpec)] | None = None
    widths: WidthGridSpec = Field(default_factory=lambda: WidthGridSpec())
    slicing: SlicingSpec = Field(default_factory=lambda: SlicingSpec())
    training: SlimmableTrainingSpec = Field(default_factory=lambda: SlimmableTrainingSpec())
    export: WidthExportSpec = Field(default_factory=lambda: WidthExportSpec())
