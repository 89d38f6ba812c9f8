"""Measures of subnets without labels."""

from workers.stages.scoring.scorer import LOOKS, MeasureScorer
from workers.stages.scoring.settings import Measures, ScoringSettings, TrainedParts

__all__ = ["LOOKS", "MeasureScorer", "Measures", "ScoringSettings", "TrainedParts"]
