"""The same files as a folder, a zip or a tar, made for a test."""

from __future__ import annotations

import gzip
import io
import tarfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pyarrow as pa

Files = Mapping[str, bytes]
"""Contents by path; a path that ends with a slash is an empty folder."""


def write_files(root: Path, files: Files) -> None:
    root.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        path = root / name
        if name.endswith("/"):
            path.mkdir(parents=True, exist_ok=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


def zipped(files: Files, compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def tarred(files: Files, tar_format: int = tarfile.PAX_FORMAT) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tar_format) as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.type = tarfile.DIRTYPE if name.endswith("/") else tarfile.REGTYPE
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def zstandard(data: bytes) -> bytes:
    return bytes(pa.Codec("zstd").compress(data).to_pybytes())


CONTAINERS: dict[str, Callable[[Files], bytes]] = {
    "data.zip": zipped,
    "stored.zip": lambda files: zipped(files, zipfile.ZIP_STORED),
    "data.tar": tarred,
    "gnu.tar": lambda files: tarred(files, tarfile.GNU_FORMAT),
    "data.tar.gz": lambda files: gzip.compress(tarred(files)),
    "data.tar.zst": lambda files: zstandard(tarred(files)),
}
"""Every kind of archive, by the name of a file of that kind."""
