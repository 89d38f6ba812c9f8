"""What a search evaluates: its list, its baseline, and how many networks that makes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from models.architecture import Architecture, FieldProblem, Genotype
from search.constraints import Constraint, feasible_set
from search.errors import SettingsError, SpaceError
from search.evolution import Mutation
from search.latency import LatencyTable
from search.listed import ListedSearch
from search.published import PUBLISHED
from search.sampling import FeasibleSet
from search.space import Space
from service.errors import ErrorItem, ValidationFailed
from service.jobs.resolve.spaces import field_errors
from service.jobs.spec import ListedArchitecture, PopulationSpec, SearchPart

_POINTER = "/search/architectures"
_SEEDS = "/search/population_from"
_MOST_SEEDS = 1000  # what a spec may list


def resolve_algorithm(
    asked: SearchPart,
    space: Space,
    constraints: tuple[Constraint, ...],
    num_classes: int,
    table: LatencyTable | None,
    population: Sequence[Genotype],
    warnings: list[ErrorItem],
) -> SearchPart:
    """Fill the baseline, the probabilities of mutation, the first population and the genes of named networks.

    Args:
        asked: the search part of a spec.
        space: that is searched.
        constraints: limits on its members.
        num_classes: outputs of the head that members are priced with.
        table: that prices latency, when it is limited.
        population: candidates of the job that ``population_from`` names, the best first.
        warnings: gets what was left out.

    Raises:
        ValidationFailed: a listed network that is unknown, no member of the space, beyond a limit, or given twice.
    """
    baseline = asked.baseline or ("none" if asked.algorithm == "listed" else "random")
    filled = asked.model_copy(update={"baseline": baseline, **_mutation(asked)})
    if asked.population_from is not None:
        feasible = feasible_set(space, constraints, num_classes, table)
        seeds = _fill_population(asked.population_from, asked.population, feasible, population, warnings)
        filled = filled.model_copy(update={"population_from": seeds})
    if asked.architectures is None:
        return filled
    listed = [_with_genes(entry, f"{_POINTER}/{i}", space) for i, entry in enumerate(asked.architectures)]
    filled = filled.model_copy(update={"architectures": listed})
    _check_members(filled, space)
    try:
        ListedSearch(
            feasible_set(space, constraints, num_classes, table),
            listed_genotypes(filled),
            population=1,
            rng=np.random.default_rng(0),
        )
    except SettingsError as error:
        raise ValidationFailed.of(field_errors(_POINTER, error.problems)) from error
    return filled


def listed_genotypes(part: SearchPart) -> list[Genotype]:
    """Genotypes of the listed networks of a filled spec, in order; none of a search that proposes its own."""
    return [_genotype(entry) for entry in part.architectures or ()]


def seeded_genotypes(part: SearchPart) -> list[Genotype]:
    """Genotypes that the first generation of a filled spec ends with, the best first."""
    asked = part.population_from
    return [] if asked is None else [_genotype(entry) for entry in asked.architectures or ()]


def planned_evaluations(part: SearchPart, feasible: int) -> int:
    """Networks that a search scores, its baseline left out.

    Args:
        part: of a filled spec.
        feasible: members of the space within the limits.
    """
    if part.architectures is not None:
        return len(part.architectures)
    return min(part.population * (part.generations + 1), part.max_evaluations, feasible)


def _mutation(asked: SearchPart) -> dict[str, float]:
    published = Mutation(asked.mutation)
    block, network = asked.block_mutation_prob, asked.network_mutation_prob
    return {
        "block_mutation_prob": published.block_prob if block is None else block,
        "network_mutation_prob": published.network_prob if network is None else network,
    }


def _with_genes(entry: ListedArchitecture, pointer: str, space: Space) -> ListedArchitecture:
    if entry.embed_dim is not None:
        return entry
    published = PUBLISHED.get(entry.name or "")
    if published is None:
        problem = FieldProblem("/name", entry.name, f"one of {', '.join(PUBLISHED)}, or the genes of a network")
        raise ValidationFailed.of(field_errors(pointer, [problem]))
    known = published.architecture
    if known.head_dim != space.head_dim:  # the same genes are then another network, which must not bear the name
        allowed = f"networks with heads of {space.head_dim} channels, which the published one has of {known.head_dim}"
        problem = FieldProblem("/name", entry.name, allowed)
        raise ValidationFailed.of(field_errors(pointer, [problem]))
    return _listed(known, entry.name)


def _listed(arch: Architecture, name: str | None = None) -> ListedArchitecture:
    return ListedArchitecture(
        name=name,
        embed_dim=arch.embed_dim,
        depth=arch.depth,
        num_heads=list(arch.num_heads),
        mlp_ratio=list(arch.mlp_ratio),
    )


def _fill_population(
    asked: PopulationSpec,
    population: int,
    feasible: FeasibleSet,
    found: Sequence[Genotype],
    warnings: list[ErrorItem],
) -> PopulationSpec:
    """Name the members within the limits, each once, and no more than there are places."""
    space = feasible.space
    if asked.architectures is not None:
        entries = [
            _with_genes(entry, f"{_SEEDS}/architectures/{i}", space) for i, entry in enumerate(asked.architectures)
        ]
        found = [_genotype(entry) for entry in entries]
    places = min(_MOST_SEEDS, int(population * asked.share))
    seeds: dict[Genotype, ListedArchitecture] = {}
    left_out = 0
    for genotype in found:
        try:
            arch = space.decode(genotype)
        except SpaceError:
            left_out += 1
            continue
        if not feasible.meets_limits(arch.genotype):
            left_out += 1
        elif len(seeds) < places:
            seeds.setdefault(arch.genotype, _listed(arch))
    if left_out or not seeds:
        detail = (
            f"{left_out} of {len(found)} networks are no members of the space or beyond its limits; "
            f"{len(seeds)} are in the first generation"
        )
        warnings.append(ErrorItem(_SEEDS, "population_reduced", detail, None))
    return asked.model_copy(update={"architectures": list(seeds.values())})


def _genotype(entry: ListedArchitecture) -> Genotype:
    assert entry.depth is not None, "resolve_algorithm fills the genes"
    assert entry.embed_dim is not None, "resolve_algorithm fills the genes"
    return (entry.depth, *(entry.mlp_ratio or ()), *(entry.num_heads or ()), entry.embed_dim)


def _check_members(filled: SearchPart, space: Space) -> None:
    problems: list[FieldProblem] = []
    for i, genotype in enumerate(listed_genotypes(filled)):
        if genotype[0] not in space.depth:
            depths = ", ".join(map(str, space.depth))
            problems.append(FieldProblem(f"/{i}/depth", genotype[0], f"one of {depths} in space {space.name!r}"))
            continue
        try:
            space.decode(genotype)
        except SpaceError as error:
            problems += [FieldProblem(f"/{i}{p.pointer}", p.found, p.allowed) for p in error.problems]
    if problems:
        raise ValidationFailed.of(field_errors(_POINTER, problems))
