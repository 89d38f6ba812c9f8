from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.errors import DatasetInvalid
from workers.data.blob import NO_LABEL, SplitName
from workers.data.split import Split, split_dataset

DIGEST = "ab" * 32


def divided(labels: list[int], official: list[SplitName | None] | None = None, **options: object) -> Split:
    fractions = {"digest": DIGEST, "val_fraction": 0.1, "holdout_fraction": 0.2, **options}
    return split_dataset(  # type: ignore[call-overload, no-any-return, misc]
        fractions.pop("digest"),
        np.array(labels, dtype=np.int64),
        official or [None] * len(labels),
        **fractions,
    )


@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=6),
    val=st.floats(0.01, 0.4),
    holdout=st.floats(0.01, 0.4),
)
def test_parts_are_disjoint_complete_and_proportional(sizes: list[int], val: float, holdout: float) -> None:
    labels = [label for label, size in enumerate(sizes) for _ in range(size)]
    spare = sum(size - 1 for size in sizes)
    if spare < 2:
        return
    try:
        split = divided(labels, val_fraction=val, holdout_fraction=holdout)
    except DatasetInvalid:
        assert spare <= round(holdout * len(labels))  # the holdout took all that classes can spare
        return
    parts = [split.train, split.val, split.holdout]
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(labels)))
    assert len(split.holdout) == min(max(1, round(holdout * len(labels))), spare)
    by_class = np.array(labels)
    for label, size in enumerate(sizes):
        assert (by_class[split.train] == label).sum() >= 1
        assert (by_class[split.holdout] == label).sum() <= holdout * size + len(sizes)


def test_large_classes_give_their_share_to_one() -> None:
    split = divided([0] * 1000 + [1] * 500)
    assert (len(split.holdout), len(split.val)) == (300, 150)
    assert (split.holdout < 1000).sum() == 200
    assert (split.val < 1000).sum() == 100


def test_class_with_one_image_is_only_trained_on() -> None:
    split = divided([0] * 20 + [1])
    assert 20 in split.train


def test_same_content_and_fractions_give_the_same_parts() -> None:
    labels = [0, 1] * 50
    one, other = divided(labels), divided(labels)
    assert np.array_equal(one.holdout, other.holdout)
    assert not np.array_equal(one.holdout, divided(labels, digest="cd" * 32).holdout)


def test_parts_are_pinned_for_all_versions() -> None:
    # A change would move images between training and holdout of datasets that are in use.
    split = divided([0] * 12 + [1] * 8)
    assert split.holdout.tolist() == [5, 6, 12, 16]
    assert split.val.tolist() == [11, 14]


def test_validation_fraction_does_not_move_the_holdout() -> None:
    labels = [0, 1, 2] * 40
    assert np.array_equal(divided(labels).holdout, divided(labels, val_fraction=0.3).holdout)


def test_official_test_split_is_the_holdout() -> None:
    official = [SplitName.TRAIN] * 70 + [SplitName.TEST] * 30
    split = divided([0, 1] * 50, official)
    assert split.holdout.tolist() == list(range(70, 100))
    assert len(split.val) == 7  # of the 70 images that can be divided


def test_official_validation_split_is_used() -> None:
    official = [None] * 80 + [SplitName.VAL] * 20
    split = divided([0, 1] * 50, official)
    assert split.val.tolist() == list(range(80, 100))
    assert len(split.holdout) == 16


def test_unlabelled_dataset_is_divided_too() -> None:
    split = divided([NO_LABEL] * 100)
    assert (len(split.train), len(split.val), len(split.holdout)) == (70, 10, 20)


def test_rows_without_label_in_a_labelled_dataset_are_only_trained_on() -> None:
    split = divided([0, 1] * 30 + [NO_LABEL] * 40)
    assert set(range(60, 100)) <= set(split.train.tolist())


def test_unlabelled_test_split_of_a_labelled_dataset_is_unused() -> None:
    official = [SplitName.TRAIN] * 60 + [SplitName.TEST] * 40
    split = divided([0, 1] * 30 + [NO_LABEL] * 40, official)
    assert split.unused.tolist() == list(range(60, 100))
    assert len(split.holdout) == 12


@pytest.mark.parametrize("labels", [[0], [0, 0], [0, 1, 2, 3]])
def test_too_small_datasets_are_refused(labels: list[int]) -> None:
    with pytest.raises(DatasetInvalid, match="part would be empty"):
        divided(labels)
