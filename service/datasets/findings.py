"""Kinds of findings of an import; a user may name those that reject a dataset."""

from __future__ import annotations

from enum import StrEnum


class FindingCode(StrEnum):
    """Kinds of findings. Rejected rows are left out of the dataset, the others are only reported."""

    UNREADABLE_IMAGE = "unreadable_image"
    INVALID_LABEL = "invalid_label"
    UNKNOWN_SPLIT = "unknown_split"
    MISSING_FILE = "missing_file"
    BAD_MASK = "bad_mask"
    HOSTILE_MEMBER = "hostile_member"
    IGNORED = "ignored"
    EMPTY_CLASS = "empty_class"
    ONE_CLASS = "one_class"
    SMALL_CLASS = "small_class"
    IMBALANCE = "imbalance"
    FEW_IMAGES = "few_images"
    CLASS_WITHOUT_TRAINING_IMAGES = "class_without_training_images"
    CLASS_MISSING_IN_SPLIT = "class_missing_in_split"
    NAME_CLASH = "name_clash"
    DUPLICATE = "duplicate"
    NEAR_DUPLICATE = "near_duplicate"
    LABEL_CONFLICT = "label_conflict"
    LEAKAGE = "leakage"
    ANIMATED = "animated"


REJECTING = frozenset(
    {
        FindingCode.UNREADABLE_IMAGE,
        FindingCode.INVALID_LABEL,
        FindingCode.UNKNOWN_SPLIT,
        FindingCode.MISSING_FILE,
        FindingCode.BAD_MASK,
    }
)
"""Codes whose rows are left out; their share of all rows is bounded by the import's ``max_skipped``."""
