"""What a candidate may be scored by: label-free measures of a subnet, controls that look at its size or at nothing.

Only names and what they stand for; the measures themselves are taken in ``workers.stages.scoring``.
"""

from __future__ import annotations

from enum import StrEnum


class Measure(StrEnum):
    """A label-free figure of a subnet with the supernet's weights; larger is better."""

    CONSISTENCY = "consistency"  # relations of projected tokens against the teacher's
    CONSISTENCY_BARE = "consistency_bare"  # relations of the student's own tokens against the teacher's
    RECONSTRUCTION = "reconstruction"  # minus the loss at masked pixels
    FEATURE = "feature"  # minus the distillation loss
    EFFECTIVE_RANK = "effective_rank"  # directions in which its image features vary; looks at no teacher


class Control(StrEnum):
    """A figure that needs no network: whoever cannot beat it has measured nothing."""

    PARAMS = "params"  # number of parameters
    WIDTH = "width"  # embed_dim
    RANDOM = "random"  # a number drawn for each genotype


FUSED = "fused"
"""Name of the score that fuses several measures by their ranks (``search.fusion``)."""

REFERENCE_NETWORKS = 64
"""Networks of the random first generation, at most, among which measures are ranked to be fused."""

JUDGED_NETWORKS = 32
"""Networks of the random first generation on which the report judges how well each measure ranks."""
