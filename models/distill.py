"""Feature distillation from a frozen teacher (MaskTAS, section 3; the options are those of DMAE, Bai et al. 2023).

Student and teacher features are both taken before the final norm.  A projector maps the student's width to the
teacher's; the columns by which it reads tokens are sliced like every tensor that reads tokens of the supernet.

Legend: B images, M patches that are compared (visible or hidden ones), d student width, D teacher width.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.initialisation import materialise
from models.layers import PrefixLinear
from models.relations import consistency_score, log_relations

_KNEE = 1.0  # where smooth L1 turns from quadratic to linear; targets have variance 1
_TARGET_EPS = 1e-6


class Positions(StrEnum):
    """Which patches are compared."""

    VISIBLE = "visible"  # encoder tokens of the student, features of a teacher that sees the same patches
    MASKED = "masked"  # decoder tokens of the student at hidden patches, features of a teacher that sees all
    ALL = "all"  # both, each patch counting the same


class Layer(StrEnum):
    """After which share of the blocks features are taken, in encoder and teacher; decoders give their last tokens."""

    LAST = "last"
    THREE_QUARTER = "three_quarter"  # DMAE: student block 9 of 12, teacher block 18 of 24

    @property
    def share(self) -> float:
        """The share of the blocks."""
        return 1.0 if self is Layer.LAST else 0.75


class FeatureLoss(StrEnum):
    """How far student features are from the teacher's."""

    SMOOTH_L1 = "smooth_l1"
    L1 = "l1"
    L2 = "l2"  # mean squared error
    RELATION = "relation"  # divergence of token relations, see models.relations; of any two widths, hence bare


class ProjectorKind(StrEnum):
    """How tokens of the student get the teacher's width; hidden layers are as wide as the teacher."""

    NONE = "none"  # for relations only
    LINEAR = "linear"
    MLP1 = "mlp1"  # one hidden layer with GELU
    MLP2 = "mlp2"  # two


class TargetNorm(StrEnum):
    """What is done to each teacher token before it is compared."""

    LAYERNORM = "layernorm"  # mean 0 and variance 1, without gain or bias
    L2 = "l2"  # length 1, of projected student tokens too: only directions are compared
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class DistillConfig:
    """What is distilled and how; the defaults are MaskTAS as far as its paper tells.

    DMAE's loss is ``loss=L1, target_norm=L2, layer=THREE_QUARTER``.

    Raises:
        ValueError: relations with a projector or a norm, of which they need none, or anything else without projector.
    """

    positions: Positions = Positions.VISIBLE
    layer: Layer = Layer.LAST
    loss: FeatureLoss = FeatureLoss.SMOOTH_L1
    projector: ProjectorKind = ProjectorKind.LINEAR
    target_norm: TargetNorm = TargetNorm.LAYERNORM

    def __post_init__(self) -> None:
        bare = self.projector is ProjectorKind.NONE
        if (self.loss is FeatureLoss.RELATION) != bare or (bare and self.target_norm is not TargetNorm.NONE):
            raise ValueError(
                f"distillation loss {self.loss} with projector {self.projector} and target norm {self.target_norm}: "
                "relations take bare tokens, other losses a projector"
            )

    @property
    def visible(self) -> bool:
        """True when visible patches are compared."""
        return self.positions is not Positions.MASKED

    @property
    def hidden(self) -> bool:
        """True when hidden patches are compared."""
        return self.positions is not Positions.VISIBLE

    @property
    def projects(self) -> bool:
        """True when student tokens are projected."""
        return self.projector is not ProjectorKind.NONE


class FeatureProjector(PrefixLinear):
    """Map from tokens of any subnet's width to the teacher's width: linear, or with hidden layers behind it.

    Args:
        student_dim: width of the largest student.
        teacher_dim: width of the teacher, and of hidden layers.
        generator: source of the initial weights, which live on its device.
        kind: how many hidden layers there are.

    Raises:
        ValueError: for ``ProjectorKind.NONE``.
    """

    def __init__(
        self,
        student_dim: int,
        teacher_dim: int,
        generator: torch.Generator,
        kind: ProjectorKind = ProjectorKind.LINEAR,
    ) -> None:
        if kind is ProjectorKind.NONE:
            raise ValueError(f"there is no projector of kind {kind}")
        super().__init__(student_dim, teacher_dim, device="meta")
        hidden = {ProjectorKind.LINEAR: 0, ProjectorKind.MLP1: 1, ProjectorKind.MLP2: 2}[kind]
        layers: list[nn.Module] = []
        for _ in range(hidden):
            layers += [nn.GELU(), nn.Linear(teacher_dim, teacher_dim, device="meta")]
        self.hidden = nn.Sequential(*layers)
        materialise(self, generator)

    def forward(self, x: Tensor, trailing: bool = False) -> Tensor:
        """Map (..., d) to (..., D).

        Args:
            x: tokens of a student.
            trailing: they are the trailing channels of the largest student's.

        Raises:
            ValueError: when the input is wider than the largest student.
        """
        projected: Tensor = self.hidden(super().forward(x, trailing))
        return projected


def distillation_target(teacher_tokens: Tensor, norm: TargetNorm = TargetNorm.LAYERNORM) -> Tensor:
    """What projected student tokens are to equal: teacher tokens (..., D), each normalised. Float32, detached."""
    tokens = teacher_tokens.detach().float()
    match norm:
        case TargetNorm.LAYERNORM:
            return F.layer_norm(tokens, tokens.shape[-1:], eps=_TARGET_EPS)
        case TargetNorm.L2:
            return F.normalize(tokens, dim=-1)
        case TargetNorm.NONE:
            return tokens


def feature_loss(student_tokens: Tensor, teacher_tokens: Tensor, config: DistillConfig | None = None) -> Tensor:
    """Distance between student and teacher tokens of the same patches.

    The mean runs over images, patches and channels, for relations over images and patches; the class token, whose
    role is not the student's to copy, is left out.

    Args:
        student_tokens: (B, 1 + M, D), the projector's output, class token first; for relations (B, 1 + M, d).
        teacher_tokens: (B, 1 + M, D) of the same patches in the same order; no gradient reaches them.
        config: which distance; smooth L1 to layer-normalised tokens when None.

    Returns:
        A scalar, computed in float32.

    Raises:
        ValueError: when the shapes differ, or there are too few patches for relations.
    """
    config = config or DistillConfig()
    if config.loss is FeatureLoss.RELATION:
        return relation_loss(student_tokens, teacher_tokens)
    if student_tokens.shape != teacher_tokens.shape:
        raise ValueError(f"student features {tuple(student_tokens.shape)}, teacher {tuple(teacher_tokens.shape)}")
    return target_distance(student_tokens, distillation_target(teacher_tokens, config.target_norm), config)


def target_distance(student_tokens: Tensor, target: Tensor, config: DistillConfig, *, of_each: bool = False) -> Tensor:
    """:func:`feature_loss` to a target that was made before: that of many students is made once.

    Args:
        student_tokens: (B, 1 + M, D), the projector's output, class token first.
        target: (B, 1 + M, D) of :func:`distillation_target`, with the norm of ``config``.
        config: which distance, none of relations.
        of_each: give the distance of each image (B,) instead of their mean.

    Raises:
        ValueError: for relations, which have no such target, and when the shapes differ.
    """
    if student_tokens.shape != target.shape:
        raise ValueError(f"student features {tuple(student_tokens.shape)}, target {tuple(target.shape)}")
    student, wanted = student_tokens[:, 1:].float(), target[:, 1:]
    if config.target_norm is TargetNorm.L2:
        student = F.normalize(student, dim=-1)
    reduction = "none" if of_each else "mean"
    match config.loss:
        case FeatureLoss.SMOOTH_L1:
            distance = F.smooth_l1_loss(student, wanted, beta=_KNEE, reduction=reduction)
        case FeatureLoss.L1:
            distance = F.l1_loss(student, wanted, reduction=reduction)
        case FeatureLoss.L2:
            distance = F.mse_loss(student, wanted, reduction=reduction)
        case FeatureLoss.RELATION:
            raise ValueError("relations are compared by relation_loss, not with a target")
    return distance.mean(dim=(1, 2)) if of_each else distance


def relation_loss(student_tokens: Tensor, teacher_tokens: Tensor) -> Tensor:
    """Mean over images and patches of KL(teacher || student) between the relations of bare tokens.

    It is minus :func:`models.relations.consistency_score` with its defaults, the score of candidates.

    Args:
        student_tokens: (B, 1 + M, d), class token first, of any width.
        teacher_tokens: (B, 1 + M, D) of the same patches in the same order; no gradient reaches them.

    Raises:
        ValueError: when the numbers of tokens differ, or there are too few patches for relations.
    """
    # Cosines in half precision would be as coarse as the differences between them.
    with torch.autocast(student_tokens.device.type, enabled=False):
        return -consistency_score(student_tokens, log_relations(teacher_tokens.detach())).mean()
