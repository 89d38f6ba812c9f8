"""The algorithm of a search as its spec describes it, and what its first generation ends with."""

from __future__ import annotations

from collections.abc import Sequence

from models.architecture import Genotype
from search.asktell import SearchAlgorithm
from search.evolution import EvolutionSettings
from search.factory import AlgorithmName, make_search
from service.jobs.resolve import listed_genotypes, seeded_genotypes
from workers.stages.generations import objectives_of
from workers.stages.search_context import SearchContext
from workers.stages.zero_cost import zero_cost_seeds
from workers.training.streams import numpy_stream


def search_algorithm(
    ctx: SearchContext, name: AlgorithmName, stream: str, max_evaluations: int, seeds: Sequence[Genotype] = ()
) -> SearchAlgorithm:
    """A search of the job's space within its limits.

    Args:
        ctx: of the search.
        name: of the algorithm.
        stream: name of the stream that all its randomness comes from.
        max_evaluations: at most this many candidates are proposed.
        seeds: what the first generation ends with.
    """
    spec = ctx.spec.search
    assert spec.block_mutation_prob is not None, "filled by service.jobs.resolve"
    assert spec.network_mutation_prob is not None, "filled by service.jobs.resolve"
    settings = EvolutionSettings(
        population=spec.population,
        generations=spec.generations,
        parents=spec.parents,
        mutation_share=spec.mutation_share,
        crossover_share=spec.crossover_share,
        block_mutation_prob=spec.block_mutation_prob,
        network_mutation_prob=spec.network_mutation_prob,
    )
    return make_search(
        name,
        seeds=seeds,
        space=ctx.space,
        constraints=ctx.constraints,
        num_classes=len(ctx.classes),
        settings=settings,
        rng=numpy_stream(ctx.seed, "search", stream),
        max_evaluations=max_evaluations,
        listed=listed_genotypes(spec),
        table=ctx.table,
        objectives=objectives_of(ctx),
        prescreen=spec.prescreen,
    )


def first_seeds(ctx: SearchContext) -> list[Genotype]:
    """What the first generation is to end with: an earlier search's best, then those of a zero-cost measure."""
    spec = ctx.spec.search
    seeds = seeded_genotypes(spec)
    zero_cost = spec.warm_start_zero_cost
    if zero_cost is None:
        return seeds
    places = int(spec.population * zero_cost.share) - len(seeds)
    chosen = zero_cost_seeds(ctx, zero_cost, max(0, places) + len(seeds))
    return [*seeds, *(genotype for genotype in chosen if genotype not in seeds)][: len(seeds) + max(0, places)]
