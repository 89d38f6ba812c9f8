"""The search: a label-free score for each proposal, and the same number of random ones to compare with."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from statistics import median

from models.architecture import Genotype
from search import ranking
from search.asktell import Candidate, Proposal, SearchAlgorithm, StateError, StopReason
from search.constraints import feasible_set
from search.factory import AlgorithmName
from search.measures import JUDGED_NETWORKS
from search.pareto import FrontMove, Goal, GrowingFront
from service.errors import LossDiverged, NoFeasibleCandidate, SearchUnavailable
from service.jobs.resolve import planned_evaluations
from workers.protocol import SEARCH_INPUT, CandidateRow, candidate_messages
from workers.stages.algorithm import first_seeds, search_algorithm
from workers.stages.context import BudgetReached, Json
from workers.stages.fitness import Fitness
from workers.stages.generations import GenerationRecord
from workers.stages.measuring import Measuring
from workers.stages.noise import RUNNERS_UP, noise_checks
from workers.stages.scoring import LOOKS, Measures
from workers.stages.search_context import SearchContext
from workers.stages.search_ledger import Kept, SearchLedger
from workers.stages.worker_latency import deliverable

_NEAREST_MISSES = 3
_ROWS_AT_ONCE = 10_000  # in memory


class SearchStage:
    """Scores generations until the search ends, then the random baseline."""

    name = "search"

    def run(self, ctx: SearchContext) -> Json:
        """Returns the best candidates, the front, the baseline and a sample for judging the score."""
        fitness = Fitness(ctx)
        run = _Run(ctx, fitness)
        with fitness.shared_out():
            run.search()
        outputs = {**run.outputs(), "images": fitness.images, "visible_patches": fitness.visible_patches}
        run.seal()
        return outputs


class _Run:
    """One search with its baseline, resumable after every group of candidates."""

    def __init__(self, ctx: SearchContext, fitness: Fitness) -> None:
        spec = ctx.spec.search
        self._ctx = ctx
        self._fitness = fitness
        self._front = GrowingFront([Goal(objective.goal) for objective in ctx.spec.objectives])
        self._on_front_until = 0  # candidates that the front has taken
        self._front_told = False  # whether the supervisor has been told of the front by this attempt
        earlier = ctx.input(SEARCH_INPUT) if "search" not in ctx.state else None
        seeds = first_seeds(ctx) if earlier is None and "search" not in ctx.state else []
        self._main = search_algorithm(ctx, AlgorithmName(spec.algorithm), "search", spec.max_evaluations, seeds)
        feasible = feasible_set(ctx.space, ctx.constraints, len(ctx.classes), ctx.table).count
        self._planned = planned_evaluations(spec, feasible)
        self._parts = 2 if spec.baseline == "random" else 1
        self._baseline: SearchAlgorithm | None = None
        self._ledger = SearchLedger(ctx)
        self._measuring = Measuring(ctx, fitness, self._ledger)
        self._is_behind = False  # whether the last generation is yet to be told of
        self._told = 0  # candidates of which the supervisor has been told by this attempt
        self._record = GenerationRecord(ctx)
        self._restore(ctx.state)
        if earlier is not None:
            self._take_over(earlier)

    def search(self) -> None:
        """Run to the end, or to what the budget allows.

        Raises:
            NoFeasibleCandidate: no member of the space is within the limits, or none of those that were looked at.
            LossDiverged: no candidate has a finite score.
            BudgetReached: the time was up before anything was scored.
            StopRequested: after a checkpoint.
        """
        try:
            self._generations(self._main, part=0)
            if self._main.finished is StopReason.NO_FEASIBLE:
                raise self._no_feasible()
            if self._parts == 2:
                self._baseline = self._baseline or self._make_baseline()
                self._generations(self._baseline, part=1)
        except BudgetReached:
            self._catch_up()
            if not self._main.best(1):
                raise
        if not any(self._measuring.is_feasible(c.proposal.genotype) for c in self._main.candidates):
            raise self._all_too_slow()
        if not self._main.best(1):
            raise LossDiverged("No candidate has a finite score: the supernet's weights are no use.")

    def outputs(self) -> Json:
        """The stage's outputs."""
        ctx, candidates = self._ctx, self._main.candidates
        self._move_front({})
        scores = [c.score for c in candidates if c.score is not None]
        best = deliverable(ctx, self._main.best, ctx.spec.retrain.top_k, self._measuring.finalists, self._keep_finalist)
        judged = [c for c in candidates if c.proposal.n < self._judge_below and c.score is not None]
        return {
            "evaluations": len(candidates),
            "stop_reason": "budget" if ctx.budget_reached else str(self._main.finished),
            "best": [self._entry(c) for c in best],
            "front": list(self._front.members),
            "raced_out": sum(self._measuring.is_dropped(c.proposal.genotype) for c in candidates),
            "scores": {"min": min(scores), "median": median(scores), "max": max(scores)},
            "sample": [self._entry(c) for c in judged],
            "generations": self._record.outputs(),
            "baseline": self._compare(self._baseline) if self._baseline else None,
            "honesty": self._checks([c.proposal.genotype for c in judged]),
        }

    def _generations(self, algorithm: SearchAlgorithm, part: int) -> None:
        while proposals := algorithm.ask():
            before = proposals[0].n
            self._start_race(part)
            self._measuring.measure(
                proposals,
                judge_below=self._judge_below if part == 0 else 0,
                poll=self._poll,
                save=self._save,
                report=lambda done, before=before: self._report(before + done, part),  # type: ignore[misc]
            )
            self._catch_up()
            if first := self._first_measures():
                self._fitness.refer_to(first)
            genotypes = [proposal.genotype for proposal in proposals]
            algorithm.tell(
                [self._measuring.score(genotype) for genotype in genotypes],
                [self._measuring.violation(genotype) for genotype in genotypes],
            )
            self._ledger.add(Kept.TOLD if part == 0 else Kept.RANDOM, algorithm.history(before))
            self._is_behind = part == 0
        self._catch_up()

    def _poll(self) -> None:
        self._catch_up()
        self._ctx.safe_point(self._save)

    def _catch_up(self) -> None:
        """Tell of the last generation, once the next one is being measured: whoever helps with it need not wait."""
        if self._is_behind:
            self._is_behind = False
            self._tell_supervisor()
            self._record.add(self._main, self._front.members)

    def _start_race(self, part: int) -> None:
        """Let candidates of the next generation be dropped once they are worse than all that matter so far.

        The baseline is not raced: its figures are of random networks, not of the better ones among them.
        """
        spec = self._ctx.spec
        mattering = max(spec.search.parents, spec.retrain.top_k)
        best = self._main.best(mattering)
        raced = spec.search.evaluation.racing is not None and part == 0 and len(best) == mattering
        self._fitness.race_against(
            self._ctx.space.decode(best[-1].proposal.genotype) if raced else None,
            tests=self._planned * max(1, self._fitness.views - 1),
            poll=lambda: self._ctx.safe_point(self._save),
        )

    @property
    def _judge_below(self) -> int:
        """The report judges measures by the first networks, as far as these were drawn at random."""
        return min(self._main.random_first, JUDGED_NETWORKS)

    def _first_measures(self) -> list[Measures]:
        """Of the first generation of which anything was measured, which is complete when anything is scored.

        Its seeds are left out, unless there is nothing else: they are no sample of the space.
        """
        first: list[Proposal] = []
        for proposal in chain((c.proposal for c in self._main.candidates), self._main.ask()):
            if first and proposal.generation > first[0].generation:
                break
            if self._measuring.of(proposal.genotype):
                first.append(proposal)
        random = [proposal for proposal in first if proposal.generation or proposal.n < self._main.random_first]
        return [self._measuring.of(proposal.genotype) for proposal in random or first]

    def _report(self, evaluated: int, part: int) -> None:
        best = self._main.best(1)
        detail = {"evaluated": evaluated, "planned": self._planned, "best_score": best[0].score if best else None}
        self._ctx.progress((part + evaluated / self._planned) / self._parts, **detail)

    def _tell_supervisor(self) -> None:
        candidates = self._main.candidates
        while len(candidates) - self._told > _ROWS_AT_ONCE:  # of a search that was taken over
            part = candidates[self._told : self._told + _ROWS_AT_ONCE]
            self._told += len(part)
            for message in candidate_messages([self._row(candidate) for candidate in part], (), (), anew=False):
                self._ctx.send(message)
        rows = [self._row(candidate) for candidate in candidates[self._told :]]
        self._told = len(candidates)
        move, anew = self._move_front({row.n: row.costs for row in rows}), not self._front_told
        joined, left = (self._front.members, ()) if anew else (move.joined, move.left)
        for message in candidate_messages(rows, joined, left, anew=anew):
            self._ctx.send(message)
        self._front_told = True

    def _row(self, candidate: Candidate) -> CandidateRow:
        proposal = candidate.proposal
        arch = self._ctx.space.decode(proposal.genotype, len(self._ctx.classes))
        return CandidateRow(
            n=proposal.n,
            generation=proposal.generation,
            genotype=[float(gene) for gene in proposal.genotype],
            parents=list(proposal.parents),
            score=candidate.score,
            scores=self._scores(candidate),
            costs=self._measuring.costs_of(proposal.genotype, arch),
            # The search proposes nothing beyond the limits that it can compute.
            feasible=self._measuring.is_feasible(proposal.genotype),
            architecture=arch.to_json(),
        )

    def _entry(self, candidate: Candidate) -> Json:
        proposal = candidate.proposal
        return {
            "n": proposal.n,
            "genotype": list(proposal.genotype),
            "score": candidate.score,
            "scores": self._scores(candidate),
            "costs": self._measuring.costs(proposal.genotype),
        }

    def _scores(self, candidate: Candidate) -> Measures:
        """All that was measured, and what the search followed if that is none of the measures."""
        assert self._ctx.spec.search.metric is not None, "filled by service.jobs.resolve"
        measures = self._measuring.of(candidate.proposal.genotype)
        if LOOKS in measures:
            return measures  # what it lost the race with
        return {**measures, self._ctx.spec.search.metric: candidate.score}

    def _move_front(self, costs: Mapping[int, Mapping[str, float]]) -> FrontMove:
        """Let the front of the job's objectives take the candidates that it has not seen.

        Args:
            costs: those that are known already, by ``n`` of the candidate.
        """
        first, candidates = self._on_front_until, self._main.candidates
        points = [self._objectives(c, costs.get(c.proposal.n)) for c in candidates[first:]]
        self._on_front_until = len(candidates)
        feasible = [self._measuring.is_feasible(candidate.proposal.genotype) for candidate in candidates[first:]]
        return self._front.add(first, points, feasible)

    def _objectives(self, candidate: Candidate, costs: Mapping[str, float] | None) -> list[float]:
        costs = costs or self._measuring.costs(candidate.proposal.genotype)
        figures = {"score": math.nan if candidate.score is None else candidate.score, **costs}
        return [figures[objective.metric.value] for objective in self._ctx.spec.objectives]

    def _compare(self, baseline: SearchAlgorithm) -> Json:
        """Random search beside the search, at equally many candidates."""
        found, random = self._main.best(1)[0], baseline.best(1)
        scored = [c for c in baseline.candidates if c.score is not None]
        params = [self._entry(c)["costs"]["params_m"] for c in scored]
        lead = _score(found) - _score(random[0]) if random else None
        return {
            "algorithm": AlgorithmName.RANDOM.value,
            "evaluations": len(baseline.candidates),
            "best": self._entry(random[0]) if random else None,
            "lead": lead,
            "hypervolume": self._record.hypervolume(baseline.candidates),
            "sentence": _sentence(self._ctx.spec.search.algorithm, len(baseline.candidates), lead),
            # Over random networks; those that were bred crowd where the score is high.
            "kendall_score_params": ranking.kendall([_score(c) for c in scored], params),
        }

    def _checks(self, sample: Sequence[Genotype]) -> list[Json]:
        """What noise makes of the search's claims; the rest of the checks is the report's."""
        decode = self._ctx.space.decode
        best = [decode(c.proposal.genotype) for c in self._main.best(1 + RUNNERS_UP)]
        rival = self._baseline.best(1) if self._baseline else ()
        return noise_checks(
            self._ctx,
            self._fitness,
            best=best,
            sample=[decode(genotype) for genotype in sample],
            rival=decode(rival[0].proposal.genotype) if rival else None,
            evaluations=len(self._baseline.candidates) if self._baseline else 0,
            lead=_score(self._main.best(1)[0]) - _score(rival[0]) if rival else None,
        )

    def _make_baseline(self) -> SearchAlgorithm:
        return search_algorithm(self._ctx, AlgorithmName.RANDOM, "baseline", len(self._main.candidates))

    def _keep_finalist(self, genotype: Genotype, milliseconds: float) -> None:
        self._measuring.keep_finalist(genotype, milliseconds)
        self._save(binding=True)

    def _save(self, *, binding: bool = False) -> None:
        self._catch_up()  # what a checkpoint knows was told before
        # Measures are kept beside the search: it knows one score, and learns it when a generation is complete.
        self._ctx.checkpoint(
            {
                "search": {"state": self._main.state()},
                "baseline": {"state": self._baseline.state()} if self._baseline else None,
                "generations": self._record.state(),
                "ledger": self._ledger.save(),
            },
            binding=binding,
        )

    def seal(self) -> None:
        """Leave the search as a file of the result."""
        self._ledger.seal({"search": {"state": self._main.state()}, "generations": self._record.state()})

    def _restore(self, state: Json) -> None:
        if "search" not in state:
            return
        rows = self._ledger.restore(state)
        self._main.restore(state["search"]["state"], rows[Kept.TOLD])
        self._measuring.restore(rows)
        self._record.restore(state["generations"], self._main)
        self._told = len(self._main.candidates)  # the supervisor writes what it was told before a checkpoint
        if state["baseline"] is not None:
            self._baseline = self._make_baseline()
            self._baseline.restore(state["baseline"]["state"], rows[Kept.RANDOM])

    def _take_over(self, path: Path) -> None:
        """Begin where an earlier search ended, of which this one is the same but for its length.

        Raises:
            SearchUnavailable: it is of a version that kept its state in another form.
        """
        end, rows = self._ledger.take_over(path)
        try:
            self._main.restore(end["search"]["state"], rows[Kept.TOLD])
        except StateError as error:
            detail = (
                f"The search that this job goes on with cannot be read ({error}); start the job's spec as a search."
            )
            raise SearchUnavailable(detail) from error
        self._measuring.restore(rows)
        self._record.restore(end["generations"], self._main)
        self._tell_supervisor()  # first: whoever goes on from a checkpoint tells only what comes behind it
        self._save()

    def _no_feasible(self) -> NoFeasibleCandidate:
        nearest = [m.genotype for m in self._main.nearest_misses(_NEAREST_MISSES)]
        limits = ", ".join(map(str, self._ctx.constraints))
        return NoFeasibleCandidate(
            f"No network of space {self._ctx.space.name!r} is within the limits ({limits}); widen them.",
            extra={"nearest_misses": self._misses(nearest)},
        )

    def _all_too_slow(self) -> NoFeasibleCandidate:
        nearest = self._measuring.nearest_to_limit(_NEAREST_MISSES)
        return NoFeasibleCandidate(
            f"None of {len(self._main.candidates)} networks is within the limit on the latency that was measured on "
            "the worker; widen it, or search longer.",
            extra={"nearest_misses": self._misses(nearest)},
        )

    def _misses(self, genotypes: Sequence[Genotype]) -> list[Json]:
        return [{"genotype": list(genotype), "costs": self._measuring.costs(genotype)} for genotype in genotypes]


def _score(candidate: Candidate) -> float:
    assert candidate.score is not None, "only scored candidates are compared"
    return candidate.score


def _sentence(algorithm: str, evaluations: int, lead: float | None) -> str:
    if lead is None:
        return "The random baseline scored nothing within the budget."
    rival = f"the best of {evaluations} random networks"
    if lead > 0:
        return f"The {algorithm} search found a score that is {lead:.3g} better than {rival}."
    return f"The {algorithm} search found nothing better than {rival} ({lead:.3g})."
