"""Ask and tell: a search proposes genotypes, the caller scores them in whatever way and order, and reports back.

The algorithms know nothing of networks, images or devices.  All their randomness comes from one passed generator, so
a search is a function of (space, limits, settings, seed, scores). What it continues from, exactly and also between
:meth:`~SearchAlgorithm.ask` and :meth:`~SearchAlgorithm.tell`, comes in two parts: a small JSON object that is written
anew each time (:meth:`~SearchAlgorithm.state`), and the told candidates, to which a generation only ever adds
(:meth:`~SearchAlgorithm.history`). So what is saved after each generation does not grow with the search.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from models.architecture import Genotype
from search.sampling import NearMiss


class StopReason(StrEnum):
    """Why a search proposes nothing more."""

    GENERATIONS = "generations"  # all generations were scored
    MAX_EVALUATIONS = "max_evaluations"  # the allowed number of candidates was scored
    SPACE_EXHAUSTED = "space_exhausted"  # every member within the limits was scored
    LIST_DONE = "list_done"  # every listed architecture was scored
    NO_FEASIBLE = "no_feasible"  # no member is within the limits


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
    """A proposal with what was told of it.

    Attributes:
        proposal: what was asked.
        score: larger is better; ``None`` when it could not be scored, or breaks a limit that only a measurement shows.
        violation: how far it is beyond such a limit (:func:`search.constraints.violation`); 0 within all limits.
    """

    proposal: Proposal
    score: float | None
    violation: float = 0.0


HistoryRow = list[Any]
"""A told candidate as a JSON array ``[generation, score, violation, parents, genotype]``; its ``n`` is its place."""


class StateError(ValueError):
    """A saved state does not belong to this search."""


class SearchAlgorithm(Protocol):
    """What every search algorithm offers."""

    @property
    def finished(self) -> StopReason | None:
        """Why the search is over; ``None`` while there is something to ask or to tell."""

    @property
    def candidates(self) -> Sequence[Candidate]:
        """All told proposals in the order of ``n``: a view that grows with the search."""

    @property
    def random_first(self) -> int:
        """How many candidates of generation 0 were drawn at random; they come first, before those that were seeded."""

    @property
    def figures(self) -> Mapping[str, float]:
        """What the algorithm has to say of the generation that was told last, by name."""

    def ask(self) -> tuple[Proposal, ...]:
        """The generation to be scored next; the same one until it is told, and empty when finished."""

    def tell(self, scores: Sequence[float | None], violations: Sequence[float] = ()) -> None:
        """Report the scores of the asked generation, in its order.

        ``None``, NaN and infinities mean that a proposal could not be scored; it is never bred from.

        Args:
            scores: one of each proposal.
            violations: how far each one is beyond limits that only a measurement shows; left out: all are within. One
                above 0 takes the score away. Such candidates are bred from, the nearest first, as long as there are
                too few others, so that a search finds its way into the limits.

        Raises:
            ValueError: when nothing was asked or the number of scores or violations is another.
        """

    def best(self, k: int) -> tuple[Candidate, ...]:
        """The ``k`` best scored candidates; of equal scores the earlier one comes first."""

    def nearest_misses(self, k: int) -> tuple[NearMiss, ...]:
        """The ``k`` members closest to the limits: what there is when the search ends with ``NO_FEASIBLE``."""

    def state(self) -> dict[str, Any]:
        """What is needed to continue beside the history, as a JSON object; settings are not part of it.

        Its size is that of a generation, however long the search has run.
        """

    def history(self, start: int = 0) -> list[HistoryRow]:
        """The told candidates from ``n = start`` on; rows never change, so that saved ones need no second look."""

    def restore(self, state: Mapping[str, Any], history: Sequence[HistoryRow]) -> None:
        """Continue from a state, exactly; settings such as the number of generations may differ from then.

        Args:
            state: what :meth:`state` gave.
            history: all rows that :meth:`history` gave then.

        Raises:
            StateError: when the state is of another algorithm, space or set of limits, or the history of another time.
        """
