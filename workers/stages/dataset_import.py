"""The job that imports a dataset: one stage, whose result is the canonical blob."""

from __future__ import annotations

from pathlib import Path

from service.errors import DatasetInvalid
from service.jobs.spec import ImportSpec
from workers.channel import Channel
from workers.data.importing import ImportPolicy, import_dataset, resolve_import_path
from workers.data.limits import Guard, ImportLimits
from workers.data.opening import SourceFormat, SourceOptions
from workers.protocol import DATASET_ARTIFACT, ArtifactRef, Result, Start
from workers.stages.context import Context
from workers.training.files import WrittenFile

STAGE = "import"

BLOB_FILE = "dataset.parquet"


def import_dataset_job(start: Start, channel: Channel) -> Result:
    """Read, check and convert what the user named.

    An interrupted import starts again from the beginning; it has nothing to save.

    Raises:
        DatasetInvalid: see ``workers.data.importing``.
        StopRequested: when asked to stop.
    """
    spec = ImportSpec.model_validate(start.spec)
    if start.import_root is None:
        raise DatasetInvalid("This worker has no import root configured (VITAILOR_IMPORT_ROOT).")
    ctx = Context(start, channel)
    ctx.enter(STAGE)

    def on_row(done: int, total: int) -> None:
        ctx.progress(done / total, rows=done, total=total)

    path = resolve_import_path(Path(start.import_root), spec.path)
    options = SourceOptions(source_format=SourceFormat(spec.format), use_labels=spec.labels == "auto")
    policy = ImportPolicy(max_skipped=spec.max_skipped, reject_on=tuple(spec.reject_on))
    guard = Guard(ImportLimits(**start.import_limits), ctx.poll)
    imported = import_dataset(path, ctx.path(BLOB_FILE), options=options, policy=policy, guard=guard, on_row=on_row)
    reference = ctx.reference(BLOB_FILE, WrittenFile(ctx.path(BLOB_FILE), imported.digest, imported.size_bytes))
    return Result(
        result={"digest": imported.digest, "counts": imported.counts},
        artifacts=[
            ArtifactRef(**reference.model_dump(), kind=DATASET_ARTIFACT, media_type="application/vnd.apache.parquet")
        ],
        dataset={
            "classes": list(imported.classes),
            "counts": imported.counts,
            "image": imported.image,
            "report": imported.report,
        },
    )
