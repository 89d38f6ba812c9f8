"""The job that fits a latency table to networks, which it measures on this worker unless an agent has done so."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, fields
from statistics import median

from models.architecture import Architecture
from search.latency import LatencyError, LatencyTable, Precision, Runtime
from search.latency_design import Design
from service.errors import LatencyUnmeasurable
from service.jobs.resolve import design_of, table_of
from service.jobs.spec import DeviceSpec, LatencyBuildSpec
from workers.channel import Channel
from workers.latency.execution import Execution, NotExecutable
from workers.latency.measure import Latency, Timing, levelled
from workers.latency.networks import measure_networks
from workers.protocol import Result, Start
from workers.stages.context import Context, Json

STAGE = "measure"

_LARGE_ERROR = 0.1
_MANY_UNSTEADY = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class _Machine:
    """What networks were measured on; ``load``: threads that ran just before on its ``cores``."""

    device: str
    threads: int
    cores: int
    load: float


def latency_table_job(start: Start, channel: Channel) -> Result:
    """Measure the networks of a build, those that the table is judged by among the others, and fit the table.

    What has been measured is saved, so that an interrupted job goes on and its measurements do not change. A device
    agent has measured before the job begins.

    Raises:
        LatencyUnmeasurable: the worker's device cannot compute so, the times make no table, or what an agent had
            measured was deleted.
        StopRequested: when asked to stop.
    """
    build = DeviceSpec.model_validate(start.spec).build
    assert build is not None, "a table that was brought along needs no job"
    ctx = Context(start, channel)
    ctx.enter(STAGE)
    machine, chosen, taken = _measured_here(ctx, build) if build.agent is None else _measured_elsewhere(ctx)
    try:
        table = table_of(build, chosen, levelled(taken), device=machine.device, threads=machine.threads)
    except LatencyError as error:
        raise LatencyUnmeasurable(f"The measured times make no table: {error}") from error
    _warn_of_faults(ctx, table, taken)
    return Result(result=_summary(table, chosen, taken), artifacts=[], latency_table=table.to_json())


def _measured_here(ctx: Context, build: LatencyBuildSpec) -> tuple[_Machine, Design, list[Latency]]:
    execution = _execution(ctx, build)
    machine = _Machine(
        device=execution.label,
        threads=execution.threads,
        cores=os.cpu_count() or 1,
        load=os.getloadavg()[0],
    )
    _warn_of_others(ctx, machine)
    chosen = design_of(build)
    taken = _measure(ctx, build, chosen, execution)
    return machine, chosen, [taken[i] for i in range(len(chosen.networks))]


def _measured_elsewhere(ctx: Context) -> tuple[_Machine, Design, list[Latency]]:
    """What an agent measured, as the API has checked it."""
    measured = ctx.start.measured
    if not measured:
        raise LatencyUnmeasurable("The device was deleted, and with it what its agent has measured.")
    said = measured["machine"]
    machine = _Machine(**{field.name: said[field.name] for field in fields(_Machine)})
    _warn_of_others(ctx, machine)
    archs = [(Architecture.from_json(row["architecture"]), row["held_out"]) for row in measured["networks"]]
    chosen = Design(
        fitted=tuple(arch for arch, held_out in archs if not held_out),
        held_out=tuple(arch for arch, held_out in archs if held_out),
    )
    return machine, chosen, [Latency(**row["latency"]) for row in measured["networks"]]


def _execution(ctx: Context, build: LatencyBuildSpec) -> Execution:
    try:
        return Execution(
            runtime=Runtime(build.runtime),
            precision=Precision(build.precision),
            batch_size=build.batch_size,
            threads=build.threads or ctx.start.threads,
            device=ctx.compute.device,
        )
    except NotExecutable as error:
        raise LatencyUnmeasurable(f"This worker cannot measure so: {error}.") from error


def _measure(ctx: Context, build: LatencyBuildSpec, chosen: Design, execution: Execution) -> dict[int, Latency]:
    """What each network took, by its place; goes on from the last checkpoint."""
    saved = {int(i): Latency(**latency) for i, latency in ctx.state.get("taken", {}).items()}
    # Checkpoints of older versions tell of no anchor.
    taken = {i: latency for i, latency in saved.items() if latency.anchor_ns is not None}
    timing = Timing(percentile=build.percentile, warmup_runs=build.warmup_runs, runs=build.runs)
    for group in measure_networks(
        chosen.networks, execution, timing, build.seed, ctx.run_dir, known=frozenset(taken), poll=ctx.poll
    ):
        taken |= group
        ctx.checkpoint({"taken": {str(i): asdict(latency) for i, latency in taken.items()}})
        ctx.progress(len(taken) / len(chosen.networks), measured=len(taken), planned=len(chosen.networks))
    return taken


def _summary(table: LatencyTable, chosen: Design, taken: list[Latency]) -> Json:
    return {
        "digest": table.digest(),
        "setting": {
            "device": table.setting.device,
            "runtime": table.setting.runtime.value,
            "precision": table.setting.precision.value,
            "threads": table.setting.threads,
        },
        "networks": {"fitted": len(chosen.fitted), "held_out": len(chosen.held_out)},
        "error_share": table.mape,
        # How far repeated calls of one network lie apart: no prediction can be closer than that.
        "spread_share": median((latency.high_ns - latency.low_ns) / latency.ns for latency in taken),
        # How much the machine itself changed between groups of networks; taken out of the times.
        "drift_share": _drift(taken),
        "unsteady": sum(not latency.steady for latency in taken),
        "outliers": sum(latency.outliers for latency in taken),
    }


def _drift(taken: list[Latency]) -> float:
    anchors = [latency.anchor_ns for latency in taken if latency.anchor_ns is not None]
    return max(anchors) / min(anchors) - 1


def _warn_of_others(ctx: Context, machine: _Machine) -> None:
    """Tell that something else runs on the machine: nobody could see it in the table."""
    load, cores = machine.load, machine.cores
    if load + machine.threads > cores + 0.5:
        detail = f"{load:.1f} threads were running on the {cores} cores when measuring began; times may be too long"
        ctx.warn("machine_busy", detail)


def _warn_of_faults(ctx: Context, table: LatencyTable, taken: list[Latency]) -> None:
    unsteady = sum(not latency.steady for latency in taken)
    if unsteady > _MANY_UNSTEADY * len(taken):
        detail = f"the calls of {unsteady} of {len(taken)} networks never became steady; measure on a quiet machine"
        ctx.warn("latency_unsteady", detail)
    if table.mape is not None and table.mape > _LARGE_ERROR:
        detail = f"predictions are off by {table.mape:.0%} on average over {len(table.held_out)} held-out networks"
        ctx.warn("latency_error_large", detail)
