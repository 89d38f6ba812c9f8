"""Latency on the machine that runs a search: of candidates as a limit, and of the networks that leave the service."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from models.architecture import Architecture, Genotype
from search.asktell import Candidate
from search.latency import MS, LatencySetting, Precision, Runtime
from search.metrics import Metric
from service.errors import LatencyUnmeasurable, NoFeasibleCandidate
from service.jobs.resolve import measured_limit
from service.jobs.spec import ConstraintMetric, ConstraintSpec
from workers.latency.execution import Execution, NotExecutable
from workers.latency.measure import Latency, Timing
from workers.latency.meter import NetworkMeter
from workers.stages.context import Json
from workers.stages.delivery_context import DeliveryContext
from workers.stages.latency_limit import LatencyLimit
from workers.stages.search_context import SearchContext

_OF_CANDIDATES = Timing(warmup_runs=3, runs=15)
_HOPELESS = 2.0
"""A candidate that takes so many times the limit is not measured further."""

_SPARE = 20
"""How many networks beyond those asked for are tried, when measurements say that better-scored ones are too slow."""

_NEAREST_MISSES = 3


def candidates_limit(ctx: DeliveryContext) -> LatencyLimit | None:
    """The limit that candidates are measured for while the search runs; None when the spec has none.

    Raises:
        LatencyUnmeasurable: this worker cannot execute networks so.
    """
    asked = measured_limit(ctx.limits)
    if asked is None:
        return None
    assert asked.percentile is not None, "filled by service.jobs.resolve"
    timing = Timing(percentile=asked.percentile, warmup_runs=_OF_CANDIDATES.warmup_runs, runs=_OF_CANDIDATES.runs)
    hopeless_ns = _HOPELESS * MS * asked.max if asked.max is not None else math.inf
    try:
        meter = _meter(ctx, _worker_execution(ctx, asked), timing, hopeless_ns)
    except NotExecutable as error:
        raise LatencyUnmeasurable(f"This worker cannot measure so: {error}.") from error
    return LatencyLimit(meter, asked.min or None, asked.max)


@dataclass(frozen=True, slots=True)
class DeliveryClock:
    """Measures what leaves the service as the limit or the objective on latency says.

    Attributes:
        meter: on this machine.
        limit: in milliseconds; None when latency is an objective alone.
    """

    meter: NetworkMeter
    limit: ConstraintSpec | None

    def allows(self, milliseconds: float) -> bool:
        """Whether a latency is within the limit."""
        return self.limit is None or (
            (self.limit.min is None or milliseconds >= self.limit.min)
            and (self.limit.max is None or milliseconds <= self.limit.max)
        )


def delivery_clock(ctx: DeliveryContext) -> DeliveryClock | None:
    """The clock of a search in which latency counts; None without, or when this machine is not the one that counts."""
    limit = next((c for c in ctx.limits if c.metric is ConstraintMetric.LATENCY_MS), None)
    if ctx.table is not None:
        setting = ctx.table.setting
        execution = _same_device(ctx, setting)
        timing = Timing(percentile=setting.percentile, warmup_runs=setting.warmup_runs, runs=setting.runs)
    elif (asked := measured_limit(ctx.limits)) is not None:
        assert asked.percentile is not None, "filled by service.jobs.resolve"
        execution, timing = _worker_execution(ctx, asked), Timing(percentile=asked.percentile)
    else:
        return None
    return None if execution is None else DeliveryClock(_meter(ctx, execution, timing), limit)


def deliverable(
    ctx: SearchContext,
    best: Callable[[int], Sequence[Candidate]],
    count: int,
    known: Mapping[Genotype, float],
    keep: Callable[[Genotype, float], None],
) -> list[Candidate]:
    """The best-scored candidates that are as fast as predicted, when this machine is the one that they are meant for.

    A table may be off by more than a network is within the limit, and training one that cannot be used is a waste. So
    the best ones are measured first, and the next ones are tried in the place of those that are too slow.

    Args:
        ctx: of the search.
        best: gives so many candidates with a score, the best first.
        count: how many are wanted.
        known: milliseconds of those that were measured before.
        keep: makes a measurement known, and part of a checkpoint: no clock repeats, so that another attempt would
            choose others.

    Raises:
        StopRequested: when somebody wants the attempt to stop.
        NoFeasibleCandidate: none of those that were measured is within the limit; carries the nearest misses.
    """
    clock = delivery_clock(ctx) if ctx.table is not None else None
    if clock is None or clock.limit is None:
        return list(best(count))
    found: list[Candidate] = []
    missed: list[Json] = []
    for candidate in best(count + _SPARE):
        if len(found) == count:
            break
        genotype = candidate.proposal.genotype
        arch = ctx.space.decode(genotype, len(ctx.classes))
        if genotype not in known:
            keep(genotype, clock.meter.measure(arch))
        taken_ms = known[genotype]
        if clock.allows(taken_ms):
            found.append(candidate)
        else:
            missed.append({"genotype": list(arch.genotype), "latency_ms": _figures(ctx, arch, taken_ms, clock)})
        ctx.poll_to_finish()
    if missed:
        detail = f"{len(missed)} better-scored networks are beyond the limit on latency when measured on this worker"
        ctx.warn("latency_mispredicted", detail)
    if not found:
        raise _none_within(clock, missed)
    return found


def measure_exports(ctx: DeliveryContext, folders: Sequence[tuple[int, Architecture, Path]]) -> list[Json]:
    """What the exported networks take, measured from their files; nothing where latency does not count.

    Args:
        ctx: of the search.
        folders: of each exported network: number of the candidate, architecture, and folder.

    Returns:
        For each its number and genotype, ``feasible`` by the measurement, and ``latency_ms`` as shown in its
        description.

    Raises:
        NoFeasibleCandidate: none of them is within the limit.
    """
    clock = delivery_clock(ctx)
    if clock is None:
        _tell_unmeasured(ctx)
        return []
    found: list[Json] = list(ctx.state.get("latency", []))
    for n, arch, folder in folders[len(found) :]:
        taken = clock.meter.measure_export(folder, arch)
        figures = _figures(ctx, arch, taken.ms, clock) | _spread(taken)
        found.append(
            {"n": n, "genotype": list(arch.genotype), "feasible": clock.allows(taken.ms), "latency_ms": figures}
        )
        ctx.checkpoint({"latency": found})  # no clock repeats, and the winner depends on it
        ctx.poll_to_finish()
    if not any(entry["feasible"] for entry in found):
        raise _none_within(clock, found)
    return found


def _figures(ctx: DeliveryContext, arch: Architecture, taken_ms: float, clock: DeliveryClock) -> Json:
    predicted = ctx.costs(arch).get(Metric.LATENCY_MS.value)  # none of a search whose candidates were measured
    return {"predicted": predicted, "measured": taken_ms, "device": clock.meter.execution.label}


def _spread(taken: Latency) -> Json:
    return {"low": taken.low_ns / MS, "high": taken.high_ns / MS, "runs": taken.runs, "outliers": taken.outliers}


def _none_within(clock: DeliveryClock, misses: Sequence[Json]) -> NoFeasibleCandidate:
    assert clock.limit is not None, "without a limit everything is within it"
    limits = clock.limit
    far = sorted(
        misses,
        key=lambda miss: max(
            miss["latency_ms"]["measured"] - (limits.max or math.inf),
            (limits.min or 0) - miss["latency_ms"]["measured"],
        ),
    )
    return NoFeasibleCandidate(
        f"None of the {len(misses)} best networks is within the limit on latency when measured on this worker; the "
        f"nearest took {far[0]['latency_ms']['measured']:.4g} ms. Widen the limit, or measure the device again.",
        extra={"nearest_misses": far[:_NEAREST_MISSES]},
    )


def _tell_unmeasured(ctx: DeliveryContext) -> None:
    if ctx.table is not None:
        label = ctx.table.setting.device
        detail = (
            f"the table is of {label!r}, which is not this worker: the networks' latency is predicted, not measured"
        )
        ctx.warn("latency_not_measured", detail)


def _same_device(ctx: DeliveryContext, setting: LatencySetting) -> Execution | None:
    """The execution that the table was measured by, when it is there on this machine."""
    for device in (ctx.compute.device, torch.device("cpu")):
        try:
            execution = Execution(
                runtime=setting.runtime,
                precision=setting.precision,
                batch_size=setting.batch_size,
                threads=setting.threads,
                device=device,
            )
        except NotExecutable:
            continue
        if execution.label == setting.device:
            return execution
    return None


def _worker_execution(ctx: DeliveryContext, asked: ConstraintSpec) -> Execution:
    assert asked.runtime is not None, "filled by service.jobs.resolve"
    assert asked.batch_size is not None, "filled by service.jobs.resolve"
    return Execution(
        runtime=Runtime(asked.runtime),
        precision=Precision.FP32,
        batch_size=asked.batch_size,
        threads=ctx.start.threads,
        device=ctx.compute.device,
    )


def _meter(ctx: DeliveryContext, execution: Execution, timing: Timing, hopeless_ns: float = math.inf) -> NetworkMeter:
    return NetworkMeter(execution=execution, timing=timing, seed=ctx.seed, scratch=ctx.run_dir, hopeless_ns=hopeless_ns)
