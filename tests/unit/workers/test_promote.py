"""What may enter the store from a run directory."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

from service.store import ArtifactStore, open_store
from workers.promote import FileRefused, upload
from workers.protocol import FileRef


@pytest.fixture
def store(tmp_path: Path) -> ArtifactStore:
    return open_store((tmp_path / "store").as_uri())


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    return folder


def ref(path: str, content: bytes = b"data") -> FileRef:
    return FileRef(name="a.bin", path=path, sha256=sha256(content).hexdigest(), size_bytes=len(content))


@pytest.mark.parametrize("path", ["a.bin", "folder/a.bin", "./a.bin"])
def test_plain_files_below_the_run_directory_enter(store: ArtifactStore, run_dir: Path, path: str) -> None:
    (run_dir / path).parent.mkdir(exist_ok=True)
    (run_dir / path).write_bytes(b"data")
    upload(store, run_dir, [ref(path)], set())
    assert b"".join(store.open_range(ref(path).sha256)) == b"data"
    assert (run_dir / path).read_bytes() == b"data"


def outside(run_dir: Path) -> str:
    (run_dir.parent / "secret").write_bytes(b"data")
    return "../secret"


def absolute(run_dir: Path) -> str:
    outside(run_dir)
    return str(run_dir.parent / "secret")


def link(run_dir: Path) -> str:
    outside(run_dir)
    (run_dir / "a.bin").symlink_to(run_dir.parent / "secret")
    return "a.bin"


def behind_link(run_dir: Path) -> str:
    outside(run_dir)
    (run_dir / "folder").symlink_to(run_dir.parent)
    return "folder/secret"


def folder(run_dir: Path) -> str:
    (run_dir / "a.bin").mkdir()
    return "a.bin"


def below_a_file(run_dir: Path) -> str:
    (run_dir / "a.bin").write_bytes(b"data")
    return "a.bin/b"


def missing(run_dir: Path) -> str:
    return "a.bin"


def other_content(run_dir: Path) -> str:
    (run_dir / "a.bin").write_bytes(b"datA")
    return "a.bin"


def other_size(run_dir: Path) -> str:
    (run_dir / "a.bin").write_bytes(b"data and more")
    return "a.bin"


def nothing(run_dir: Path) -> str:
    return "."


@pytest.mark.parametrize(
    "make",
    [outside, absolute, link, behind_link, folder, below_a_file, missing, other_content, other_size, nothing],
    ids=lambda make: make.__name__,
)
def test_anything_else_is_refused(store: ArtifactStore, run_dir: Path, make: Callable[[Path], str]) -> None:
    path = make(run_dir)
    with pytest.raises(FileRefused, match=r"a\.bin"):
        upload(store, run_dir, [ref(path)], set())
    assert not store.exists(ref(path).sha256)


def test_what_was_stored_before_is_not_read_again_unless_it_is_gone(store: ArtifactStore, run_dir: Path) -> None:
    (run_dir / "a.bin").write_bytes(b"data")
    stored: set[str] = set()
    upload(store, run_dir, [ref("a.bin")], stored)
    (run_dir / "a.bin").unlink()
    upload(store, run_dir, [ref("a.bin")], stored)
    store.delete(ref("a.bin").sha256)
    with pytest.raises(FileRefused, match="does not exist"):
        upload(store, run_dir, [ref("a.bin")], stored)


def test_what_lies_in_the_store_already_is_read_all_the_same(store: ArtifactStore, run_dir: Path) -> None:
    (run_dir / "a.bin").write_bytes(b"data")
    upload(store, run_dir, [ref("a.bin")], set())
    (run_dir / "a.bin").write_bytes(b"datA")
    with pytest.raises(FileRefused, match="announced"):
        upload(store, run_dir, [ref("a.bin")], set())
