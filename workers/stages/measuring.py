"""Measures a generation of proposals, a group at a time, and remembers what was measured."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

from models.architecture import Architecture, Genotype
from search.asktell import Proposal
from search.prefixes import depth_first, path_of
from workers.stages.fitness import Fitness
from workers.stages.scoring import LOOKS, Measures
from workers.stages.search_context import SearchContext
from workers.stages.search_ledger import Kept, Rows, SearchLedger


class Save(Protocol):
    """Writes a checkpoint of the search."""

    def __call__(self, *, binding: bool = False) -> None:
        """``binding``: see ``workers.protocol.CheckpointMessage``."""
        ...


class Measuring:
    """Everything that was measured of proposals, by genotype.

    A generation is measured in groups of neighbours that share work. A group takes about as long as checkpoints are
    apart, so that a kill costs no more than it would between two checkpoints; how a generation was divided shows in no
    number, as measures do not depend on what they are taken together with.

    Args:
        ctx: of the search.
        fitness: measures candidates.
        ledger: gets every measurement as soon as it is known.

    Attributes:
        finalists: milliseconds of those of the best that were measured, because a table has only predicted them.
    """

    def __init__(self, ctx: SearchContext, fitness: Fitness, ledger: SearchLedger) -> None:
        self._ctx = ctx
        self._fitness = fitness
        self._ledger = ledger
        self._known: dict[Genotype, Measures] = {}
        self._dropped: dict[Genotype, Measures] = {}  # of those that lost a race: on a part of the images
        self._latencies: dict[Genotype, float] = {}  # milliseconds
        self.finalists: dict[Genotype, float] = {}
        self._seconds_each: float | None = None  # of a candidate, as the last group took them

    def measure(
        self,
        proposals: Sequence[Proposal],
        *,
        judge_below: int,
        poll: Callable[[], None],
        save: Save,
        report: Callable[[int], None],
    ) -> None:
        """Measure a generation, or what is left of it after an interruption.

        Args:
            proposals: of the generation.
            judge_below: the report judges measures by proposals with a smaller ``n``.
            poll: called time and again while candidates are scored; may raise to stop.
            save: writes a checkpoint, with the ledger.
            report: told how many of the proposals are done, time and again.

        Raises:
            StopRequested, BudgetReached: see ``Context.safe_point``.
        """
        self._measure_latencies(proposals, save)
        # What another part of the search has dropped early is of no use to one that drops nothing.
        done = self._known.keys() | (self._dropped.keys() if self._fitness.races else ())
        todo = [p for p in proposals if p.genotype not in done and self.is_feasible(p.genotype)]
        archs = [self._decode(p) for p in todo]
        order = depth_first([path_of(arch) for arch in archs])
        while order:
            group, order = order[: self._group_size()], order[self._group_size() :]
            began = time.monotonic()
            found = self._fitness.measure(
                [archs[i] for i in group],
                judged=[todo[i].n < judge_below for i in group],
                poll=poll,
            )
            self._seconds_each = (time.monotonic() - began) / len(group)
            for i, measures in zip(group, found, strict=True):
                self._keep(todo[i].genotype, measures)
            report(len(proposals) - len(order))
        report(len(proposals))

    def is_feasible(self, genotype: Genotype) -> bool:
        """Whether a proposal's measured latency is within the limit; all are when none is measured."""
        return self.violation(genotype) == 0

    def violation(self, genotype: Genotype) -> float:
        """How far a proposal's measured latency is beyond the limit, relative to it; 0 within."""
        limit = self._ctx.latency
        return 0.0 if limit is None else limit.violation(self._latencies[genotype])

    def of(self, genotype: Genotype) -> Measures:
        """What was measured of a proposal; nothing of one that is too slow."""
        return self._known.get(genotype) or self._dropped.get(genotype, {})

    def is_dropped(self, genotype: Genotype) -> bool:
        """Whether a proposal has lost a race, so that its measures were taken on a part of the images."""
        return genotype in self._dropped

    def score(self, genotype: Genotype) -> float | None:
        """What the search maximises; None when it is no finite number, or the proposal is beyond the limit."""
        if not self.is_feasible(genotype):
            return None
        return self._fitness.score(self._ctx.space.decode(genotype), self.of(genotype))

    def costs(self, genotype: Genotype) -> dict[str, float]:
        """Costs of a network as it is deployed, the measured latency among them if there is one."""
        return self.costs_of(genotype, self._ctx.space.decode(genotype, len(self._ctx.classes)))

    def costs_of(self, genotype: Genotype, arch: Architecture) -> dict[str, float]:
        """:meth:`costs` where the genotype is decoded already."""
        found = self._latencies.get(genotype)
        return {**self._ctx.costs(arch), **({} if found is None else {"latency_ms": found})}

    def nearest_to_limit(self, count: int) -> list[Genotype]:
        """The measured networks that are the least beyond the limit on latency."""
        limit = self._ctx.latency
        if limit is None:
            return []
        return sorted(self._latencies, key=lambda genotype: limit.violation(self._latencies[genotype]))[:count]

    def restore(self, rows: Rows) -> None:
        """Go on from what the ledger has kept, exactly."""
        self._known = {self._genotype(genes): measures for genes, measures in rows[Kept.MEASURES]}
        self._dropped = {self._genotype(genes): measures for genes, measures in rows[Kept.DROPPED]}
        self._latencies = {self._genotype(genes): latency for genes, latency in rows[Kept.LATENCY]}
        self.finalists = {self._genotype(genes): latency for genes, latency in rows[Kept.FINALIST]}

    def keep_finalist(self, genotype: Genotype, milliseconds: float) -> None:
        """Remember what one of the best takes."""
        self.finalists[genotype] = milliseconds
        self._ledger.add(Kept.FINALIST, [[genotype, milliseconds]])

    def _keep(self, genotype: Genotype, measures: Measures) -> None:
        kind, of_its_kind = (Kept.DROPPED, self._dropped) if LOOKS in measures else (Kept.MEASURES, self._known)
        of_its_kind[genotype] = measures
        self._ledger.add(kind, [[genotype, measures]])

    def _measure_latencies(self, proposals: Sequence[Proposal], save: Save) -> None:
        limit = self._ctx.latency
        todo = [p for p in proposals if p.genotype not in self._latencies] if limit is not None else []
        for proposal in todo:
            assert limit is not None, "there is something to do only with a limit"
            arch = self._ctx.space.decode(proposal.genotype, len(self._ctx.classes))
            taken_ms = self._latencies[proposal.genotype] = limit.meter.measure(arch)
            self._ledger.add(Kept.LATENCY, [[proposal.genotype, taken_ms]])
            self._ctx.safe_point(save)
        if todo:
            # No clock repeats: what the search is told must be in a checkpoint first, or a resumed one would differ.
            save(binding=True)

    def _group_size(self) -> int:
        if self._seconds_each is None:
            return 1  # whose time tells how many fit
        return max(1, int(self._ctx.start.checkpoint_s / max(self._seconds_each, 1e-9)))

    def _decode(self, proposal: Proposal) -> Architecture:
        return self._ctx.space.decode(proposal.genotype)

    def _genotype(self, genes: Sequence[int | float]) -> Genotype:
        # Decoding restores the spelling of numbers: some JSON writers turn a ratio of 4.0 into 4.
        return self._ctx.space.decode(genes).genotype
