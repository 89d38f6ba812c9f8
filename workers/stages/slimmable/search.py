"""The search over widths: each is measured on validation images, and the best within the limits are chosen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

import torch

from models.architecture import Architecture
from search.asktell import StopReason
from search.constraints import violation
from search.metrics import counts_of
from search.pareto import Goal, pareto_front
from search.widths import measured_widths
from service.errors import NoFeasibleCandidate
from workers.data.dataset import LabelledSet
from workers.protocol import CandidateRow, candidate_messages
from workers.stages.context import BudgetReached, Json
from workers.stages.finalists import Finalist, in_time
from workers.stages.search import SearchStage
from workers.stages.slimmable.context import SlimmableContext
from workers.stages.slimmable.readout import features, linear_probe
from workers.stages.slimmable.separate import SeparateStage
from workers.stages.slimmable.supernet import announce_supernet, width_weights
from workers.stages.slimmable.weights import WidthWeights
from workers.stages.slimmable.widths import Width, judged_widths
from workers.stages.supervised import EVAL_BATCH
from workers.training.supervised import count_correct

_NEAREST_MISSES = 3


class WidthStage:
    """Measures every width that may be delivered: its accuracy is its score.

    Without labels in training there is no head, and the accuracy is that of a linear probe on the features.
    """

    name = SearchStage.name

    def run(self, ctx: SlimmableContext) -> Json:
        """Returns the widths, the best of those that are offered within the limits, and the front.

        Raises:
            NoFeasibleCandidate: the limits leave no width that is good enough to be offered.
        """
        widths = judged_widths(ctx.net, self._accuracies(ctx), ctx.spec.widths.max_dip)
        latencies = self._latencies(ctx, widths)
        if ctx.is_shared:
            announce_supernet(ctx, widths)
        rows = [_row(ctx, n, width, latencies.get(width.head_dim)) for n, width in enumerate(widths)]
        front = _front(ctx, widths, rows)
        for message in candidate_messages(rows, front, [], anew=True):
            ctx.send(message)
        chosen = [(row, width) for row, width in zip(rows, widths, strict=True) if row.feasible and width.offered]
        if not chosen:
            # The network is trained and its widths are known: what other limits would leave can still be taken out.
            ctx.checkpoint(_state({width.head_dim: width.accuracy for width in widths}, latencies))
            raise _no_feasible(ctx, rows)
        chosen.sort(key=lambda pair: (-_accuracy(pair[1]), pair[1].head_dim))
        scores = [_accuracy(width) for width in widths]
        return {
            "evaluations": len(widths),
            "stop_reason": "budget" if ctx.budget_reached else StopReason.SPACE_EXHAUSTED.value,
            "best": [
                {"n": row.n, "head_dim": width.head_dim, "score": row.score}
                for row, width in chosen[: ctx.spec.export.top_k]
            ],
            "front": front,
            "scores": {"min": min(scores), "median": median(scores), "max": max(scores)},
            "widths": [width.to_json() for width in widths],
        }

    def _accuracies(self, ctx: SlimmableContext) -> dict[int, float | None]:
        """Of all widths, or of those that there was time for: the trained ones come first."""
        wanted = _wanted(ctx)
        known: dict[int, float | None] = {int(dim): value for dim, value in ctx.state.get("accuracies", {}).items()}
        measure = _Accuracies(ctx, width_weights(ctx))

        def save() -> None:
            ctx.checkpoint(_state(known, _known_latencies(ctx)))

        try:
            for head_dim in wanted:
                if head_dim not in known:
                    known[head_dim] = measure.of(head_dim)
                    ctx.progress(len(known) / len(wanted), evaluated=len(known), planned=len(wanted))
                    ctx.safe_point(save)
        except BudgetReached:
            if not known:
                raise
            ctx.warn("budget_reached", f"{len(known)} of {len(wanted)} widths were measured when time was up")
        return known

    def _latencies(self, ctx: SlimmableContext, widths: Sequence[Width]) -> dict[int, float]:
        """Milliseconds of the widths within the other limits, by width of a head; none unless latency is limited."""
        known = _known_latencies(ctx)
        if ctx.latency is None:
            return known
        accuracies = {width.head_dim: width.accuracy for width in widths}
        archs = {head_dim: ctx.net.architecture(head_dim) for head_dim in accuracies if head_dim not in known}
        for head_dim, arch in archs.items():
            if violation(ctx.constraints, counts_of(arch)) > 0:
                continue
            known[head_dim] = ctx.latency.meter.measure(arch)
            # No clock repeats: what is chosen by it must be in a checkpoint first, or a resumed job would differ.
            ctx.checkpoint(_state(accuracies, known), binding=True)
            ctx.poll_to_finish()
        return known


def _state(accuracies: Mapping[int, float | None], latencies: Mapping[int, float]) -> Json:
    return {"accuracies": dict(accuracies), "latencies": dict(latencies)}


def _known_latencies(ctx: SlimmableContext) -> dict[int, float]:
    return {int(dim): value for dim, value in ctx.state.get("latencies", {}).items()}


def _wanted(ctx: SlimmableContext) -> list[int]:
    if not ctx.is_shared:
        return [network["head_dim"] for network in ctx.outputs[SeparateStage.name]["networks"]]
    widths = measured_widths(ctx.net)
    left_out = len(ctx.net.served) - len(widths)
    if left_out:
        ctx.warn("widths_left_out", f"{left_out} of {len(ctx.net.served)} widths are not measured, and not offered")
    return sorted(widths, key=lambda head_dim: (not ctx.net.is_trained(head_dim), -head_dim))


class _Accuracies:
    """Measures widths on the validation images."""

    def __init__(self, ctx: SlimmableContext, weights: WidthWeights) -> None:
        labels = ctx.dataset.labels
        assert labels is not None, "refused by service.jobs.resolve"
        self._ctx = ctx
        self._weights = weights
        self._val = labels.of(ctx.dataset.val)
        self._train = labels.of(ctx.dataset.train)

    def of(self, head_dim: int) -> float:
        """Share of the validation images that the width classifies rightly."""
        ctx = self._ctx
        network = self._weights.network(head_dim)
        if ctx.classes:
            network = network.to(ctx.compute.device)
            return count_correct(network, self._val, ctx.compute, EVAL_BATCH, ctx.poll) / len(self._val)
        read = [features(network, part, ctx.compute, EVAL_BATCH, ctx.poll) for part in (self._train, self._val)]
        return probe_accuracy(read[0], self._train, read[1], self._val)


def probe_accuracy(train_NF: torch.Tensor, train: LabelledSet, test_MF: torch.Tensor, test: LabelledSet) -> float:
    """Share of the images of ``test`` that a linear probe fitted on ``train`` classifies rightly."""
    predicted = linear_probe(train_NF, torch.from_numpy(train.labels), test_MF, train.classes)
    return float((predicted == torch.from_numpy(test.labels)).double().mean())


def _row(ctx: SlimmableContext, n: int, width: Width, latency_ms: float | None) -> CandidateRow:
    arch = ctx.net.architecture(width.head_dim)
    dip = {} if width.dip is None else {"dip": width.dip}
    return CandidateRow(
        n=n,
        generation=0,
        genotype=[float(gene) for gene in arch.genotype],
        parents=[],
        score=width.accuracy,
        scores={"accuracy": width.accuracy, **dip},
        costs={**ctx.costs(arch), **({} if latency_ms is None else {"latency_ms": latency_ms})},
        feasible=_excess(ctx, arch, latency_ms) == 0,
        architecture=arch.to_json(),
    )


def _front(ctx: SlimmableContext, widths: tuple[Width, ...], rows: list[CandidateRow]) -> list[int]:
    """``n`` of the offered widths within the limits that no other beats in the job's objectives."""
    objectives = ctx.spec.objectives
    points = [[{"score": row.score, **row.costs}[objective.metric.value] for objective in objectives] for row in rows]
    goals = [Goal(objective.goal) for objective in objectives]
    usable = [row.feasible and width.offered for row, width in zip(rows, widths, strict=True)]
    return [int(n) for n in pareto_front(points, goals, usable)]


def _accuracy(width: Width) -> float:
    assert width.accuracy is not None, "every width of the search is measured"
    return width.accuracy


def _excess(ctx: SlimmableContext, arch: Architecture, latency_ms: float | None) -> float:
    """How far a width is beyond the limits, relative to them; 0 within. Latency is measured within all others."""
    beyond = violation(ctx.constraints, counts_of(arch))
    if ctx.latency is not None and latency_ms is not None:
        beyond += ctx.latency.violation(latency_ms)
    return beyond


def _no_feasible(ctx: SlimmableContext, rows: list[CandidateRow]) -> NoFeasibleCandidate:
    limits = ", ".join(map(str, [*ctx.constraints, *([] if ctx.latency is None else [ctx.latency])]))

    def excess(row: CandidateRow) -> tuple[bool, float]:
        latency_ms = row.costs.get("latency_ms")
        unknown = ctx.latency is not None and latency_ms is None  # beyond another limit; how slow it is, nobody knows
        return unknown, _excess(ctx, Architecture.from_json(row.architecture), latency_ms)

    near = sorted(rows, key=excess)
    return NoFeasibleCandidate(
        f"No width that is good enough to be offered is within the limits ({limits}); widen them, raise "
        "widths.max_dip, or train more widths.",
        extra={"nearest_misses": [{"genotype": row.genotype, "costs": row.costs} for row in near[:_NEAREST_MISSES]]},
    )


def width_finalists(ctx: SlimmableContext) -> list[Finalist]:
    """The best offered widths within the limits, the winner first; exports that turned out too slow come last."""
    weights = width_weights(ctx)
    known = {width["head_dim"]: width for width in ctx.outputs[SearchStage.name]["widths"]}
    best = in_time(ctx, ctx.outputs[SearchStage.name]["best"])
    return [_finalist(ctx, weights, entry, known[entry["head_dim"]]) for entry in best]


def _finalist(ctx: SlimmableContext, weights: WidthWeights, entry: Json, known: Json) -> Finalist:
    head_dim = entry["head_dim"]
    return Finalist(
        n=entry["n"],
        architecture=ctx.net.architecture(head_dim),
        score=entry["score"],
        scores={name: known[name] for name in ("accuracy", "dip") if known[name] is not None},
        val=known["accuracy"] if ctx.classes else None,
        recipe={"method": ctx.spec.method, **ctx.spec.training.model_dump(mode="json")},
        load=lambda: weights.trained(head_dim),
    )
