from __future__ import annotations

import json
import os
import shutil
import unicodedata
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from service.datasets.findings import FindingCode
from service.errors import DatasetInvalid
from tests.unit.workers.data.pictures import png, save
from workers.data.blob import NO_LABEL, read_images, read_index
from workers.data.importing import ImportedDataset, import_dataset, resolve_import_path
from workers.data.opening import SourceFormat, SourceOptions


def imported(
    path: Path, tmp_path: Path, on_row: Callable[[int, int], None] = lambda done, total: None, **options: Any
) -> ImportedDataset:
    return import_dataset(path, tmp_path / "blob.parquet", options=SourceOptions(**options), on_row=on_row)


def findings(result: ImportedDataset, code: FindingCode) -> list[str]:
    return [finding["path"] for finding in result.report["findings"] if finding["code"] == code]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "pets"
    for i, name in enumerate(["cat/b.png", "cat/a.png", "dog/deep/er/c.png", "emu/d.PNG"]):
        save(root / name, seed=i)
    return root


def test_class_folders_become_labels_in_sorted_order(folder: Path, tmp_path: Path) -> None:
    result = imported(folder, tmp_path)
    assert result.classes == ("cat", "dog", "emu")
    assert result.counts == {"images": 4, "labelled": 4, "classes": {"cat": 2, "dog": 1, "emu": 1}, "splits": {}}
    assert result.image == {"channels": 3, "min_side": 4, "max_side": 6}
    index = read_index(tmp_path / "blob.parquet")
    assert index.classes == result.classes
    assert index.labels.tolist() == [0, 0, 1, 2]
    [images] = read_images(tmp_path / "blob.parquet")
    assert images == [
        (folder / name).read_bytes() for name in ["cat/a.png", "cat/b.png", "dog/deep/er/c.png", "emu/d.PNG"]
    ]


def test_equal_content_gives_equal_bytes_wherever_it_lies(folder: Path, tmp_path: Path) -> None:
    first = imported(folder, tmp_path)
    other = tmp_path / "elsewhere" / "copy"
    other.mkdir(parents=True)
    for name in sorted((p.relative_to(folder) for p in folder.rglob("*.*")), reverse=True):  # written in another order
        save(other / name)
        (other / name).write_bytes((folder / name).read_bytes())
    assert imported(other, tmp_path).digest == first.digest


@pytest.mark.parametrize("change", ["label", "image", "order"])
def test_any_change_changes_the_digest(folder: Path, tmp_path: Path, change: str) -> None:
    before = imported(folder, tmp_path).digest
    match change:
        case "label":
            (folder / "cat").rename(folder / "Cat")
        case "image":
            save(folder / "cat/a.png", seed=99)
        case _:
            (folder / "cat/a.png").rename(folder / "cat/z.png")
    assert imported(folder, tmp_path).digest != before


def test_hidden_and_system_files_are_ignored_and_listed(folder: Path, tmp_path: Path) -> None:
    save(folder / ".ipynb_checkpoints/x.png")
    save(folder / "__MACOSX/cat/x.png")
    (folder / ".DS_Store").write_bytes(b"x")
    (folder / "cat/Thumbs.db").write_bytes(b"x")
    (folder / "cat/notes.txt").write_text("x")
    (folder / "dog/link.png").symlink_to(folder / "cat/a.png")
    result = imported(folder, tmp_path)
    assert result.classes == ("cat", "dog", "emu")
    assert result.counts["images"] == 4
    assert sorted(findings(result, FindingCode.IGNORED)) == [
        ".DS_Store",
        ".ipynb_checkpoints",
        "__MACOSX",
        "cat/Thumbs.db",
        "cat/notes.txt",
        "dog/link.png",
    ]


def test_empty_class_folders_do_not_shift_numbers(folder: Path, tmp_path: Path) -> None:
    (folder / "ant").mkdir()
    (folder / "bee").mkdir()
    (folder / "bee/readme.txt").write_text("no images")
    result = imported(folder, tmp_path)
    assert result.classes == ("cat", "dog", "emu")
    assert findings(result, FindingCode.EMPTY_CLASS) == ["ant", "bee"]


def test_flat_folder_is_unlabelled(tmp_path: Path) -> None:
    for i in range(3):
        save(tmp_path / "flat" / f"{i}.png", seed=i, mode="L")
    result = imported(tmp_path / "flat", tmp_path)
    assert result.classes == ()
    assert result.image["channels"] == 1
    assert read_index(tmp_path / "blob.parquet").labels.tolist() == [NO_LABEL] * 3


def test_labels_can_be_left_out(folder: Path, tmp_path: Path) -> None:
    result = imported(folder, tmp_path, use_labels=False)
    assert result.classes == ()
    assert result.counts["labelled"] == 0


def test_split_folders_share_one_class_list(tmp_path: Path) -> None:
    root = tmp_path / "split"
    for name in ["train/a/1.png", "train/c/2.png", "Validation/a/3.png", "test/b/4.png", "test/c/5.png"]:
        save(root / name)
    result = imported(root, tmp_path)
    assert result.classes == ("a", "b", "c")
    assert result.counts["splits"] == {"test": 2, "train": 2, "val": 1}
    assert findings(result, FindingCode.CLASS_WITHOUT_TRAINING_IMAGES) == ["b"]
    index = read_index(tmp_path / "blob.parquet")
    assert list(zip(index.splits, index.labels.tolist(), strict=True)) == [
        ("test", 1),
        ("test", 2),
        ("train", 0),
        ("train", 2),
        ("val", 0),
    ]


def test_splits_without_classes_are_unlabelled(tmp_path: Path) -> None:
    for name in ["train/1.png", "test/2.png"]:
        save(tmp_path / "split" / name)
    result = imported(tmp_path / "split", tmp_path)
    assert (result.classes, result.counts["splits"]) == ((), {"test": 1, "train": 1})


@pytest.mark.parametrize("name", ["数字", "أرقام", "Größe", "🐈", " with 'quotes' ", "ü" * 120])
def test_class_names_survive(tmp_path: Path, name: str) -> None:
    save(tmp_path / "names" / name / "1.png")
    result = imported(tmp_path / "names", tmp_path)
    assert result.classes == (name,)
    assert read_index(tmp_path / "blob.parquet").classes == (name,)


def test_two_spellings_of_one_name_are_a_clash(tmp_path: Path) -> None:
    for form in ("NFC", "NFD"):
        save(tmp_path / "names" / unicodedata.normalize(form, "Größe") / "1.png")
    with pytest.raises(DatasetInvalid, match=r"'Gr\\xf6\\xdfe'.* both mean 'Größe'"):
        imported(tmp_path / "names", tmp_path)


def test_two_folders_of_one_split_are_a_clash(tmp_path: Path) -> None:
    for name in ("val/1.png", "validation/2.png", "train/3.png"):
        save(tmp_path / "split" / name)
    with pytest.raises(DatasetInvalid, match="both mean 'val'"):
        imported(tmp_path / "split", tmp_path)


def test_undecodable_file_names_are_reported(tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path / "bytes")
    os.mkdir(folder)  # noqa: PTH102  # a name that is no text
    with open(folder + b"/\xff.png", "wb") as file:  # noqa: PTH123
        file.write(b"no image")
    save(tmp_path / "bytes" / "good.png")
    with pytest.raises(DatasetInvalid) as caught:
        imported(tmp_path / "bytes", tmp_path)
    assert caught.value.extra["report"]["findings"][0]["path"] == "\\xff.png"
    json.dumps(caught.value.to_json())


def test_unreadable_images_are_left_out_with_path_and_reason(tmp_path: Path) -> None:
    root = tmp_path / "mostly-good"
    for i in range(40):
        save(root / "a" / f"{i:02}.png", seed=i)
    (root / "a/05.png").write_bytes(png()[:40])
    (root / "a/07.png").write_bytes(b"")
    result = imported(root, tmp_path)
    assert result.counts["images"] == 38
    assert findings(result, FindingCode.UNREADABLE_IMAGE) == ["a/05.png", "a/07.png"]
    assert all(finding["reason"] for finding in result.report["findings"])


def test_too_many_unreadable_images_reject_the_dataset(tmp_path: Path) -> None:
    root = tmp_path / "bad"
    for i in range(18):
        save(root / f"{i:02}.png")
    (root / "18.png").write_bytes(b"broken")
    (root / "19.png").write_bytes(b"broken")
    with pytest.raises(DatasetInvalid, match="2 of 20 rows") as caught:
        imported(root, tmp_path)
    assert caught.value.extra["report"]["finding_counts"]["unreadable_image"] == 2


def test_folder_without_images_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(DatasetInvalid, match="no image in 'empty'"):
        imported(tmp_path / "empty", tmp_path)


def test_on_row_may_stop_the_import(folder: Path, tmp_path: Path) -> None:
    class Enough(Exception):
        pass

    def stop(done: int, total: int) -> None:
        assert total == 4
        if done == 2:
            raise Enough

    with pytest.raises(Enough):
        imported(folder, tmp_path, on_row=stop)


@pytest.mark.parametrize("path", ["../outside", "/etc", "link/x"])
def test_paths_outside_the_root_are_refused(tmp_path: Path, path: str) -> None:
    root = tmp_path / "root"
    root.mkdir()
    save(tmp_path / "outside/x/1.png")
    (root / "link").symlink_to(tmp_path / "outside")
    with pytest.raises(DatasetInvalid, match="leaves the import root"):
        resolve_import_path(root, path)


def test_missing_path_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DatasetInvalid, match="does not exist"):
        resolve_import_path(tmp_path, "nowhere")


def write_parquet(path: Path, columns: dict[str, object], features: object = None) -> Path:
    table = pa.table(columns)
    if features is not None:
        metadata = {"huggingface": json.dumps({"info": {"features": features}})}
        table = table.replace_schema_metadata(metadata)
    pq.write_table(table, path)
    return path


def hf_images(count: int) -> pa.Array:
    rows = [{"bytes": png(seed=i), "path": f"{i}.png"} for i in range(count)]
    return pa.array(rows, pa.struct([("bytes", pa.binary()), ("path", pa.string())]))


def test_parquet_in_the_hugging_face_layout(tmp_path: Path) -> None:
    features = {"label": {"names": ["cat", "dog", "emu"], "_type": "ClassLabel"}}
    path = write_parquet(tmp_path / "x.parquet", {"image": hf_images(3), "label": pa.array([2, 0, 2])}, features)
    result = imported(path, tmp_path)
    assert result.classes == ("cat", "dog", "emu")
    assert read_index(tmp_path / "blob.parquet").labels.tolist() == [2, 0, 2]
    assert findings(result, FindingCode.EMPTY_CLASS) == ["dog"]


def test_parquet_with_raw_bytes_and_text_labels(tmp_path: Path) -> None:
    columns = {"img": [png(1), png(2), png(3)], "label": ["b", None, "a"]}
    result = imported(write_parquet(tmp_path / "x.parquet", columns), tmp_path)
    assert result.classes == ("a", "b")
    assert read_index(tmp_path / "blob.parquet").labels.tolist() == [1, NO_LABEL, 0]
    assert result.counts["labelled"] == 2


def test_a_negative_label_is_no_class_without_names_either(tmp_path: Path) -> None:
    columns = {"image": hf_images(60), "label": pa.array([-1, -7, *[10, 20] * 29])}
    result = imported(write_parquet(tmp_path / "x.parquet", columns), tmp_path)
    assert result.classes == ("10", "20")
    assert [(found["path"], found["reason"]) for found in result.report["findings"]] == [
        ("row 0", "label -1; allowed are 10, 20"),
        ("row 1", "label -7; allowed are 10, 20"),
    ]


@pytest.mark.parametrize("labels", [None, [-1, -1]])
def test_parquet_without_labels(tmp_path: Path, labels: list[int] | None) -> None:
    columns: dict[str, object] = {"image": hf_images(2)}
    if labels is not None:
        columns["label"] = pa.array(labels)
    assert imported(write_parquet(tmp_path / "x.parquet", columns), tmp_path).classes == ()


def test_labels_out_of_range_are_found_by_row(tmp_path: Path) -> None:
    features = {"label": {"names": ["a", "b", "c"], "_type": "ClassLabel"}}
    labels = [0, 1, 2] * 20
    labels[7], labels[30] = -1, 1_000_000
    path = write_parquet(tmp_path / "x.parquet", {"image": hf_images(60), "label": pa.array(labels)}, features)
    result = imported(path, tmp_path)
    assert result.counts["images"] == 58
    assert [f["path"] for f in result.report["findings"]] == ["row 7", "row 30"]
    assert "1000000; allowed are 0, 1, 2" in result.report["findings"][1]["reason"]


def test_split_column_is_honoured(tmp_path: Path) -> None:
    columns = {"image": hf_images(3), "split": ["train", "test", None]}
    result = imported(write_parquet(tmp_path / "x.parquet", columns), tmp_path)
    assert result.counts["splits"] == {"test": 1, "train": 1}


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())], ids=str)
def test_texts_count_however_their_writer_stores_them(kind: pa.DataType, tmp_path: Path) -> None:
    def texts(values: list[str]) -> pa.Array:
        return pa.array(values, pa.string()).cast(kind)

    columns = {"image": hf_images(3), "split": texts(["train", "test", "train"]), "label": texts(["b", "a", "b"])}
    result = imported(write_parquet(tmp_path / "x.parquet", columns), tmp_path)
    assert result.counts["splits"] == {"test": 1, "train": 2}
    assert result.counts["classes"] == {"a": 1, "b": 2}


def test_blob_can_be_imported_again_unchanged(folder: Path, tmp_path: Path) -> None:
    first = imported(folder, tmp_path)
    copy = shutil.copyfile(tmp_path / "blob.parquet", tmp_path / "copy.parquet")
    again = imported(copy, tmp_path)
    assert (again.digest, again.classes) == (first.digest, first.classes)


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"picture": [b"x"]}, "no column of images: found picture"),
        ({"image": [1]}, "has type int64"),
        ({"image": [b"x"], "label": [1.5]}, "has type double"),
        ({"image": [b"x"], "label": ["a\0b"]}, "NUL character"),
        ({"image": [b"x"], "split": [1]}, "'split' has type int64; expected texts"),
    ],
)
def test_unfit_parquet_files_are_refused(tmp_path: Path, columns: dict[str, object], message: str) -> None:
    with pytest.raises(DatasetInvalid, match=message):
        imported(write_parquet(tmp_path / "x.parquet", columns), tmp_path)


@pytest.mark.parametrize(
    ("content", "source_format", "message"),
    [
        (b"hello", SourceFormat.AUTO, "neither a folder nor a file of a known kind"),
        (b"PAR1 but not really", SourceFormat.AUTO, "is not a Parquet file"),
        (b"hello", SourceFormat.PARQUET, "is not a Parquet file"),
        (b"hello", SourceFormat.FOLDER, "neither a folder nor a file of a known kind"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, content: bytes, source_format: SourceFormat, message: str) -> None:
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(DatasetInvalid, match=message):
        imported(tmp_path / "file", tmp_path, source_format=source_format)


def test_real_photographs_in_folders(test_data: Path, tmp_path: Path) -> None:
    with zipfile.ZipFile(test_data / "sign-digits.zip") as archive:
        archive.extractall(tmp_path / "unpacked")
    result = imported(tmp_path / "unpacked" / "sign-digits", tmp_path)
    assert result.classes == tuple("0123456789")
    assert result.counts["splits"] == {"test": 120, "train": 240}
    assert result.counts["classes"] == {str(i): 36 for i in range(10)}
    assert result.image == {"channels": 3, "min_side": 100, "max_side": 100}
    assert result.report["formats"] == {"JPEG": 360}


def test_real_hugging_face_file(test_data: Path, tmp_path: Path) -> None:
    result = imported(test_data / "cifar100sub-test.parquet", tmp_path)
    assert (result.classes[0], result.classes[-1], len(result.classes)) == ("apple", "whale", 20)
    assert set(result.counts["classes"].values()) == {20}
    assert result.report["findings"] == []
