"""Metrics of other packages: a scorer that says what a candidate is worth.

A package declares a function under the entry-point group ``vitailor.metrics``. It is called once with a
:class:`ScorerContext` and returns the scorer, a function from an architecture to a score.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from types import FunctionType
from typing import TypeAlias

import torch

from models.architecture import Architecture
from models.supernet import Supernet
from search.plugins import PluginError, PluginGroup, load_plugin
from service.errors import PluginFailed
from workers.data.dataset import ImageSet


@dataclass(frozen=True, slots=True, kw_only=True)
class ScorerContext:
    """What a scorer may look at.

    Attributes:
        supernet: trained and frozen; ``supernet(images, arch)`` runs it as any candidate.
        images: of the validation part, without labels; ``images.batch(positions)`` gives floats (B, C, H, W).
        device: where the supernet is.
        seed: of the job; all randomness must come from it, or a resumed search differs.
    """

    supernet: Supernet
    images: ImageSet
    device: torch.device
    seed: int


Scorer: TypeAlias = Callable[[Architecture], float | None]
"""Larger is better; None when an architecture cannot be scored. The same architecture must always score the same."""


class CustomMetric:
    """The scorer of a metric that a package brings.

    Args:
        name: of the metric.
        context: what it may look at.

    Raises:
        PluginFailed: it cannot be imported, or makes no scorer.
    """

    def __init__(self, name: str, context: ScorerContext) -> None:
        self._name = name
        try:
            factory = load_plugin(PluginGroup.METRICS, name, FunctionType)
        except PluginError as error:
            raise PluginFailed(str(error)) from error
        # The package's code may fail in any way, here and below; whoever runs the job must learn which package it was.
        try:
            self._scorer: Scorer = factory(context)
        except Exception as error:
            raise self._failed("made its scorer", error) from error

    @torch.inference_mode()
    def score(self, arch: Architecture) -> float | None:
        """The score of a candidate; None when it is no finite number.

        Raises:
            PluginFailed: the scorer fails, or returns something else than a number.
        """
        try:
            found = self._scorer(arch)
            score = None if found is None else float(found)
        except Exception as error:
            raise self._failed(f"scored {arch.genotype}", error) from error
        return score if score is not None and math.isfinite(score) else None

    def _failed(self, when: str, error: Exception) -> PluginFailed:
        return PluginFailed(
            f"The metric {self._name!r} of a plug-in failed with {type(error).__name__} when it {when}; the log of the "
            "job has the details."
        )
