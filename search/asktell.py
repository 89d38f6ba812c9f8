"""Ask and tell: a search proposes genotypes, the caller scores them in whatever way and order, and reports back.

The algorithms know nothing of networks, images or devices.  All their randomness comes from one passed generator, so
a search is a function of (space, limits, settings, seed, scores), and its :meth:`~SearchAlgorithm.state` is a JSON
object from which it continues exactly, also between :meth:`~SearchAlgorithm.ask` and :meth:`~SearchAlgorithm.tell`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import insort
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from typing import Any, ClassVar, Protocol

import numpy as np

from models.architecture import Genotype
from search.randomness import dump_generator, load_generator, randbelow
from search.sampling import FeasibleSet, NearMiss

STATE_VERSION = 1

TRIES_PER_CHILD = 10
"""Attempts at a new feasible child before another source is asked (AutoFormer's script uses the same factor)."""


class StopReason(StrEnum):
    """Why a search proposes nothing more."""

    GENERATIONS = "generations"  # all generations were scored
    MAX_EVALUATIONS = "max_evaluations"  # the allowed number of candidates was scored
    SPACE_EXHAUSTED = "space_exhausted"  # every member within the limits was scored
    LIST_DONE = "list_done"  # every listed architecture was scored
    NO_FEASIBLE = "no_feasible"  # no member is within the limits


Child = tuple[Genotype, tuple[int, ...]]
"""A new genotype and the ``n`` of its parents."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """A genotype to be scored.

    Attributes:
        n: order of evaluation over the whole search, from 0.
        generation: 0 for the random first one.
        genotype: a member of the space within the limits, proposed only once in a search.
        parents: ``n`` of the candidates that it was bred from: none, one (mutation) or two (crossover).
    """

    n: int
    generation: int
    genotype: Genotype
    parents: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Candidate:
    """A proposal with its score, larger being better; ``None`` when it could not be scored."""

    proposal: Proposal
    score: float | None


class StateError(ValueError):
    """A saved state does not belong to this search."""


class SearchAlgorithm(Protocol):
    """What every search algorithm offers."""

    @property
    def finished(self) -> StopReason | None:
        """Why the search is over; ``None`` while there is something to ask or to tell."""

    @property
    def candidates(self) -> Sequence[Candidate]:
        """All scored proposals in the order of ``n``."""

    def ask(self) -> tuple[Proposal, ...]:
        """The generation to be scored next; the same one until it is told, and empty when finished."""

    def tell(self, scores: Sequence[float | None]) -> None:
        """Report the scores of the asked generation, in its order.

        ``None``, NaN and infinities mean that a proposal could not be scored; it is never bred from.

        Raises:
            ValueError: when nothing was asked or the number of scores is another.
        """

    def best(self, k: int) -> tuple[Candidate, ...]:
        """The ``k`` best scored candidates; of equal scores the earlier one comes first."""

    def nearest_misses(self, k: int) -> tuple[NearMiss, ...]:
        """The ``k`` members closest to the limits: what there is when the search ends with ``NO_FEASIBLE``."""

    def state(self) -> dict[str, Any]:
        """Everything needed to continue, as a JSON object; settings are not part of it."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a state, exactly; settings such as the number of generations may differ from then.

        Raises:
            StateError: when the state is of another algorithm, space or set of limits.
        """


class GenerationalSearch(ABC):
    """What the algorithms share: generations, uniqueness, limits, stopping and state.

    Generation 0 is random; ``generations`` more are bred by the algorithm.  What it does not deliver is filled up with
    random members, so that every generation is full until the space is exhausted.
    """

    name: ClassVar[str]

    def __init__(
        self,
        feasible: FeasibleSet,
        *,
        population: int,
        generations: int,
        rng: np.random.Generator,
        max_evaluations: int | None = None,
    ) -> None:
        self._feasible = feasible
        self._population = population
        self._generations = generations
        self._budget = feasible.count if max_evaluations is None else max_evaluations
        self._rng = rng
        self._generation = 0
        self._candidates: list[Candidate] = []  # candidate n is at index n
        self._ranking: list[tuple[float, int]] = []  # (-score, n) of the scored ones, ascending
        self._pending: tuple[Proposal, ...] = ()
        self._proposed: set[Genotype] = set()

    @property
    def finished(self) -> StopReason | None:
        """Why the search is over; ``None`` while there is something to ask or to tell."""
        if not self._feasible.count:
            return StopReason.NO_FEASIBLE
        if self._pending:
            return None
        if len(self._candidates) == self._feasible.count:
            return StopReason.SPACE_EXHAUSTED
        if len(self._candidates) >= self._budget:
            return StopReason.MAX_EVALUATIONS
        if self._generation > self._generations:
            return StopReason.GENERATIONS
        return None

    @property
    def candidates(self) -> Sequence[Candidate]:
        """All scored proposals in the order of ``n``."""
        return tuple(self._candidates)

    def ask(self) -> tuple[Proposal, ...]:
        """The generation to be scored next; the same one until it is told, and empty when finished."""
        if self._pending or self.finished:
            return self._pending
        done = len(self._candidates)
        wanted = min(self._population, self._budget - done, self._feasible.count - done)
        children = self._breed(wanted) if self._generation else []
        children += self._random(wanted - len(children))
        self._pending = tuple(
            Proposal(done + i, self._generation, genotype, parents) for i, (genotype, parents) in enumerate(children)
        )
        return self._pending

    def tell(self, scores: Sequence[float | None]) -> None:
        """Report the scores of the asked generation, in its order; see :meth:`SearchAlgorithm.tell`."""
        if len(scores) != len(self._pending) or not scores:
            raise ValueError(f"scores: found {len(scores)}, allowed is one for each of {len(self._pending)} proposals")
        for proposal, score in zip(self._pending, scores, strict=True):
            self._record(Candidate(proposal, float(score) if score is not None and math.isfinite(score) else None))
        self._pending = ()
        self._generation += 1

    def best(self, k: int) -> tuple[Candidate, ...]:
        """The ``k`` best scored candidates; of equal scores the earlier one comes first."""
        return tuple(self._candidates[n] for _, n in self._ranking[:k])

    def nearest_misses(self, k: int) -> tuple[NearMiss, ...]:
        """The ``k`` members closest to the limits."""
        return self._feasible.nearest(k)

    def state(self) -> dict[str, Any]:
        """Everything needed to continue, as a JSON object; settings are not part of it."""
        return {
            "version": STATE_VERSION,
            **self._identity(),
            "generation": self._generation,
            "candidates": [{**_dump(c.proposal), "score": c.score} for c in self._candidates],
            "pending": [_dump(proposal) for proposal in self._pending],
            "rng": dump_generator(self._rng),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a state, exactly; see :meth:`SearchAlgorithm.restore`."""
        for key, ours in {"version": STATE_VERSION, **self._identity()}.items():
            if state.get(key) != ours:
                raise StateError(f"search state, {key}: found {state.get(key)!r}, this search has {ours!r}")
        self._generation = state["generation"]
        self._rng = load_generator(state["rng"])
        self._candidates, self._ranking = [], []
        for entry in state["candidates"]:
            self._record(Candidate(self._load(entry), entry["score"]))
        self._pending = tuple(self._load(entry) for entry in state["pending"])
        everything = [*(candidate.proposal for candidate in self._candidates), *self._pending]
        self._proposed = {proposal.genotype for proposal in everything}

    @abstractmethod
    def _breed(self, wanted: int) -> list[Child]:
        """At most ``wanted`` children with their parents, each one claimed by :meth:`_claim`."""

    def _record(self, candidate: Candidate) -> None:
        self._candidates.append(candidate)
        if candidate.score is not None:
            insort(self._ranking, (-candidate.score, candidate.proposal.n))

    def _claim(self, genotype: Genotype) -> bool:
        """Reserve a member of the space for proposal: False when it breaks a limit or was proposed before."""
        # Testing the limits takes microseconds (a few sums), so remembering misfits would cost more than it saves.
        if genotype in self._proposed or not self._feasible.meets_limits(genotype):
            return False
        self._proposed.add(genotype)
        return True

    def _random(self, wanted: int) -> list[Child]:
        """Exactly ``wanted`` new members: gene-wise uniform draws, and the members left over when these run dry."""
        fresh: list[Child] = []
        for _ in range(TRIES_PER_CHILD * wanted):
            if len(fresh) == wanted:
                return fresh
            genotype = self._feasible.sample(self._rng)
            if self._claim(genotype):
                fresh.append((genotype, ()))
        return fresh + [(genotype, ()) for genotype in islice(self._left_over(), wanted - len(fresh))]

    def _left_over(self) -> Iterator[Genotype]:
        """All new members in a random order, each visited once; in the worst case this looks at every member."""
        count = self._feasible.count
        index, stride = randbelow(self._rng, count), 1 + randbelow(self._rng, count)
        while math.gcd(stride, count) > 1:  # coprime strides lead through all members; most strides are
            stride = 1 + randbelow(self._rng, count)
        for _ in range(count):
            if self._claim(genotype := self._feasible.member(index)):
                yield genotype
            index = (index + stride) % count

    def _load(self, entry: Mapping[str, Any]) -> Proposal:
        # Decoding restores the spelling of numbers: some JSON writers turn a ratio of 4.0 into 4.
        genotype = self._feasible.space.decode(entry["genotype"]).genotype
        return Proposal(entry["n"], entry["generation"], genotype, tuple(entry["parents"]))

    def _identity(self) -> dict[str, Any]:
        """What a state must agree on to be continued."""
        return {
            "algorithm": self.name,
            "space": self._feasible.space.digest(),
            "num_classes": self._feasible.num_classes,
            "limits": [
                {"metric": window.metric.value, "low": window.low, "high": window.high}
                for window in self._feasible.windows
            ],
        }


def _dump(proposal: Proposal) -> dict[str, Any]:
    return {
        "n": proposal.n,
        "generation": proposal.generation,
        "genotype": list(proposal.genotype),
        "parents": list(proposal.parents),
    }
