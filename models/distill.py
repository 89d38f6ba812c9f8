"""Feature distillation from a frozen teacher at the visible patches (MaskTAS, section 3).

Student and teacher features are both taken before the final norm.  A linear projector maps the student's width to the
teacher's; its input columns are sliced like every tensor that reads tokens of the supernet.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from models.initialisation import materialise
from models.layers import PrefixLinear

_KNEE = 1.0  # where smooth L1 turns from quadratic to linear; targets have variance 1
_TARGET_EPS = 1e-6


class FeatureProjector(PrefixLinear):
    """Linear map from tokens of any subnet's width to the teacher's width.

    Args:
        student_dim: width of the largest student.
        teacher_dim: width of the teacher.
        generator: source of the initial weights, which live on its device.
    """

    def __init__(self, student_dim: int, teacher_dim: int, generator: torch.Generator) -> None:
        super().__init__(student_dim, teacher_dim, device="meta")
        materialise(self, generator)


def distillation_target(teacher_tokens: Tensor) -> Tensor:
    """What projected student tokens are to equal: teacher tokens (..., D), each brought to mean 0 and variance 1.

    The norm has no gain or bias: it only removes each token's own mean and scale. Float32, detached.
    """
    tokens = teacher_tokens.detach().float()
    return F.layer_norm(tokens, tokens.shape[-1:], eps=_TARGET_EPS)


def feature_loss(projected: Tensor, teacher_tokens: Tensor) -> Tensor:
    """Smooth L1 (Huber with knee 1) between projected student tokens and layer-normalised teacher tokens.

    The mean runs over images, visible patches and channels; the class token, whose role is not the student's to
    copy, is left out.

    Args:
        projected: (B, 1 + V, D), the projector's output, class token first.
        teacher_tokens: (B, 1 + V, D) of the same patches in the same order; no gradient reaches them.

    Returns:
        A scalar, computed in float32.

    Raises:
        ValueError: when the shapes differ.
    """
    if projected.shape != teacher_tokens.shape:
        raise ValueError(f"student features {tuple(projected.shape)}, teacher {tuple(teacher_tokens.shape)}")
    return F.smooth_l1_loss(projected[:, 1:].float(), distillation_target(teacher_tokens)[:, 1:], beta=_KNEE)
