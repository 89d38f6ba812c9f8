"""Evolution whose children are screened before they are scored, by a model of the scores that were told so far.

Of many children that are bred, only those that the model thinks best are proposed, as in Once-for-All (Cai et al.
2020, section 3.2). The model is a ridge regression on the genes, one column for each choice of each block, and on the
logarithms of the costs; its penalty is chosen by generalised cross-validation (Golub et al. 1979). It has few
parameters and needs few scores, is fitted in milliseconds, and depends on nothing but the told candidates.

Legend: m candidates, f features.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from models.architecture import Genotype
from search import ranking
from search.asktell import Candidate
from search.evolution import EvolutionSearch, EvolutionSettings
from search.generational import Child
from search.metrics import Metric
from search.sampling import FeasibleSet

FloatArray = NDArray[np.float64]

FEWEST_SCORES = 10
"""With fewer the children are not screened."""

PRESCREEN = 10
"""Children that are bred for each one that is scored, unless the user asks for another number."""

_PENALTIES = np.logspace(-4, 4, 33)
_COSTS = (Metric.PARAMS_M, Metric.GMACS)


class Features:
    """Genotypes of one space as numbers: (m, f), ones and zeros but for the costs, which go from about 0 to about 1."""

    def __init__(self, feasible: FeasibleSet) -> None:
        space = feasible.space
        self._feasible = feasible
        self._heads = {choice: i for i, choice in enumerate(space.num_heads)}
        self._ratios = {choice: i for i, choice in enumerate(space.mlp_ratio)}
        self._widths = {choice: i for i, choice in enumerate(space.embed_dim)}
        self._depths = {choice: i for i, choice in enumerate(space.depth)}
        self._block = len(self._heads) + len(self._ratios)
        self._blocks = space.depth[-1] * self._block
        self.count = self._blocks + len(self._widths) + len(self._depths) + len(_COSTS)
        self._low = self._log_costs(space.smallest().genotype)
        self._span = np.maximum(self._log_costs(space.largest().genotype) - self._low, 1e-9)

    def of(self, genotypes: Sequence[Genotype]) -> FloatArray:
        """The rows of these genotypes."""
        rows = np.zeros((len(genotypes), self.count))
        for row, genotype in zip(rows, genotypes, strict=True):
            depth = int(genotype[0])
            for i in range(depth):
                row[i * self._block + self._heads[int(genotype[1 + depth + i])]] = 1.0
                row[i * self._block + len(self._heads) + self._ratios[genotype[1 + i]]] = 1.0
            row[self._blocks + self._widths[int(genotype[-1])]] = 1.0
            row[self._blocks + len(self._widths) + self._depths[depth]] = 1.0
            row[-len(_COSTS) :] = (self._log_costs(genotype) - self._low) / self._span
        return rows

    def _log_costs(self, genotype: Genotype) -> FloatArray:
        counts = self._feasible.counts(genotype)
        return np.array([math.log(counts[metric]) for metric in _COSTS])


class Ridge:
    """Linear regression with a penalty on all coefficients but the intercept.

    Only sums over the data are kept, so that neither memory nor the time of a fit grows with it.
    """

    def __init__(self, features: int) -> None:
        self.count = 0
        self._sums = np.zeros(features)
        self._products = np.zeros((features, features))
        self._target_sum = self._target_squares = 0.0
        self._target_products = np.zeros(features)

    def add(self, rows: FloatArray, targets: FloatArray) -> None:
        """Take notice of m rows (m, f) and their targets (m,)."""
        self.count += len(rows)
        self._sums += rows.sum(axis=0)
        self._products += rows.T @ rows
        self._target_sum += float(targets.sum())
        self._target_squares += float(targets @ targets)
        self._target_products += rows.T @ targets

    def fit(self) -> Callable[[FloatArray], FloatArray]:
        """The prediction of rows (m, f) by the best penalty of generalised cross-validation.

        Raises:
            ValueError: when fewer than two rows were added.
        """
        if self.count < 2:
            raise ValueError(f"ridge regression: found {self.count} rows, allowed is at least 2")
        mean, centre = self._target_sum / self.count, self._sums / self.count
        spread = max(0.0, self._target_squares - self.count * mean**2)
        eigenvalues, vectors = np.linalg.eigh(self._products - self.count * np.outer(centre, centre))
        eigenvalues = np.maximum(eigenvalues, 0.0)
        loads = vectors.T @ (self._target_products - self.count * centre * mean)
        penalties = _PENALTIES * max(float(eigenvalues.mean()), 1e-12)
        shrunk = eigenvalues[:, None] + penalties
        left = np.maximum(spread - (loads[:, None] ** 2 * (shrunk + penalties) / shrunk**2).sum(axis=0), 0.0)
        freedom = 1 - (1 + (eigenvalues[:, None] / shrunk).sum(axis=0)) / self.count
        # As many parameters as data leave nothing to judge by; the largest penalty always leaves something.
        risk = np.divide(left, freedom**2, out=np.full_like(left, np.inf), where=freedom > 1e-6)
        best = int(np.argmin(risk))
        weights = vectors @ (loads / shrunk[:, best])
        return lambda rows: mean + (rows - centre) @ weights


class PredictorSearch(EvolutionSearch):
    """Evolution that breeds ``prescreen`` children for each one that it proposes.

    ``figures`` tells how good the predictions of a generation were, which were made before anything of it was told:
    ``predictor_spearman`` (rank correlation with the scores), ``predictor_mae`` (mean absolute error),
    ``predictor_mae_of_mean`` (that of always predicting the mean so far) and ``predictor_scores`` (how many it was
    fitted on).

    Args:
        feasible: members of the space within the limits.
        settings: of the evolution.
        rng: source of all randomness.
        max_evaluations: at most this many candidates are proposed.
        seeds: members that the first generation ends with.
        prescreen: at least 1, which screens nothing.
    """

    name: ClassVar[str] = "predictor"

    def __init__(
        self,
        feasible: FeasibleSet,
        settings: EvolutionSettings,
        rng: np.random.Generator,
        max_evaluations: int | None = None,
        seeds: Sequence[Genotype] = (),
        prescreen: int = PRESCREEN,
    ) -> None:
        super().__init__(feasible, settings, rng, max_evaluations, seeds)
        self._features = Features(feasible)
        self._prescreen = prescreen
        self._ridge = Ridge(self._features.count)
        self._total = 0.0  # of the scores
        self._predict: Callable[[FloatArray], FloatArray] | None = None

    def _children(self, n_parents: int, breed: Callable[..., Genotype], wanted: int) -> list[Child]:
        if self._predict is None:
            return super()._children(n_parents, breed, wanted)
        bred = super()._children(n_parents, breed, self._prescreen * wanted)
        if not bred:
            return bred
        promise = self._predict(self._features.of([genotype for genotype, _ in bred]))
        order = np.argsort(-promise, kind="stable")
        for i in order[wanted:]:
            self._proposed.discard(bred[i][0])  # may be bred again
        return [bred[i] for i in order[:wanted]]

    def _learn(self, told: Sequence[Candidate]) -> None:
        super()._learn(told)
        genotypes = [c.proposal.genotype for c in told if c.score is not None]
        scores = np.array([c.score for c in told if c.score is not None], np.float64)
        if not genotypes:
            return
        rows = self._features.of(genotypes)
        if self._predict is not None:
            self._figures = self._errors(self._predict(rows), scores)
        self._ridge.add(rows, scores)
        self._total += float(scores.sum())
        self._predict = self._ridge.fit() if self._ridge.count >= FEWEST_SCORES else None

    def _errors(self, predicted: FloatArray, scores: FloatArray) -> dict[str, float]:
        mean = self._total / self._ridge.count
        figures = {
            "predictor_mae": float(np.abs(predicted - scores).mean()),
            "predictor_mae_of_mean": float(np.abs(mean - scores).mean()),
            "predictor_scores": float(self._ridge.count),
        }
        correlation = ranking.spearman(predicted, scores)
        return figures if correlation is None else {"predictor_spearman": correlation, **figures}

    def _own_restore(self, state: Mapping[str, Any]) -> None:
        self._ridge, self._total, self._predict = Ridge(self._features.count), 0.0, None
        # Generation by generation, as they were told: sums of floats depend on their order.
        for _, told in groupby(self._candidates, lambda candidate: candidate.proposal.generation):
            self._learn(list(told))
        super()._own_restore(state)
