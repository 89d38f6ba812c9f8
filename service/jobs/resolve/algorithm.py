"""What a search evaluates: its list, its baseline, and how many networks that makes."""

from __future__ import annotations

import numpy as np

from models.architecture import FieldProblem, Genotype
from search.constraints import Constraint, feasible_set
from search.errors import SettingsError, SpaceError
from search.evolution import Mutation
from search.latency import LatencyTable
from search.listed import ListedSearch
from search.published import PUBLISHED
from search.space import Space
from service.errors import ValidationFailed
from service.jobs.resolve.spaces import field_errors
from service.jobs.spec import ListedArchitecture, SearchPart

_POINTER = "/search/architectures"


def resolve_algorithm(
    asked: SearchPart,
    space: Space,
    constraints: tuple[Constraint, ...],
    num_classes: int,
    table: LatencyTable | None = None,
) -> SearchPart:
    """Fill the baseline, the probabilities of mutation and the genes of networks that were given by name.

    Raises:
        ValidationFailed: a listed network that is unknown, no member of the space, beyond a limit, or given twice.
    """
    baseline = asked.baseline or ("none" if asked.algorithm == "listed" else "random")
    filled = asked.model_copy(update={"baseline": baseline, **_mutation(asked)})
    if asked.architectures is None:
        return filled
    listed = [_with_genes(entry, i, space) for i, entry in enumerate(asked.architectures)]
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


def _with_genes(entry: ListedArchitecture, i: int, space: Space) -> ListedArchitecture:
    if entry.embed_dim is not None:
        return entry
    published = PUBLISHED.get(entry.name or "")
    if published is None:
        problem = FieldProblem(f"/{i}/name", entry.name, f"one of {', '.join(PUBLISHED)}, or the genes of a network")
        raise ValidationFailed.of(field_errors(_POINTER, [problem]))
    known = published.architecture
    if known.head_dim != space.head_dim:  # the same genes are then another network, which must not bear the name
        allowed = f"networks with heads of {space.head_dim} channels, which the published one has of {known.head_dim}"
        problem = FieldProblem(f"/{i}/name", entry.name, allowed)
        raise ValidationFailed.of(field_errors(_POINTER, [problem]))
    return ListedArchitecture(
        name=entry.name,
        embed_dim=known.embed_dim,
        depth=known.depth,
        num_heads=list(known.num_heads),
        mlp_ratio=list(known.mlp_ratio),
    )


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
