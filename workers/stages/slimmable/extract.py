"""The job that takes one width out of a slimmable network: seconds, since nothing is trained."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from models.export import ExportLoadError, ParityError, verify_export, write_export
from models.export_record import Accuracy, ExportRecord, Provenance
from search.latency import MS, Precision, Runtime
from search.metrics import costs_of
from service.errors import ExportParityFailed, NoFeasibleCandidate
from service.jobs.spec import ExtractSpec
from workers.channel import Channel
from workers.latency.execution import Execution
from workers.latency.measure import Timing, measure
from workers.protocol import ArtifactRef, Result, Start
from workers.stages.context import Context, Json
from workers.stages.result import KINDS, MEDIA_TYPES
from workers.stages.slimmable.known import KnownNetwork
from workers.stages.slimmable.weights import SlicedWeights
from workers.training.files import WrittenFile
from workers.training.streams import numpy_stream, torch_stream
from workers.versions import recorded_versions

STAGE = "extract"
FOLDER = "export"

_PARITY_IMAGES = 16
_TIMING = Timing(percentile=50, warmup_runs=3, runs=15)
_HOPELESS = 2.0
"""A width whose passes take so many times the limit is not measured further."""


@dataclass(frozen=True, slots=True)
class Latency:
    """How long one forward pass takes on this worker, in milliseconds.

    Attributes:
        median_ms: over ``repeats`` passes.
        batch_size: images of a pass.
        repeats: timed passes.
        threads: that the pass may use.
    """

    median_ms: float
    batch_size: int
    repeats: int
    threads: int


def extract_job(start: Start, channel: Channel) -> Result:
    """Export the best of the widths in question.

    An interrupted extraction starts again from the beginning; it has nothing to save.

    Raises:
        NoFeasibleCandidate: no width is as fast as asked for.
        ExportParityFailed: the files do not answer as the slice does.
        SupernetUnavailable: the weights are damaged on this host.
        StopRequested: when asked to stop.
    """
    spec = ExtractSpec.model_validate(start.spec)
    ctx = Context(start, channel)
    ctx.enter(STAGE)
    known = KnownNetwork.of(start)
    weights = known.weights()
    head_dim, latency = chosen_width(ctx, spec, weights)
    record = _record(ctx, known, head_dim)
    trained = weights.trained(head_dim)
    folder = ctx.path(FOLDER)
    files = write_export(folder, trained.state, record)
    images = generated_images(ctx.start.seed, _PARITY_IMAGES, weights)
    try:
        parity = verify_export(folder, images, trained.answer(images))
    except (ExportLoadError, ParityError) as error:
        raise ExportParityFailed(f"The exported files are not the slice of the network: {error}") from error
    ctx.poll_to_finish()
    return Result(
        result={
            "supernet": known.reference,
            **_facts(known, head_dim),
            "costs": dict(record.costs),
            "latency": asdict(latency) if latency else None,
            "parity": asdict(parity),
        },
        artifacts=[
            ArtifactRef(
                **ctx.reference(file.name, WrittenFile(folder / file.name, file.sha256, file.size_bytes)).model_dump(),
                kind=KINDS[file.name],
                media_type=MEDIA_TYPES[file.name],
            )
            for file in files
        ],
    )


def _facts(known: KnownNetwork, head_dim: int) -> Json:
    net = known.net
    return {
        "width": net.embed_dim(head_dim),
        "ratio": net.ratio(head_dim),
        "head_dim": head_dim,
        "interpolated": not net.is_trained(head_dim),
        "accuracy": known.width(head_dim)["accuracy"],
    }


def chosen_width(ctx: Context, spec: ExtractSpec, weights: SlicedWeights) -> tuple[int, Latency | None]:
    """The best width that is fast enough, with what was measured; without a limit on latency the best one.

    Wider networks take longer, so that bisection finds the widest that is fast enough with few measurements; of those
    down from it the best is taken, once it was measured itself.

    Raises:
        NoFeasibleCandidate: there is none.
    """
    limit = spec.max_latency_ms
    if limit is None:
        return spec.head_dims[0], None
    clock = _Clock(ctx, spec, weights, limit)
    ascending = sorted(spec.head_dims)
    widest = bisect_left(ascending, True, key=lambda head_dim: clock.of(head_dim).median_ms > limit)
    for head_dim in spec.head_dims:
        if head_dim in ascending[:widest] and clock.of(head_dim).median_ms <= limit:
            return head_dim, clock.of(head_dim)
    fastest = min(latency.median_ms for latency in clock.known.values())
    raise NoFeasibleCandidate(
        f"None of the {len(spec.head_dims)} widths in question answers within {limit:g} ms on this worker; the "
        f"fastest took {fastest:.3g} ms at batches of {spec.batch_size}. Raise max_latency_ms.",
        extra={"fastest_ms": fastest},
    )


class _Clock:
    """Measures widths, each once."""

    def __init__(self, ctx: Context, spec: ExtractSpec, weights: SlicedWeights, limit_ms: float) -> None:
        self.known: dict[int, Latency] = {}
        self._ctx, self._weights, self._limit_ms = ctx, weights, limit_ms
        self._execution = Execution(
            runtime=Runtime.TORCH,
            precision=Precision.FP32,
            batch_size=spec.batch_size,
            threads=torch.get_num_threads(),
            device=torch.device(spec.device),
        )
        self._images = generated_images(ctx.start.seed, spec.batch_size, weights)

    def of(self, head_dim: int) -> Latency:
        """How long a width takes."""
        if head_dim not in self.known:
            run = self._execution.pass_of(self._weights.network(head_dim), self._images, self._ctx.run_dir)
            rng = numpy_stream(self._ctx.start.seed, STAGE, "latency", head_dim)
            hopeless_ns = _HOPELESS * self._limit_ms * MS
            [taken] = measure([run], _TIMING, rng, poll=self._ctx.poll, hopeless_ns=hopeless_ns)
            self.known[head_dim] = Latency(taken.ms, len(self._images), taken.runs, self._execution.threads)
        return self.known[head_dim]


def generated_images(seed: int, count: int, weights: SlicedWeights) -> Tensor:
    """Images of noise (count, C, S, S), as normalised ones are spread."""
    arch = weights.net.largest
    generator = torch_stream(seed, STAGE, "images")
    return torch.randn(count, arch.in_chans, arch.img_size, arch.img_size, generator=generator)


def _record(ctx: Context, known: KnownNetwork, head_dim: int) -> ExportRecord:
    arch = known.net.architecture(head_dim)
    accuracy = known.width(head_dim)["accuracy"]
    return ExportRecord(
        architecture=arch,
        classes=class_names(known, arch.num_classes),
        preprocessing=known.preprocessing,
        costs=costs_of(arch),
        scores={} if accuracy is None else {"accuracy": accuracy},
        accuracy=Accuracy(val=accuracy if arch.num_classes else None),
        provenance=Provenance(
            job=ctx.start.job_id,
            seed=ctx.start.seed,
            supernet_digest=known.digest,
            dataset_digest=known.info["dataset"],
            versions=recorded_versions(),
            retraining=(known.info.get("spec") or {}).get("training"),
        ),
    )


def class_names(known: KnownNetwork, num_classes: int) -> tuple[str, ...]:
    """Names in the order of the logits; their numbers where a checkpoint came without names."""
    return tuple(known.info["classes"]) or tuple(map(str, range(num_classes)))
