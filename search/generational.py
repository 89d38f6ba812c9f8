"""What the search algorithms share: generations, uniqueness, limits, stopping and state."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import insort
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, ClassVar

import numpy as np

from models.architecture import Genotype
from search.asktell import Candidate, HistoryRow, Proposal, StateError, StopReason
from search.randomness import dump_generator, load_generator, randbelow
from search.sampling import FeasibleSet, NearMiss

STATE_VERSION = 2

TRIES_PER_CHILD = 10
"""Attempts at a new feasible child before another source is asked (AutoFormer's script uses the same factor)."""


RANKED = 10_000
"""So many candidates are kept in order, at least as many as may be bred from: the work for one that is told is bounded
however long a search runs."""

Child = tuple[Genotype, tuple[int, ...]]
"""A new genotype and the ``n`` of its parents."""


class GenerationalSearch(ABC):
    """What the algorithms share: generations, uniqueness, limits, stopping and state.

    Generation 0 is random but for its seeds, which come last; ``generations`` more are bred by the algorithm. What it
    does not deliver is filled up with random members, so that every generation is full until the space is exhausted.

    Args:
        feasible: members of the space within the limits.
        population: candidates in one generation.
        generations: bred generations after the first one.
        rng: source of all randomness.
        max_evaluations: at most this many candidates are proposed.
        seeds: members that generation 0 ends with, the best first; those beyond the limits are left out, and so are
            those that find no place.
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
        seeds: Sequence[Genotype] = (),
    ) -> None:
        self._feasible = feasible
        self._population = population
        self._generations = generations
        self._budget = feasible.count if max_evaluations is None else max_evaluations
        self._rng = rng
        self._seeds = tuple(seeds)
        self._random_first = 0
        self._figures: dict[str, float] = {}
        self._generation = 0
        self._candidates: list[Candidate] = []  # candidate n is at index n
        self._ranking: list[tuple[float, int]] = []  # (-score, n) of the best RANKED scored ones, ascending
        self._misses: list[tuple[float, int]] = []  # (violation, n) of the nearest RANKED beyond a limit, ascending
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
        """All told proposals in the order of ``n``: a view that grows with the search."""
        return self._candidates

    @property
    def random_first(self) -> int:
        """How many candidates of generation 0 were drawn at random; they come first."""
        return self._random_first

    @property
    def figures(self) -> Mapping[str, float]:
        """What the algorithm has to say of the generation that was told last, by name."""
        return self._figures

    def ask(self) -> tuple[Proposal, ...]:
        """The generation to be scored next; the same one until it is told, and empty when finished."""
        if self._pending or self.finished:
            return self._pending
        done = len(self._candidates)
        wanted = min(self._population, self._budget - done, self._feasible.count - done)
        children = self._breed(wanted) if self._generation else self._first(wanted)
        children += self._random(wanted - len(children))
        self._pending = tuple(
            Proposal(done + i, self._generation, genotype, parents) for i, (genotype, parents) in enumerate(children)
        )
        return self._pending

    def tell(self, scores: Sequence[float | None], violations: Sequence[float] = ()) -> None:
        """Report the scores of the asked generation, in its order; see :meth:`SearchAlgorithm.tell`."""
        asked = len(self._pending)
        for name, given in (("scores", scores), ("violations", violations or scores)):
            if len(given) != asked or not given:
                raise ValueError(f"{name}: found {len(given)}, allowed is one for each of {asked} proposals")
        told = [
            _candidate(proposal, score, violation)
            for proposal, score, violation in zip(self._pending, scores, violations or [0.0] * asked, strict=True)
        ]
        for candidate in told:
            self._record(candidate)
        self._pending = ()
        self._generation += 1
        self._learn(told)

    def best(self, k: int) -> tuple[Candidate, ...]:
        """The ``k`` best scored candidates; of equal scores the earlier one comes first."""
        if k <= RANKED:
            return tuple(self._candidates[n] for _, n in self._ranking[:k])
        scored = [(-c.score, c.proposal.n) for c in self._candidates if c.score is not None]
        return tuple(self._candidates[n] for _, n in sorted(scored)[:k])

    def nearest_misses(self, k: int) -> tuple[NearMiss, ...]:
        """The ``k`` members closest to the limits."""
        return self._feasible.nearest(k)

    def state(self) -> dict[str, Any]:
        """What is needed to continue beside the history; see :meth:`SearchAlgorithm.state`."""
        return {
            "version": STATE_VERSION,
            **self._identity(),
            "generation": self._generation,
            "told": len(self._candidates),
            "random_first": self._random_first,
            "pending": [[list(proposal.parents), list(proposal.genotype)] for proposal in self._pending],
            "rng": dump_generator(self._rng),
            **self._own_state(),
        }

    def history(self, start: int = 0) -> list[HistoryRow]:
        """The told candidates from ``n = start`` on."""
        return [
            [c.proposal.generation, c.score, c.violation, list(c.proposal.parents), list(c.proposal.genotype)]
            for c in islice(self._candidates, start, None)
        ]

    def restore(self, state: Mapping[str, Any], history: Sequence[HistoryRow]) -> None:
        """Continue from a state, exactly; see :meth:`SearchAlgorithm.restore`."""
        expected = {"version": STATE_VERSION, **self._identity(), "told": len(history)}
        for key, ours in expected.items():
            if state.get(key) != ours:
                raise StateError(f"search state, {key}: found {state.get(key)!r}, this search has {ours!r}")
        self._generation = state["generation"]
        self._random_first = state["random_first"]
        self._rng = load_generator(state["rng"])
        self._candidates, self._ranking, self._misses, self._proposed = [], [], [], set()
        for n, (generation, score, violation, parents, genotype) in enumerate(history):
            self._record(Candidate(self._load(n, generation, parents, genotype), score, float(violation)))
        self._pending = tuple(
            self._load(len(history) + i, self._generation, parents, genotype)
            for i, (parents, genotype) in enumerate(state["pending"])
        )
        self._own_restore(state)

    def _own_state(self) -> dict[str, Any]:
        """What an algorithm adds to the state; bounded by the population."""
        return {"figures": self._figures}

    def _own_restore(self, state: Mapping[str, Any]) -> None:
        """Read it back; the candidates are there already."""
        self._figures = dict(state["figures"])

    def _learn(self, told: Sequence[Candidate]) -> None:
        """Take notice of a generation, which is among the candidates already."""
        self._figures = {}

    @abstractmethod
    def _breed(self, wanted: int) -> list[Child]:
        """At most ``wanted`` children with their parents, each one claimed by :meth:`_claim`."""

    def _elite(self, k: int) -> list[Proposal]:
        """What may be bred from: the best ``k``, and when these are fewer the nearest to the limits."""
        best = [n for _, n in self._ranking[:k]]
        nearest = [n for _, n in self._misses[: k - len(best)]]
        return [self._candidates[n].proposal for n in (*best, *nearest)]

    def _record(self, candidate: Candidate) -> None:
        self._candidates.append(candidate)
        if candidate.score is not None:
            _insert(self._ranking, -candidate.score, candidate.proposal.n)
        elif candidate.violation:
            _insert(self._misses, candidate.violation, candidate.proposal.n)

    def _first(self, wanted: int) -> list[Child]:
        """Generation 0: random members, then the seeds."""
        seeds: list[Child] = [(genotype, ()) for genotype in islice(filter(self._claim, self._seeds), wanted)]
        self._random_first = wanted - len(seeds)
        return self._random(self._random_first) + seeds

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

    def _load(self, n: int, generation: int, parents: Sequence[int], genes: Sequence[int | float]) -> Proposal:
        # Decoding restores the spelling of numbers: some JSON writers turn a ratio of 4.0 into 4.
        genotype = self._feasible.space.decode(genes).genotype
        self._proposed.add(genotype)
        return Proposal(n, generation, genotype, tuple(parents))

    def _identity(self) -> dict[str, Any]:
        """What a state must agree on to be continued."""
        table = self._feasible.prices.table
        return {
            "algorithm": self.name,
            "space": self._feasible.space.digest(),
            "num_classes": self._feasible.num_classes,
            "limits": [
                {"metric": window.metric.value, "low": window.low, "high": window.high}
                for window in self._feasible.windows
            ],
            **({} if table is None else {"latency_table": table.digest()}),
        }


def _candidate(proposal: Proposal, score: float | None, violation: float) -> Candidate:
    if math.isnan(violation) or violation < 0:
        raise ValueError(f"violations: found {violation} of proposal {proposal.n}, allowed is a number of at least 0")
    usable = score is not None and math.isfinite(score) and not violation
    return Candidate(proposal, float(score) if usable and score is not None else None, float(violation))


def _insert(ranking: list[tuple[float, int]], value: float, n: int) -> None:
    """Keep the :data:`RANKED` least values with their ``n``, ascending; of equal ones the earlier comes first."""
    insort(ranking, (value, n))
    del ranking[RANKED:]
