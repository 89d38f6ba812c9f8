"""What an export tells about its network beside the weights: the content of ``architecture.json``."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from models.architecture import Architecture


class ExportError(ValueError):
    """The network or its description is not fit for export; the message says why."""


class Interpolation(StrEnum):
    """How an image is brought to the network's size."""

    NEAREST = "nearest"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"


@dataclass(frozen=True, slots=True, kw_only=True)
class Preprocessing:
    """What happens to an image with values 0..1 before it enters the network.

    Attributes:
        size: side in pixels after resizing and cropping, the network's ``img_size``.
        mean: subtracted, one value per channel.
        std: divided by after that, one value per channel, above 0.
        interpolation: of the resizing.
        crop: share of the resized side that the centre crop keeps; 1 means no crop.
    """

    size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    interpolation: Interpolation
    crop: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Accuracy:
    """Shares of correct answers 0..1; None where nothing was measured.

    Attributes:
        val: on the validation images, which took part in choosing the network.
        holdout: on images that nothing was chosen by.
    """

    val: float | None = None
    holdout: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Where the weights came from.

    Attributes:
        job: id of the job.
        seed: the job's seed.
        supernet_digest: SHA-256 of the supernet's weights; None for weights that were trained alone.
        dataset_digest: SHA-256 of the dataset; None where a supernet came without saying what it was trained on.
        versions: of the product and the libraries that computed the weights, by name.
        retraining: recipe of the supervised training by the names of the job's fields; None for weights that are the
            supernet's own.
    """

    job: str
    seed: int
    supernet_digest: str | None
    dataset_digest: str | None
    versions: Mapping[str, str]
    retraining: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportRecord:
    """Everything that ``architecture.json`` tells beside the files.

    Attributes:
        architecture: the network.
        classes: names in the order of the logits; empty for a backbone without head.
        preprocessing: how to feed it.
        costs: by metric name with its unit, such as ``params_m`` and ``gmacs``.
        scores: label-free scores of the search by metric name, such as ``consistency``.
        accuracy: measured accuracies.
        provenance: where it came from.
        latency: ``predicted`` and ``measured`` milliseconds and the ``device`` that they are of; None when latency did
            not count.

    Raises:
        ExportError: when classes or preprocessing do not fit the architecture, or a figure is not finite.
    """

    architecture: Architecture
    classes: tuple[str, ...]
    preprocessing: Preprocessing
    costs: Mapping[str, float]
    scores: Mapping[str, float]
    accuracy: Accuracy
    provenance: Provenance
    latency: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        arch, pre = self.architecture, self.preprocessing
        if len(self.classes) != arch.num_classes:
            raise ExportError(f"{len(self.classes)} class names for {arch.num_classes} classes")
        if pre.size != arch.img_size:
            raise ExportError(f"preprocessing makes images of {pre.size} px, the network takes {arch.img_size}")
        if len(pre.mean) != arch.in_chans or len(pre.std) != arch.in_chans or min(pre.std) <= 0:
            raise ExportError(f"mean {pre.mean} and std {pre.std} are not {arch.in_chans} values each, the std above 0")
        measured = {"val": self.accuracy.val, "holdout": self.accuracy.holdout, **self.costs, **self.scores}
        unfit = [name for name, value in measured.items() if value is not None and not math.isfinite(value)]
        if unfit:
            raise ExportError(f"figures are not finite: {', '.join(unfit)}")


@dataclass(frozen=True, slots=True)
class ExportedFile:
    """One file of an export.

    Attributes:
        name: inside the folder.
        size_bytes: its length.
        sha256: hexadecimal digest of its content.
    """

    name: str
    size_bytes: int
    sha256: str


def architecture_document(record: ExportRecord, files: Iterable[ExportedFile]) -> dict[str, Any]:
    """The content of ``architecture.json``: the genes at its top level, the rest by subject beside them."""
    described = asdict(record)
    del described["architecture"]
    latency = described.pop("latency")
    if latency is not None:
        described["costs"]["latency_ms"] = latency
    return {**record.architecture.to_json(), **described, "files": [asdict(file) for file in files]}
