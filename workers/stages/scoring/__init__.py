"""Measures of subnets without labels."""

from workers.stages.scoring.scorer import LOOKS, BatchSums, MeasureScorer
from workers.stages.scoring.settings import Measures, ScoringSettings, TrainedParts

__all__ = ["LOOKS", "BatchSums", "MeasureScorer", "Measures", "ScoringSettings", "TrainedParts"]
