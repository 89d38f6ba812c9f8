"""What a scorer is given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from models.distill import DistillConfig, FeatureProjector
from models.masked import MaskedDecoder
from models.supernet import Supernet
from search.measures import Measure

Measures = dict[str, float | None]
"""By name; None where a measure is no finite number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoringSettings:
    """How candidates are measured.

    Attributes:
        mask_ratio: share of hidden patches.
        mask_seeds: independent masks of each image; measures are means over them.
        depths: shares of the blocks after which relations are compared, ascending.
        temperature: of the relations.
        standardise: give each row of relations mean 0 and variance 1.
        distill: as in the supernet's training, for the features and the projected tokens.
        norm_targets: as in the supernet's training, for the reconstruction.
        batch_size: images at once.
        seed: of the run.
        shared_prefixes: compute what several candidates begin with once for all of them. Measures are the same.
        shuffled: take the images in a random order, as racing must; sums then differ by rounding.
        teacher_cache: keep the teacher's side instead of computing it for each population. Measures are the same.
    """

    mask_ratio: float
    mask_seeds: int = 1
    depths: tuple[float, ...] = (1.0,)
    temperature: float = 1.0
    standardise: bool = True
    distill: DistillConfig = field(default_factory=DistillConfig)
    norm_targets: bool = True
    batch_size: int
    seed: int
    shared_prefixes: bool = True
    teacher_cache: bool = True
    shuffled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainedParts:
    """What the supernet's training has left.

    Attributes:
        supernet: the shared weights.
        projector: to the teacher's width; None without distillation.
        decoder: of masked pixels; None without reconstruction.
    """

    supernet: Supernet
    projector: FeatureProjector | None = None
    decoder: MaskedDecoder | None = None

    def check(self, measures: Sequence[Measure]) -> None:
        """Refuse measures whose part is missing.

        Raises:
            ValueError: with their names.
        """
        needs = {
            Measure.CONSISTENCY: self.projector,
            Measure.FEATURE: self.projector,
            Measure.RECONSTRUCTION: self.decoder,
        }
        missing = [measure.value for measure in measures if measure in needs and needs[measure] is None]
        if missing:
            raise ValueError(
                f"measures {missing} need a projector or decoder, which the supernet's training did not leave"
            )
