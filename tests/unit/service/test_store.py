"""The artifact store: one suite for every kind of store, then what only a local folder must promise."""

from __future__ import annotations

import asyncio
import hashlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from obstore.store import MemoryStore

from service.errors import StorageFull
from service.store import ArtifactStore, BlobCorrupt, BlobMissing, Stored, open_store
from service.store.base import CHUNK_BYTES, blob_key, partial_file
from service.store.local import LocalStore
from service.store.remote import RemoteStore

CONTENT = bytes(range(256)) * (3 * CHUNK_BYTES // 256) + b"the end"
DIGEST = hashlib.sha256(CONTENT).hexdigest()
ABSENT = "0" * 64


@pytest.fixture(params=["local", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ArtifactStore:
    return LocalStore(tmp_path / "store") if request.param == "local" else RemoteStore(MemoryStore())


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source"
    path.write_bytes(CONTENT)
    return path


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


async def _collect(store: ArtifactStore, *bounds: int | None) -> bytes:
    return b"".join([chunk async for chunk in await store.open_range_async(DIGEST, *bounds)])  # type: ignore[arg-type]


def test_stored_file_comes_back(store: ArtifactStore, source: Path, tmp_path: Path) -> None:
    assert store.put_file(source) == Stored(DIGEST, len(CONTENT))
    assert store.exists(DIGEST)
    store.fetch(DIGEST, tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == CONTENT


def test_blobs_are_listed_by_their_age(store: ArtifactStore, source: Path, tmp_path: Path) -> None:
    store.put_file(source)
    other = tmp_path / "other"
    other.write_bytes(b"other")
    second = store.put_file(other).sha256
    assert set(store.digests()) == {DIGEST, second}
    assert set(store.digests(min_age_s=3600)) == set()
    store.delete(second)
    assert list(store.digests()) == [DIGEST]


def test_content_that_is_stored_again_is_young_again(source: Path, tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store")
    store.put_file(source)
    [blob] = _files(tmp_path / "store")
    os.utime(blob, (0, 0))
    assert list(store.digests(min_age_s=3600)) == [DIGEST]
    store.put_file(source)
    assert list(store.digests(min_age_s=3600)) == []


def test_what_is_no_blob_is_not_listed(source: Path, tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store")
    store.put_file(source)
    (tmp_path / "store" / "blobs" / "sha256" / "ab").mkdir(exist_ok=True)
    (tmp_path / "store" / "blobs" / "sha256" / "ab" / "note.txt").touch()
    assert list(store.digests()) == [DIGEST]


def test_empty_file_is_a_blob(store: ArtifactStore, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    stored = store.put_file(tmp_path / "empty")
    assert stored.size == 0
    assert list(store.open_range(stored.sha256)) == []
    store.fetch(stored.sha256, tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == b""


@pytest.mark.parametrize(
    ("start", "end"),
    [
        (0, None),
        (0, 1),
        (CHUNK_BYTES - 1, CHUNK_BYTES + 1),
        (len(CONTENT) - 3, None),
        (5, 5),
        (7, len(CONTENT) + 100),
        (len(CONTENT), None),
        (len(CONTENT) + 9, None),
    ],
)
def test_range_is_that_of_a_slice(store: ArtifactStore, source: Path, start: int, end: int | None) -> None:
    store.put_file(source)
    assert b"".join(store.open_range(DIGEST, start, end)) == CONTENT[start:end]
    assert asyncio.run(_collect(store, start, end)) == CONTENT[start:end]


@pytest.mark.parametrize(("start", "end"), [(-1, None), (3, 2)])
def test_impossible_range_is_refused(store: ArtifactStore, source: Path, start: int, end: int | None) -> None:
    store.put_file(source)
    with pytest.raises(ValueError, match="0 <= start <= end"):
        store.open_range(DIGEST, start, end)


@pytest.mark.parametrize("digest", ["", "0" * 63, "0" * 65, "G" * 64, "A" * 64, "../" + "0" * 61, "0" * 64 + "\n"])
def test_only_digests_name_blobs(store: ArtifactStore, tmp_path: Path, digest: str) -> None:
    calls: list[Callable[[], object]] = [
        lambda: store.exists(digest),
        lambda: store.open_range(digest),
        lambda: store.delete(digest),
        lambda: store.fetch(digest, tmp_path / "copy"),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="64 lower-case hex digits"):
            call()


def test_missing_blob_is_named_before_the_first_byte(store: ArtifactStore, tmp_path: Path) -> None:
    assert not store.exists(ABSENT)
    with pytest.raises(BlobMissing, match=ABSENT):
        store.open_range(ABSENT)
    with pytest.raises(BlobMissing):
        asyncio.run(store.open_range_async(ABSENT))
    with pytest.raises(BlobMissing):
        store.fetch(ABSENT, tmp_path / "copy")
    assert list(tmp_path.glob("*copy*")) == []


def test_deleted_blob_is_gone_and_deleting_again_is_harmless(store: ArtifactStore, source: Path) -> None:
    store.put_file(source)
    store.delete(DIGEST)
    store.delete(DIGEST)
    assert not store.exists(DIGEST)


def test_a_store_is_its_first_owners(store: ArtifactStore, tmp_path: Path) -> None:
    assert [store.claim("a"), store.claim("b"), store.claim("a")] == ["a", "a", "a"]
    assert list(store.digests()) == []


def test_simultaneous_writers_of_one_content_all_succeed(store: ArtifactStore, source: Path) -> None:
    results: list[Stored] = []
    threads = [threading.Thread(target=lambda: results.append(store.put_file(source))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [Stored(DIGEST, len(CONTENT))] * 8
    assert b"".join(store.open_range(DIGEST)) == CONTENT


def test_unreadable_source_is_an_os_error(store: ArtifactStore, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        store.put_file(tmp_path / "nothing")


def test_damaged_blob_is_never_handed_out(tmp_path: Path, source: Path) -> None:
    store = LocalStore(tmp_path / "store")
    store.put_file(source)
    blob = tmp_path / "store" / blob_key(DIGEST)
    blob.write_bytes(CONTENT[:-1] + b"D")
    target = tmp_path / "copies" / "copy"
    target.parent.mkdir()
    with pytest.raises(BlobCorrupt, match=DIGEST):
        store.fetch(DIGEST, target)
    assert _files(target.parent) == []


def test_damaged_remote_blob_is_never_handed_out(tmp_path: Path) -> None:
    objects = MemoryStore()
    objects.put(blob_key(DIGEST), b"something else")
    with pytest.raises(BlobCorrupt):
        RemoteStore(objects).fetch(DIGEST, tmp_path / "copy")


def test_file_that_changes_while_it_is_sent_is_not_stored(tmp_path: Path, source: Path) -> None:
    class ChangedAfterMeasuring(RemoteStore):
        def exists(self, sha256: str) -> bool:
            source.write_bytes(b"changed")
            return super().exists(sha256)

    store = ChangedAfterMeasuring(MemoryStore())
    with pytest.raises(BlobCorrupt):
        store.put_file(source)
    assert not store.exists(DIGEST)


def test_local_store_keeps_others_out_and_leaves_no_partial_files(tmp_path: Path, source: Path) -> None:
    LocalStore(tmp_path / "store").put_file(source)
    assert [path.relative_to(tmp_path / "store") for path in _files(tmp_path / "store")] == [Path(blob_key(DIGEST))]
    folders = [tmp_path / "store", *(path for path in (tmp_path / "store").rglob("*") if path.is_dir())]
    assert {oct(path.stat().st_mode & 0o777) for path in folders} == {"0o700"}


def test_local_store_syncs_the_file_before_and_the_folder_after_the_rename(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalStore(tmp_path / "store")
    calls: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def record_sync(fd: int) -> None:
        calls.append("sync " + Path(f"/proc/self/fd/{fd}").readlink().name[:8])
        fsync(fd)

    def record_replace(source: Path, target: Path) -> Path:
        calls.append("rename")
        return replace(source, target)

    monkeypatch.setattr(os, "fsync", record_sync)
    monkeypatch.setattr(Path, "replace", record_replace)
    store.put_file(source)
    made = ["sync store", "sync blobs", "sync sha256"]  # parents of the folders that the first blob needs
    assert calls == ["sync .partial", *made, "rename", f"sync {DIGEST[:2]}"]


def test_local_store_does_not_follow_a_link_in_place_of_a_blob(tmp_path: Path, source: Path) -> None:
    store = LocalStore(tmp_path / "store")
    store.put_file(source)
    blob = tmp_path / "store" / blob_key(DIGEST)
    blob.unlink()
    blob.symlink_to("/etc/passwd")
    with pytest.raises(OSError, match="symbolic links"):
        store.open_range(DIGEST)


def test_reader_is_not_disturbed_by_deletion(tmp_path: Path, source: Path) -> None:
    store = LocalStore(tmp_path / "store")
    store.put_file(source)
    chunks = store.open_range(DIGEST)
    first = next(chunks)
    store.delete(DIGEST)
    assert first + b"".join(chunks) == CONTENT


def test_abandoned_partial_files_are_removed_and_those_under_way_kept(tmp_path: Path) -> None:
    """Whose writer lives is told by a lock and not by a clock."""
    store = LocalStore(tmp_path / "store")
    abandoned = tmp_path / "store/partial/.partial-abandoned"
    abandoned.touch()
    with partial_file(tmp_path / "store/partial") as under_way:
        os.utime(under_way, (0, 0))
        assert store.remove_abandoned() == 1
        assert under_way.exists()
    assert list((tmp_path / "store/partial").iterdir()) == []


def test_full_disk_is_a_typed_error_and_leaves_nothing(tmp_path: Path, source: Path) -> None:
    code = f"""
import resource
from pathlib import Path
from service.errors import StorageFull
from service.store.local import LocalStore

store = LocalStore(Path({str(tmp_path / "store")!r}))
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    store.put_file(Path({str(source)!r}))
except StorageFull as error:
    print(error.code)
"""
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout.strip() == StorageFull.code
    assert _files(tmp_path / "store") == []


def test_url_opens_the_kind_of_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    folder = tmp_path / "a folder"
    assert isinstance(open_store(folder.as_uri()), LocalStore)
    assert folder.is_dir()
    assert isinstance(open_store("s3://bucket/prefix"), RemoteStore)


@pytest.mark.parametrize("url", ["", "/tmp/x", "http://host/x", "file:relative", "file://host/x", "s3://"])
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(ValueError, match="expected file:///folder or s3://bucket/prefix"):
        open_store(url)
