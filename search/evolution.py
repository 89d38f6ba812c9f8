"""Evolutionary search in the manner of AutoFormer (Chen et al. 2021, section 3.3), which MaskTAS uses too.

Three deliberate differences from AutoFormer's released script.  No member is ever scored twice.  Parents of a
crossover may differ in depth: the child takes the depth of one of them and is well-formed always, where the script
looks for parents of equal depth and, failing that, cuts the gene tuple of the longer one.  And when mutation and
crossover find nothing new, the generation is filled up exactly rather than by retrying without end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, TypeVar

import numpy as np

from models.architecture import FieldProblem, Genotype, is_int
from search.asktell import Proposal
from search.errors import SettingsError
from search.generational import TRIES_PER_CHILD, Child, GenerationalSearch
from search.sampling import FeasibleSet

T = TypeVar("T")


class Mutation(StrEnum):
    """The two published settings of the probabilities of mutation, which say the opposite of each other."""

    CODE = "code"  # AutoFormer's released script
    PAPER = "paper"  # Chen et al. 2021, section 4.1

    @property
    def block_prob(self) -> float:
        """Probability that a block's ratio is redrawn, and likewise its head count."""
        return 0.2 if self is Mutation.CODE else 0.4

    @property
    def network_prob(self) -> float:
        """Probability that the depth is redrawn, and likewise the width."""
        return 0.4 if self is Mutation.CODE else 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class EvolutionSettings:
    """Settings of the evolution; the defaults are those of AutoFormer's released script.

    Attributes:
        population: candidates in one generation.
        generations: bred generations after the random first one.
        parents: how many of the best candidates so far are bred from.
        mutation_share: share of a generation that is bred by mutation.
        crossover_share: share bred by crossover; what both leave is random.
        block_mutation_prob: probability that a mutation redraws a block's ratio, and likewise its head count.
        network_mutation_prob: probability that it redraws the depth, and likewise the width.

    Raises:
        SettingsError: pointers are relative to the settings.
    """

    population: int = 50
    generations: int = 20
    parents: int = 10
    mutation_share: float = 0.5
    crossover_share: float = 0.5
    block_mutation_prob: float = Mutation.CODE.block_prob
    network_mutation_prob: float = Mutation.CODE.network_prob

    def __post_init__(self) -> None:
        problems = tuple(_problems(self))
        if problems:
            raise SettingsError(problems)


def _problems(settings: EvolutionSettings) -> Iterator[FieldProblem]:
    sound = True
    for name, least in (("population", 1), ("generations", 0), ("parents", 1)):
        value = getattr(settings, name)
        if not is_int(value) or value < least:
            sound = False
            yield FieldProblem(f"/{name}", value, f"an integer, at least {least}")
    for name in ("mutation_share", "crossover_share", "block_mutation_prob", "network_mutation_prob"):
        value = getattr(settings, name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
            sound = False
            yield FieldProblem(f"/{name}", value, "a number from 0 to 1")
    if sound and settings.mutation_share + settings.crossover_share > 1:
        allowed = f"at most {1 - settings.mutation_share:g}, the rest of the generation beside mutation_share"
        yield FieldProblem("/crossover_share", settings.crossover_share, allowed)


@dataclass(slots=True)
class _Genes:
    """A genotype taken apart, for editing."""

    embed_dim: int
    ratios: list[float]
    heads: list[int]

    @classmethod
    def of(cls, genotype: Genotype) -> _Genes:
        depth = int(genotype[0])
        return cls(int(genotype[-1]), list(genotype[1 : 1 + depth]), [int(h) for h in genotype[1 + depth : -1]])

    @property
    def genotype(self) -> Genotype:
        return (len(self.heads), *self.ratios, *self.heads, self.embed_dim)


class EvolutionSearch(GenerationalSearch):
    """Mutation and crossover of the best candidates of all generations so far."""

    name: ClassVar[str] = "evolution"

    def __init__(
        self,
        feasible: FeasibleSet,
        settings: EvolutionSettings,
        rng: np.random.Generator,
        max_evaluations: int | None = None,
        seeds: Sequence[Genotype] = (),
    ) -> None:
        super().__init__(
            feasible,
            population=settings.population,
            generations=settings.generations,
            rng=rng,
            max_evaluations=max_evaluations,
            seeds=seeds,
        )
        self._settings = settings
        self._space = feasible.space

    def _breed(self, wanted: int) -> list[Child]:
        n_mutants = round(wanted * self._settings.mutation_share)
        n_crossed = min(wanted - n_mutants, round(wanted * self._settings.crossover_share))
        return [*self._children(1, self._mutate, n_mutants), *self._children(2, self._cross, n_crossed)]

    def _children(self, n_parents: int, breed: Callable[..., Genotype], wanted: int) -> list[Child]:
        """Up to ``wanted`` new children of distinct parents, within a bounded number of tries."""
        children: list[Child] = []
        pool = self._mating_pool()
        if len(pool) < n_parents:
            return children
        for _ in range(TRIES_PER_CHILD * wanted):
            if len(children) == wanted:
                break
            parents = self._draw_parents(pool, n_parents)
            genotype = breed(*(_Genes.of(parent.genotype) for parent in parents))
            if self._claim(genotype):
                children.append((genotype, tuple(parent.n for parent in parents)))
        return children

    def _mating_pool(self) -> list[Proposal]:
        """What may be bred from, the best first."""
        return self._elite(self._settings.parents)

    def _draw_parents(self, pool: Sequence[Proposal], n_parents: int) -> list[Proposal]:
        """So many different ones."""
        return [pool[i] for i in self._rng.choice(len(pool), size=n_parents, replace=False)]

    def _mutate(self, genes: _Genes) -> Genotype:
        space, rng = self._space, self._rng
        per_block, per_network = self._settings.block_mutation_prob, self._settings.network_mutation_prob
        if rng.random() < per_network:
            depth = _pick(rng, space.depth)
            while len(genes.heads) < depth:
                genes.ratios.append(_pick(rng, space.mlp_ratio))
                genes.heads.append(_pick(rng, space.num_heads))
            del genes.ratios[depth:], genes.heads[depth:]
        for i in range(len(genes.heads)):
            if rng.random() < per_block:
                genes.ratios[i] = _pick(rng, space.mlp_ratio)
            if rng.random() < per_block:
                genes.heads[i] = _pick(rng, space.num_heads)
        if rng.random() < per_network:
            genes.embed_dim = _pick(rng, space.embed_dim)
        return genes.genotype

    def _cross(self, first: _Genes, second: _Genes) -> Genotype:
        """Each gene from either parent; blocks that only the deeper one has come from it."""
        rng = self._rng
        child, other = (first, second) if rng.random() < 0.5 else (second, first)  # which one gives the depth
        for i in range(min(len(child.heads), len(other.heads))):
            if rng.random() < 0.5:
                child.ratios[i] = other.ratios[i]
            if rng.random() < 0.5:
                child.heads[i] = other.heads[i]
        if rng.random() < 0.5:
            child.embed_dim = other.embed_dim
        return child.genotype


def _pick(rng: np.random.Generator, choices: Sequence[T]) -> T:
    return choices[int(rng.integers(len(choices)))]
