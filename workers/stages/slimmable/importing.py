"""The job that registers a slimmable network of Scala's released code."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from models.export_record import Interpolation, Preprocessing
from models.foreign.slimmable import Stated
from search.widths import measured_widths
from service.errors import DatasetInvalid, ErrorItem, SupernetInvalid
from service.jobs.spec import SupernetImportSpec
from workers.channel import Channel
from workers.data.importing import resolve_import_path
from workers.protocol import ArtifactRef, Resource, Result, Start
from workers.stages.context import Context
from workers.stages.delivery_context import DatasetContext
from workers.stages.slimmable.known import on_images_of
from workers.stages.slimmable.supernet import slimmable_info
from workers.stages.slimmable.weights import SlicedWeights
from workers.stages.slimmable.widths import MAX_DIP, judged_widths
from workers.stages.supernet import SUPERNET_FILE
from workers.stages.supervised import EVAL_BATCH
from workers.teachers.acquire import IMAGENET_MEAN, IMAGENET_STD
from workers.teachers.slimmable import ReadSlimmable, read_slimmable
from workers.training.files import write_tensors
from workers.training.supervised import count_correct

STAGE = "import"


def import_supernet_job(start: Start, channel: Channel) -> Result:
    """Read and convert a checkpoint; with a dataset also measure its widths.

    An interrupted import starts again from the beginning; it has nothing to save.

    Raises:
        SupernetInvalid: the file is no such checkpoint.
        DatasetInvalid: the dataset has other classes, or no labels.
        StopRequested: when asked to stop.
    """
    spec = SupernetImportSpec.model_validate(start.spec)
    path = _path(start, spec)
    ctx = Context(start, channel)
    ctx.enter(STAGE)
    ctx.poll()
    found = read_slimmable(path, Stated(smallest=spec.smallest, step=spec.step, num_heads=spec.num_heads))
    how = _preprocessing(found)
    weights = SlicedWeights(found.net, found.state)
    accuracies = _accuracies(start, channel, spec, weights, how)
    written = write_tensors(ctx.path(SUPERNET_FILE), found.state, {"slimmable": found.net.to_json()})
    info = slimmable_info(
        found.net,
        method="scala",
        dataset=None,
        classes=tuple(start.dataset["classes"]) if spec.dataset is not None else (),
        preprocessing=asdict(how),
        widths=judged_widths(found.net, accuracies, MAX_DIP),
        digest=written.sha256,
    )
    info |= {"spec": {}, "source": {"path": spec.path, "found_in": found.found_in, "dropped": list(found.dropped)}}
    if spec.dataset is not None:
        info["measured_on"] = start.dataset["digest"]
    reference = ctx.reference(SUPERNET_FILE, written)
    return Result(
        result={"digest": written.sha256, "widths": info["widths"]},
        artifacts=[ArtifactRef(**reference.model_dump(), kind="supernet", media_type="application/octet-stream")],
        supernet=Resource(kind="supernet", name=spec.name or path.name, file=SUPERNET_FILE, info=info),
    )


def _path(start: Start, spec: SupernetImportSpec) -> Path:
    try:
        if start.import_root is None:
            raise DatasetInvalid("This worker has no import root configured (VITAILOR_IMPORT_ROOT).")
        return resolve_import_path(Path(start.import_root), spec.path)
    except DatasetInvalid as error:
        items = [ErrorItem("/path", "not_found", error.detail)]
        raise SupernetInvalid(error.detail, errors=items) from error


def _preprocessing(found: ReadSlimmable) -> Preprocessing:
    """That of the released code: ImageNet's statistics, of one channel their mean."""
    largest = found.net.largest
    mean, std = (
        values if largest.in_chans == len(values) else (sum(values) / len(values),) * largest.in_chans
        for values in (IMAGENET_MEAN, IMAGENET_STD)
    )
    return Preprocessing(size=largest.img_size, mean=mean, std=std, interpolation=Interpolation.BICUBIC)


def _accuracies(
    start: Start, channel: Channel, spec: SupernetImportSpec, weights: SlicedWeights, own: Preprocessing
) -> dict[int, float | None]:
    """Of all widths on the dataset's validation images; without a dataset only the trained ones are listed."""
    net = weights.net
    if spec.dataset is None:
        return dict.fromkeys(net.head_dims)
    ctx = DatasetContext(
        start,
        channel,
        dataset=spec.dataset,
        size=net.largest.img_size,
        channels=net.largest.in_chans,
        precision="auto",
    )
    ctx.enter(STAGE)
    labels = ctx.dataset.labels
    if labels is None or len(labels.names) != net.largest.num_classes:
        found = "no labels" if labels is None else f"{len(labels.names)} classes"
        raise DatasetInvalid(f"the network tells {net.largest.num_classes} classes apart, and the dataset has {found}")
    val = labels.of(ctx.dataset.val)
    if not len(val):
        raise DatasetInvalid("the val part has no labelled image, so no width can be measured")
    given = val.images.preprocessing
    accuracies: dict[int, float | None] = {}
    wanted = measured_widths(net)
    for head_dim in wanted:
        network = on_images_of(weights.network(head_dim), given, own).to(ctx.compute.device)
        accuracies[head_dim] = count_correct(network, val, ctx.compute, EVAL_BATCH, ctx.poll) / len(val)
        ctx.progress(len(accuracies) / len(wanted))
    return accuracies
