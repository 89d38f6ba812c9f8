from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from service.datasets.builtin import BUILTINS
from service.errors import DatasetInvalid
from tests.unit.workers.data.pictures import save
from workers.data import digits
from workers.data.dataset import Dataset, DatasetRequest, open_dataset
from workers.data.importing import import_dataset

DIGITS = DatasetRequest(
    digest=BUILTINS["digits"].digest, blob=None, size=8, channels=1, val_fraction=0.1, holdout_fraction=0.2
)


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return open_dataset(DIGITS, tmp_path_factory.mktemp("cache"))


def test_digits_are_complete_and_divided(opened: Dataset) -> None:
    assert (len(opened.train), len(opened.val), len(opened.holdout)) == (1258, 180, 359)
    assert opened.labels is not None
    assert opened.labels.names == tuple("0123456789")
    arrays = digits.read_digits()
    assert np.array_equal(opened.train.pixels[:, 0], arrays.pixels)
    assert np.array_equal(opened.labels.values, arrays.labels)


def test_other_digits_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    changed = replace(BUILTINS["digits"], digest="0" * 64)
    monkeypatch.setattr(digits, "BUILTINS", {"digits": changed})
    with pytest.raises(DatasetInvalid, match="ships other digits"):
        digits.read_digits()


def test_training_images_are_normalised_by_their_own_statistics(opened: Dataset) -> None:
    images = torch.cat(list(opened.train.batches(500)))
    assert images.shape == (1258, 1, 8, 8)
    assert images.dtype == torch.float32
    assert images.mean().item() == pytest.approx(0, abs=1e-4)
    assert images.std(correction=0).item() == pytest.approx(1, abs=1e-4)


def test_holdout_does_not_enter_the_statistics(tmp_path: Path) -> None:
    for i in range(30):
        save(tmp_path / "in/train/a" / f"{i}.png", seed=i)
    imported = import_dataset(tmp_path / "in", tmp_path / "one.parquet")
    save(tmp_path / "in/test/a/x.png", seed=99)
    with_test = import_dataset(tmp_path / "in", tmp_path / "two.parquet")
    assert imported.digest != with_test.digest
    request = DatasetRequest(
        digest=with_test.digest,
        blob=tmp_path / "two.parquet",
        size=4,
        channels=3,
        val_fraction=0.1,
        holdout_fraction=0.2,
    )
    dataset = open_dataset(request, tmp_path / "cache")
    pixels = dataset.train.pixels[dataset.train.rows] / 255
    assert dataset.train.preprocessing.mean == pytest.approx(pixels.mean(axis=(0, 2, 3)), abs=1e-6)
    assert dataset.train.preprocessing.std == pytest.approx(pixels.std(axis=(0, 2, 3)), abs=1e-6)
    assert len(dataset.holdout) == 1


def test_constant_images_stay_finite(tmp_path: Path) -> None:
    for i in range(5):
        (tmp_path / "in").mkdir(exist_ok=True)
        save(tmp_path / "in" / f"{i}.png", seed=0)
    imported = import_dataset(tmp_path / "in", tmp_path / "x.parquet")
    request = replace(DIGITS, digest=imported.digest, blob=tmp_path / "x.parquet", size=1)
    dataset = open_dataset(request, tmp_path / "cache")
    assert torch.isfinite(dataset.train.batch(np.arange(len(dataset.train)))).all()


def test_other_sizes_and_channels(tmp_path: Path) -> None:
    dataset = open_dataset(replace(DIGITS, size=16, channels=3), tmp_path)
    batch = dataset.val.batch(np.array([0, 5]))
    assert batch.shape == (2, 3, 16, 16)
    assert torch.allclose(batch[:, 0], batch[:, 1], atol=1e-5)


def test_labels_can_be_ignored_without_moving_the_holdout(opened: Dataset, tmp_path: Path) -> None:
    unlabelled = open_dataset(replace(DIGITS, use_labels=False), tmp_path)
    assert unlabelled.labels is None
    assert np.array_equal(unlabelled.holdout.rows, opened.holdout.rows)


def test_labelled_set_leaves_out_what_has_no_label(opened: Dataset) -> None:
    assert opened.labels is not None
    values = opened.labels.values.copy()
    values[opened.val.rows[:3]] = -1
    labelled = replace(opened.labels, values=values).of(opened.val)
    assert len(labelled) == len(labelled.images) == 177
    assert labelled.labels.min() == 0


def test_first_spreads_over_the_set(opened: Dataset) -> None:
    few = opened.train.first(10)
    assert len(few) == 10
    assert few.rows[0] == opened.train.rows[0]
    assert few.rows[-1] == opened.train.rows[-1]
    assert len(opened.train.first(10_000)) == len(opened.train)


def test_blob_with_another_digest_is_refused(tmp_path: Path) -> None:
    for i in range(20):
        save(tmp_path / "in" / f"{i}.png", seed=i)
    import_dataset(tmp_path / "in", tmp_path / "x.parquet")
    request = replace(DIGITS, blob=tmp_path / "x.parquet")
    with pytest.raises(DatasetInvalid, match="has digest"):
        open_dataset(request, tmp_path / "cache")


def test_real_photographs(test_data: Path, tmp_path: Path) -> None:
    imported = import_dataset(test_data / "cifar100sub-test.parquet", tmp_path / "x.parquet")
    request = replace(DIGITS, digest=imported.digest, blob=tmp_path / "x.parquet", size=32, channels=3, threads=2)
    dataset = open_dataset(request, tmp_path / "cache")
    assert (len(dataset.train), len(dataset.val), len(dataset.holdout)) == (280, 40, 80)
    assert dataset.labels is not None
    assert np.bincount(dataset.labels.of(dataset.val).labels).tolist() == [2] * 20
