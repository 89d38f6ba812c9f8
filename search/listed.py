"""No search at all: exactly the architectures that the caller names are scored, in the caller's order."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from itertools import islice
from typing import Any, ClassVar

import numpy as np

from models.architecture import FieldProblem, Genotype
from search.asktell import StopReason
from search.errors import SettingsError
from search.generational import Child, GenerationalSearch
from search.sampling import FeasibleSet


class ListedSearch(GenerationalSearch):
    """Proposes the members of a list, ``population`` at a time.

    Args:
        feasible: members of the space within the limits.
        genotypes: what is to be scored.
        population: how many are proposed at once.
        rng: drawn from by nothing; part of the state that all algorithms share.

    Raises:
        SettingsError: an empty list, a genotype that is given twice, is no member of the space or breaks a limit;
            pointers are relative to the list.
    """

    name: ClassVar[str] = "listed"

    def __init__(
        self, feasible: FeasibleSet, genotypes: Sequence[Genotype], *, population: int, rng: np.random.Generator
    ) -> None:
        self._genotypes = tuple(feasible.space.decode(genotype).genotype for genotype in genotypes)
        problems = _problems(feasible, self._genotypes)
        if problems:
            raise SettingsError(problems)
        count = len(self._genotypes)
        super().__init__(feasible, population=population, generations=count, rng=rng, max_evaluations=count)

    @property
    def finished(self) -> StopReason | None:
        """Why the search is over; ``None`` while there is something to ask or to tell."""
        if len(self._candidates) < len(self._genotypes):
            return None
        return StopReason.LIST_DONE

    def _breed(self, wanted: int) -> list[Child]:
        return self._random(wanted)

    def _random(self, wanted: int) -> list[Child]:
        return [(genotype, ()) for genotype in islice(filter(self._claim, self._genotypes), wanted)]

    def _identity(self) -> dict[str, Any]:
        listed = json.dumps(self._genotypes, separators=(",", ":"))
        return {**super()._identity(), "listed": hashlib.sha256(listed.encode()).hexdigest()}


def _problems(feasible: FeasibleSet, genotypes: Sequence[Genotype]) -> tuple[FieldProblem, ...]:
    if not genotypes:
        return (FieldProblem("", [], "at least one architecture"),)
    limits = ", ".join(str(window) for window in feasible.windows)
    problems, seen = [], set()
    for i, genotype in enumerate(genotypes):
        if genotype in seen:
            problems.append(FieldProblem(f"/{i}", list(genotype), "each architecture once"))
        elif not feasible.meets_limits(genotype):
            problems.append(FieldProblem(f"/{i}", list(genotype), f"architectures within the limits ({limits})"))
        seen.add(genotype)
    return tuple(problems)
