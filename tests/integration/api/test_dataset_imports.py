"""What users put below the import root, imported through HTTP: formats, doctor, and files that mean harm."""

from __future__ import annotations

import io
import struct
import unicodedata
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from service.app import create_app
from service.db.engine import session_factory, sync_engine
from service.embedded.servers import Servers
from service.settings import Settings
from service.store import open_store
from tests.hostile import ARCHIVES, IMAGES, Attack
from tests.imports import ImportDesk
from tests.integration.api.conftest import serving
from tests.integration.api.rows import add_key
from tests.jobs import TRAINER
from tests.servers import fresh_database
from tests.trees import CONTAINERS, tarred, zipped
from tests.unit.workers.data.pictures import encoded, noise, png
from workers.context import WorkerContext


@pytest.fixture(scope="module")
def desk(servers: Servers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ImportDesk]:
    folder = tmp_path_factory.mktemp("imports")
    (folder / "imports").mkdir()
    with fresh_database(servers) as url:
        settings = Settings(
            _env_file=None,
            data_dir=folder / "data",
            database_url=url,
            broker_url=servers.valkey.url,
            import_root=folder / "imports",
            import_max_files=2000,
        )
        engine = sync_engine(url, "test")
        sessions = session_factory(engine)
        with sessions() as session:
            key = add_key(session, owner="ada", scopes=["admin"])
        context = WorkerContext(settings, sessions, open_store(settings.store_location), "test", TRAINER)
        with serving(create_app(settings)) as api:
            api.headers["Authorization"] = f"Bearer {key}"
            yield ImportDesk(api, context, folder / "imports")
        engine.dispose()


PETS = {f"{name}/{i:02}.png": png(100 * n + i) for n, name in enumerate(["cat", "dog"]) for i in range(4)}
SPLIT_PETS = {
    **{f"pets/train/{name}": data for name, data in PETS.items()},
    **{f"pets/test/{name}": png(1000 + i) for i, name in enumerate(PETS)},
}


@pytest.mark.parametrize("files", [PETS, SPLIT_PETS], ids=["classes", "wrapped, with splits"])
def test_every_container_gives_the_dataset_that_the_folder_gives(desk: ImportDesk, files: dict[str, bytes]) -> None:
    folder = desk.run(desk.put("folder", files)).dataset
    assert (folder["status"], folder["classes"]) == ("ready", ["cat", "dog"])
    for name, pack in CONTAINERS.items():
        archive = desk.run(desk.put(name, pack(files))).dataset
        assert (archive["digest"], archive["counts"]) == (folder["digest"], folder["counts"]), name


@pytest.mark.parametrize(
    ("train", "test"),
    [
        ("train", "test"),
        ("Training", "Validation"),
        ("TRAIN_SET", "val_set"),
        ("train2017", "val2017"),
        ("trainset", "testset"),
        ("seg_train", "seg_test"),
        ("train-images", "dev"),
        ("a/b/train/train", "a/b/eval/eval"),
    ],
)
def test_splits_are_known_in_every_usual_spelling(desk: ImportDesk, train: str, test: str) -> None:
    files = {f"{train}/{name}": data for name, data in PETS.items()} | {f"{test}/cat/x.png": png(7)}
    dataset = desk.run(desk.put("spelled.zip", zipped(files))).dataset
    assert (dataset["classes"], dataset["counts"]["splits"]["train"]) == (["cat", "dog"], 8)
    assert len(dataset["counts"]["splits"]) == 2


def test_d1_hidden_and_system_files_are_no_classes(desk: ImportDesk) -> None:
    rubbish = {
        ".ipynb_checkpoints/cat-checkpoint.png": png(),
        "__MACOSX/cat/._00.png": b"x",
        "cat/.DS_Store": b"x",
        "dog/Thumbs.db": b"x",
    }
    path = desk.put("pets.zip", zipped({**PETS, **rubbish}))
    imported = desk.run(path)
    assert imported.dataset["classes"] == ["cat", "dog"]
    assert set(imported.found("ignored")) == {".ipynb_checkpoints", "__MACOSX", "cat/.DS_Store", "dog/Thumbs.db"}


@pytest.mark.parametrize("name", CONTAINERS)
def test_d2_empty_classes_are_findings_and_shift_no_numbers(desk: ImportDesk, name: str) -> None:
    path = desk.put(name, CONTAINERS[name]({"ant/": b"", "bee/readme.txt": b"later", **PETS}))
    imported = desk.run(path)
    assert imported.dataset["classes"] == ["cat", "dog"]
    assert set(imported.found("empty_class")) == {"ant", "bee"}
    rejected = desk.run(path, reject_on=["empty_class"])
    assert rejected.dataset["status"] == "rejected"
    assert "source.reject_on" in rejected.error
    assert "'ant'" in rejected.error


def test_d3_one_class_list_holds_for_all_splits(desk: ImportDesk) -> None:
    names = ["train/a/1.png", "train/b/2.png", "val/a/3.png", "val/c/4.png", "test/a/5.png", "test/b/6.png"]
    imported = desk.run(desk.put("split.zip", zipped({name: png(i) for i, name in enumerate(names)})))
    assert imported.dataset["classes"] == ["a", "b", "c"]
    assert imported.dataset["counts"]["classes"] == {"a": 3, "b": 2, "c": 1}
    assert set(imported.found("class_without_training_images")) == {"c"}
    assert set(imported.found("class_missing_in_split")) == {"b", "c"}
    rejected = desk.run(
        desk.put("split.zip", zipped({name: png(i) for i, name in enumerate(names)})),
        reject_on=["class_without_training_images"],
    )
    assert rejected.dataset["status"] == "rejected"
    assert "'c'" in rejected.error


@pytest.mark.parametrize("pack", [zipped, tarred])
def test_d5_broken_images_are_left_out_with_path_and_reason(desk: ImportDesk, pack: object) -> None:
    broken = {f"cat/{name}": make() for name, make in IMAGES.items()}
    fine = {"cat/trailing.jpg": encoded(noise(16, 16), "JPEG") + b"rubbish" * 100}
    path = desk.put("broken", pack({**PETS, **broken, **fine}))  # type: ignore[operator]
    imported = desk.run(path, max_skipped=0.9)
    assert imported.dataset["status"] == "ready"
    assert set(imported.found("unreadable_image")) == set(broken)
    assert all(imported.found("unreadable_image").values())
    assert imported.dataset["counts"]["images"] == len(PETS) + 1
    rejected = desk.run(path, max_skipped=0)
    assert rejected.dataset["status"] == "rejected"
    assert f"{len(broken)} of {len(broken) + len(PETS) + 1} rows" in rejected.error
    assert set(rejected.found("unreadable_image")) == set(broken)


def test_d6_every_mode_is_counted_and_its_conversion_is_said(desk: ImportDesk) -> None:
    wide = Image.fromarray(np.linspace(0, 65_535, 64).astype(np.uint16).reshape(8, 8))
    files = {
        **{f"a/{mode}.png": encoded(noise(mode=mode)) for mode in ("L", "LA", "1", "P", "RGB", "RGBA")},
        "b/wide.png": encoded(wide),
        "b/wide.tif": encoded(wide, "TIFF"),
        "b/cmyk.jpg": encoded(noise(mode="CMYK"), "JPEG"),
    }
    imported = desk.run(desk.put("modes.zip", zipped(files)))
    modes = imported.report["modes"]
    assert (modes["L"], modes["LA"], modes["1"], modes["P"], modes["CMYK"], modes["RGBA"]) == (1, 1, 1, 1, 1, 1)
    assert modes["I;16"] == 2
    assert set(imported.report["conversions"]) == set(modes) - {"L", "RGB"}
    assert imported.dataset["image"]["channels"] == 3
    grey = {name: data for name, data in files.items() if name in ("a/L.png", "a/LA.png", "b/wide.png")}
    assert desk.run(desk.put("grey.zip", zipped(grey))).dataset["image"]["channels"] == 1


NAMES = ["数字", "أرقام", "Größe", "🐈", " with 'quotes' and \"more\" ", "n" * 250, "ü" * 120]


@pytest.mark.parametrize("container", ["data.zip", "data.tar", "gnu.tar", "folder"])
def test_d11_names_in_any_script_survive(desk: ImportDesk, container: str) -> None:
    files = {f"{name}/{i}.png": png(i) for i, name in enumerate(NAMES)}
    imported = desk.run(desk.put(container, CONTAINERS.get(container, lambda files: files)(files)))  # type: ignore[arg-type]
    assert imported.dataset["classes"] == sorted(NAMES)


def test_d11_a_zip_without_the_utf8_flag_keeps_its_names(desk: ImportDesk) -> None:
    data = bytearray(zipped({f"{name}/{i}.png": png(i) for i, name in enumerate(["Größe", "数字"])}))
    for signature, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        position = data.find(signature)
        while position >= 0:
            struct.pack_into("<H", data, position + offset, 0)
            position = data.find(signature, position + 4)
    assert desk.run(desk.put("flagless.zip", bytes(data))).dataset["classes"] == ["Größe", "数字"]
    dos = zipped({"Gr__e/1.png": png(), "b/2.png": png(1)}).replace(b"Gr__e", "Größe".encode("cp437"))
    assert desk.run(desk.put("dos.zip", dos)).dataset["classes"] == ["Größe", "b"]


@pytest.mark.parametrize("container", ["data.zip", "data.tar", "folder"])
def test_d11_two_spellings_of_one_name_are_a_clash(desk: ImportDesk, container: str) -> None:
    names = [unicodedata.normalize(form, "Größe") for form in ("NFC", "NFD")]
    files = {f"{name}/{i}.png": png(i) for i, name in enumerate(names)}
    imported = desk.run(desk.put(container, CONTAINERS.get(container, lambda files: files)(files)))  # type: ignore[arg-type]
    assert imported.dataset["status"] == "rejected"
    assert r"'Gr\xf6\xdfe'" in imported.error
    folded = desk.run(desk.put("case.zip", zipped({"Cat/1.png": png(), "cat/2.png": png(1)})))
    assert set(folded.found("name_clash")) == {"cat"}


@pytest.mark.parametrize("attack", ARCHIVES, ids=lambda attack: attack.name)
def test_d12_hostile_archives_are_rejected_and_write_nothing(desk: ImportDesk, attack: Attack) -> None:
    path = desk.put(attack.name, attack.content())
    before = sorted(desk.root.rglob("*"))
    imported = desk.run(path)
    assert imported.dataset["status"] == "rejected"
    assert attack.reason in imported.error
    assert sorted(desk.root.rglob("*")) == before
    assert not any(Path(outside).exists() for outside in ("/tmp/outside.png", "/etc/outside.png"))


@pytest.mark.parametrize("container", ["data.zip", "data.tar", "folder"])
def test_d12_more_files_than_allowed_are_refused_by_the_named_limit(desk: ImportDesk, container: str) -> None:
    files = {f"cat/{i}.png": b"" for i in range(2001)}
    imported = desk.run(desk.put(container, CONTAINERS.get(container, lambda files: files)(files)))  # type: ignore[arg-type]
    assert "more than 2,000 files (VITAILOR_IMPORT_MAX_FILES)" in imported.error


def test_members_that_are_not_what_the_list_says_are_left_out(desk: ImportDesk) -> None:
    data = zipped({**PETS, "dog/lies.png": bytes(5000), "dog/secret.png": png(5), "dog/odd.png": png(6)})
    changed = bytearray(data)

    def patch(name: bytes, offset: int, layout: str, value: int) -> None:
        entry = data.rindex(name) - 46
        assert data[entry : entry + 4] == b"PK\x01\x02"
        struct.pack_into(layout, changed, entry + offset, value)

    patch(b"dog/lies.png", 24, "<I", 100)
    patch(b"dog/secret.png", 8, "<H", 1)
    patch(b"dog/odd.png", 10, "<H", 99)
    imported = desk.run(desk.put("lies.zip", bytes(changed)), max_skipped=0.5)
    found = imported.found("unreadable_image")
    assert "lies about its size" in found["dog/lies.png"]
    assert "encrypted" in found["dog/secret.png"]
    assert "method 99" in found["dog/odd.png"]
    assert imported.dataset["counts"]["images"] == len(PETS)


def test_the_last_of_two_members_of_one_name_counts(desk: ImportDesk) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("cat/a.png", png(1))
        with pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr("cat/a.png", png(2))
    imported = desk.run(desk.put("twice.zip", buffer.getvalue()))
    assert set(imported.found("name_clash")) == {"cat/a.png"}
    assert desk.run(desk.put("once.zip", zipped({"cat/a.png": png(2)}))).dataset["digest"] == imported.dataset["digest"]


def test_copies_leaks_and_contradictions_are_found(desk: ImportDesk) -> None:
    photo = noise(8, 6, seed=3).resize((640, 480), Image.Resampling.BICUBIC)
    original = encoded(photo, "JPEG", quality=95)
    files = {
        "train/a/original.jpg": original,
        "train/a/other.png": png(8),
        "train/b/copy.jpg": original,
        "test/a/again.jpg": encoded(photo, "JPEG", quality=70),
        "test/b/small.png": encoded(photo.resize((320, 240))),
        "test/b/another.jpg": encoded(noise(8, 6, seed=4).resize((640, 480)), "JPEG"),
    }
    imported = desk.run(desk.put("copies.zip", zipped(files)))
    assert set(imported.found("duplicate")) == {"train/b/copy.jpg"}
    assert set(imported.found("label_conflict")) == {"train/b/copy.jpg"}
    assert set(imported.found("near_duplicate")) == {"test/b/small.png", "train/a/original.jpg"}
    assert set(imported.found("leakage")) == {"train/a/original.jpg"}
    assert desk.run(desk.put("copies.zip", zipped(files)), reject_on=["leakage"]).dataset["status"] == "rejected"


def test_what_is_lopsided_or_too_small_is_said(desk: ImportDesk) -> None:
    files = {f"many/{i}.png": png(i) for i in range(45)} | {"one/x.png": png(99)}
    imported = desk.run(desk.put("lopsided.zip", zipped(files)))
    assert set(imported.found("imbalance")) == {"one"}
    assert set(imported.found("small_class")) == {"one"}
    assert len(imported.found("few_images")) == 1
    alone = desk.run(desk.put("alone.zip", zipped({name: data for name, data in files.items() if "many" in name})))
    assert set(alone.found("one_class")) == {"many"}


def test_of_an_animation_the_first_frame_counts(desk: ImportDesk) -> None:
    frames = [noise(seed=seed) for seed in range(3)]
    moving = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    imported = desk.run(desk.put("moving.zip", zipped({"a/x.gif": moving, "b/y.png": png(1)})))
    assert set(imported.found("animated")) == {"a/x.gif"}


def test_real_photographs_in_a_zip(desk: ImportDesk, test_data: Path) -> None:
    imported = desk.run(desk.put("sign-digits.zip", (test_data / "sign-digits.zip").read_bytes()))
    assert imported.dataset["classes"] == list("0123456789")
    assert imported.dataset["counts"]["splits"] == {"test": 120, "train": 240}
    assert imported.dataset["counts"]["classes"] == {str(i): 36 for i in range(10)}
    assert (imported.report["container"], imported.report["layout"]) == ("zip", "folder")
    assert imported.report["formats"] == {"JPEG": 360}
