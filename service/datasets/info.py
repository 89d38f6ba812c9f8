"""What a search needs to know of a dataset, whether built in or imported."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from service.db.models import Dataset, DatasetStatus
from service.ids import IdKind, format_id

TEST_SPLIT, VAL_SPLIT = "test", "val"
"""Names of official splits that are taken as they are; all other images are divided by the job's fractions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetInfo:
    """The facts of one usable dataset version.

    Attributes:
        name: what people call it.
        id: of its row, None for built-ins.
        digest: SHA-256 (hex) of the content.
        labelled: True when the images have classes.
        classes: class names, in the order of the labels; empty when not labelled.
        images: number of images over all splits.
        channels: 1 (all grey) or 3.
        min_side: the smallest height or width of any image, in pixels.
        test_images: number of images in the official test split; 0 when the dataset brings none.
        val_images: likewise of the official validation split.
    """

    name: str
    id: UUID | None
    digest: str
    labelled: bool
    classes: tuple[str, ...]
    images: int
    channels: int
    min_side: int
    test_images: int = 0
    val_images: int = 0

    @classmethod
    def from_row(cls, row: Dataset) -> DatasetInfo:
        """Read the row of a dataset that is ``ready``; others have no content yet."""
        assert row.status == DatasetStatus.READY, f"dataset {row.id} is {row.status}, not ready"
        assert row.sha256 is not None  # the table's check ready_has_blob
        return cls(
            name=row.name,
            id=row.id,
            digest=row.sha256,
            labelled=bool(row.classes),
            classes=tuple(row.classes),
            images=row.counts["images"],
            channels=row.image["channels"],
            min_side=row.image["min_side"],
            test_images=row.counts["splits"].get(TEST_SPLIT, 0),
            val_images=row.counts["splits"].get(VAL_SPLIT, 0),
        )

    @property
    def reference(self) -> str:
        """How a search names it: its public id, or the name of a built-in."""
        return self.name if self.id is None else format_id(IdKind.DATASET, self.id)

    def to_json(self) -> dict[str, Any]:
        """The facts as JSON: what a job keeps of its dataset."""
        return {
            "id": self.reference,
            "name": self.name,
            "digest": self.digest,
            "labelled": self.labelled,
            "classes": list(self.classes),
            "images": self.images,
            "channels": self.channels,
            "min_side": self.min_side,
            "test_images": self.test_images,
            "val_images": self.val_images,
        }
