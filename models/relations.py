"""The label-free score of a subnet: how closely its patches relate to each other as the teacher's do.

For each visible patch the similarities to all *other* visible patches become a distribution; the score is minus the
Kullback-Leibler divergence from the teacher's distributions to the student's, so 0 is perfect (MaskTAS scores by the
cross-entropy of the same relations, which differs by the teacher's entropy only and orders candidates alike).
Relations have the same size for every width, so features of any two widths compare.

The papers leave the normalisation open.  Here similarities are cosines, and by default each row is standardised to
mean 0 and variance 1 before the softmax: cosines of wide features concentrate around 0, and without the step the
sharpness of the softmax, and thereby the score, would depend on the width instead of on the features.

Legend: B images, V visible patches, d token width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

MIN_VISIBLE_PATCHES = 4
"""With two patches each has one relation, whose softmax is always 1; a row of three others is the least that ranks."""

_STD_FLOOR = 1e-5  # equal similarities differ by rounding alone (1e-7), which must not be blown up to a ranking


def block_at(share: float, depth: int) -> int:
    """Number of the block that ends this share of a network: ``round(share * depth)``, at least the first.

    Networks of different depth are compared after equal shares of their blocks, as distillation between them does
    (DMAE, Bai et al. 2023, compares block 9 of 12 with 18 of 24).
    """
    return max(1, round(share * depth))


def relation_logits(tokens: Tensor, *, tau: float = 1.0, standardise: bool = True) -> Tensor:
    """Similarities of each visible patch to the others, ready for a softmax over the last axis.

    Args:
        tokens: (B, 1 + V, d), class token (which is left out) first.
        tau: temperature; the logits are divided by it.
        standardise: give each row mean 0 and variance 1; without it a tau near 0.1 is usual for cosines.

    Returns:
        float32 (B, V, V - 1): row j holds the patches k != j in order.

    Raises:
        ValueError: when fewer than ``MIN_VISIBLE_PATCHES`` patches are visible or tau is not positive.
    """
    visible = tokens.shape[1] - 1
    if visible < MIN_VISIBLE_PATCHES:
        raise ValueError(
            f"{visible} visible patches, relations need at least {MIN_VISIBLE_PATCHES}: lower the mask ratio "
            "or use smaller patches"
        )
    if not tau > 0:
        raise ValueError(f"temperature is {tau}, allowed is above 0")
    directions = F.normalize(tokens[:, 1:].float(), dim=-1)
    logits = _without_diagonal(directions @ directions.transpose(1, 2))
    if standardise:
        spread, mean = torch.std_mean(logits, dim=-1, correction=0, keepdim=True)
        logits = (logits - mean) / spread.clamp_min(_STD_FLOOR)
    return logits / tau


def log_relations(tokens: Tensor, *, tau: float = 1.0, standardise: bool = True) -> Tensor:
    """Log-probabilities of the relations, float32 (B, V, V - 1); the teacher's are computed once and kept.

    Arguments and errors as for :func:`relation_logits`.
    """
    return relation_logits(tokens, tau=tau, standardise=standardise).log_softmax(dim=-1)


def consistency_score(
    student_tokens: Tensor, teacher_log_relations: Tensor, *, tau: float = 1.0, standardise: bool = True
) -> Tensor:
    """Score of each image: minus the mean over patches of KL(teacher || student); larger is better, at most 0.

    Args:
        student_tokens: (B, 1 + V, d) of any width, before the final norm.
        teacher_log_relations: (B, V, V - 1) from :func:`log_relations` with the same options, for the same patches.
        tau: temperature, as for the teacher.
        standardise: as for the teacher.

    Returns:
        float32 (B,).

    Raises:
        ValueError: when the shapes do not fit, and as :func:`relation_logits`.
    """
    student = log_relations(student_tokens, tau=tau, standardise=standardise)
    if student.shape != teacher_log_relations.shape:
        raise ValueError(f"student relations {tuple(student.shape)}, teacher {tuple(teacher_log_relations.shape)}")
    teacher = teacher_log_relations.float()
    divergence = F.kl_div(student, teacher, reduction="none", log_target=True).sum(dim=-1)
    return -divergence.mean(dim=-1)


def _without_diagonal(square: Tensor) -> Tensor:
    """(B, V, V) to (B, V, V - 1), each row without its own patch."""
    batch, size, _ = square.shape
    # Dropping the first entry shifts the diagonal to the end of rows that are one longer.
    rows = square.flatten(1)[:, 1:].view(batch, size - 1, size + 1)
    return rows[:, :, :-1].reshape(batch, size, size - 1)
