"""Measures of subnets without labels."""

from workers.stages.scoring.scorer import MeasureScorer
from workers.stages.scoring.settings import Measures, ScoringSettings, TrainedParts

__all__ = ["MeasureScorer", "Measures", "ScoringSettings", "TrainedParts"]
