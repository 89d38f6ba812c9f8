"""Reads tar files that nobody vouches for: ustar, GNU and pax (POSIX.1-2017, pax, "ustar Interchange Format").

A compressed tar is expanded into one scratch file first, which has no name and whose size is bounded. The standard
library's reader takes names of any length into memory and expands sparse files; this one does neither.
"""

from __future__ import annotations

import bz2
import gzip
import zlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, BinaryIO, cast

import pyarrow as pa

from workers.data.findings import Findings
from workers.data.limits import MAX_FILE_BYTES, MAX_PATH_BYTES, MIB, Guard
from workers.data.source import SourceError
from workers.data.tree import Member, MemberError, Sieve

COMPRESSIONS = {b"\x1f\x8b": "gz", b"\x28\xb5\x2f\xfd": "zst", b"BZh": "bz2"}
"""First bytes of compressed files, and the compression's name."""

_BLOCK = 512
_MAX_HEADER_BYTES = 64 * 1024  # of pax records and long names: paths have 4096 bytes at most
_FILE_TYPES = frozenset(b"0\0" + b"7")
_MOST_HEADERS = 16  # before one file; honest writers need three
_SPARSE = "GNU.sparse"
_SPECIAL = {
    "1": "a hard link",
    "2": "a symbolic link",
    "3": "a device",
    "4": "a device",
    "6": "a named pipe",
    "S": "a sparse file",
}


@dataclass(frozen=True, slots=True)
class _Entry:
    path: str
    kind: str
    offset: int
    size: int
    sparse: bool


class TarTree:
    """A tar file; its headers are read once, its members one at a time.

    Args:
        path: the file, compressed or not.
        scratch: folder on whose disk there is room for the expanded file.
        findings: where ignored and hostile members are noted.
        guard: bounds the number of members and their bytes.

    Raises:
        SourceError: not a whole tar file, or with members that no archive of images needs.
        LimitExceeded: too many members or bytes.
    """

    def __init__(self, path: Path, scratch: Path, findings: Findings, guard: Guard) -> None:
        self.name = path.name
        compression = compression_of(path)
        self.container = f"tar.{compression}" if compression else "tar"
        self._file: BinaryIO = _expanded(path, compression, scratch, guard) if compression else path.open("rb")
        self._offsets: list[int] = []
        sieve = Sieve(self.name, findings, guard)
        for entry in _entries(self._file, self.name, guard):
            special = "a sparse file" if entry.sparse else _SPECIAL.get(entry.kind)
            sieve.add(entry.path, size=entry.size, key=len(self._offsets), is_folder=entry.kind == "5", special=special)
            self._offsets.append(entry.offset)
        sieve.finish()
        self.members = list(sieve.files.values())
        self.folders = sorted(sieve.folders)

    def read(self, member: Member) -> bytes:
        """The bytes of a file."""
        if member.size > MAX_FILE_BYTES:
            raise MemberError(f"larger than {MAX_FILE_BYTES:,} bytes")
        self._file.seek(self._offsets[member.key])
        return self._file.read(member.size)


def compression_of(path: Path) -> str | None:
    """How a file is compressed, by its first bytes; None when it is not, or unknown."""
    with path.open("rb") as file:
        start = file.read(4)
    return next((name for magic, name in COMPRESSIONS.items() if start.startswith(magic)), None)


def is_tar(path: Path) -> bool:
    """True for a plain tar file: its first header has the right checksum."""
    with path.open("rb") as file:
        return _begins_tar(file.read(_BLOCK))


def _begins_tar(start: bytes) -> bool:
    header = start[:_BLOCK]
    return len(header) == _BLOCK and any(header) and _checksum_is_right(header)


def _expanded(path: Path, compression: str, scratch: Path, guard: Guard) -> BinaryIO:
    # The file has no name: nothing is left behind, however the import ends.
    expanded = TemporaryFile(dir=scratch)  # noqa: SIM115  # the tree keeps it open
    packed = path.stat().st_size
    unpacked = 0
    try:
        with _opened(path, compression) as source:
            while piece := source.read(MIB):
                # Before gigabytes of something else are expanded.
                if not unpacked and not _begins_tar(piece):
                    raise SourceError(f"{path.name!r} is compressed ({compression}), but holds no tar file")
                unpacked += len(piece)
                guard.expanded(packed, unpacked)
                guard.check()
                expanded.write(piece)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise _damaged(path, unpacked, error) from error
    except OSError as error:
        if error.errno is not None:  # of the disk, not of the decompressor
            raise
        raise _damaged(path, unpacked, error) from error
    expanded.flush()
    return cast(BinaryIO, expanded)


def _damaged(path: Path, unpacked: int, error: Exception) -> SourceError:
    return SourceError(f"{path.name!r} is cut off or damaged after {unpacked:,} unpacked bytes: {error}")


def _opened(path: Path, compression: str) -> AbstractContextManager[Any]:
    match compression:
        case "gz":
            return gzip.open(path, "rb")
        case "bz2":
            return bz2.open(path, "rb")
        case _:
            # Arrow brings the only zstd that all our Pythons have. It refuses windows of more than 128 MiB.
            return pa.input_stream(str(path), compression="zstd")  # type: ignore[no-any-return]


def _entries(file: BinaryIO, name: str, guard: Guard) -> Iterator[_Entry]:
    end = file.seek(0, 2)
    position = 0
    overrides: dict[str, str] = {}
    in_a_row = 0
    while True:
        guard.check()
        file.seek(position)
        header = file.read(_BLOCK)
        if not header or not any(header):
            return
        if len(header) < _BLOCK or not _checksum_is_right(header):
            raise SourceError(f"{name!r} is a damaged tar file: no header at byte {position:,}")
        kind = chr(header[156])
        size = _number(header[124:136], name)
        if "size" in overrides and kind not in "xgLK":
            size = int(overrides["size"])
        data = position + _BLOCK
        # A link or folder may declare a size, but has no data (POSIX: the size of these is not to be read).
        following = data if kind in "12345" else data + -(-size // _BLOCK) * _BLOCK
        if size < 0 or (following > data and data + size > end):
            raise SourceError(f"{name!r} is cut off: its file at byte {position:,} goes on beyond the end")
        in_a_row = in_a_row + 1 if kind in "xgLK" else 0
        if in_a_row > _MOST_HEADERS:
            raise SourceError(f"{name!r} has more than {_MOST_HEADERS} extended headers before one file")
        match kind:
            case "x" | "L":
                overrides |= _long(file, kind, size, name)
            case "g" | "K":  # comments on the whole file, targets of links
                pass
            case _:
                path = overrides.get("path") or _short_path(header)
                sparse = _SPARSE in overrides
                # Old writers mark folders only by their name.
                is_folder = kind == "5" or (header[156] in _FILE_TYPES and path.endswith("/"))
                yield _Entry(path, "5" if is_folder else _known(kind), data, 0 if kind in "12345" else size, sparse)
                overrides = {}
        position = following


def _known(kind: str) -> str:
    """Types that the standard leaves to writers are read as plain files, as it asks for."""
    return kind if kind in _SPECIAL else "0"


def _long(file: BinaryIO, kind: str, size: int, name: str) -> dict[str, str]:
    """What stands before a header because it does not fit into it."""
    if size > _MAX_HEADER_BYTES:
        raise SourceError(f"{name!r} has a name of more than {MAX_PATH_BYTES} bytes")
    raw = file.read(size)
    if kind == "L":
        return {"path": _text(raw.split(b"\0", 1)[0])}
    found: dict[str, str] = {}
    while raw.strip(b"\0"):
        length, _, _ = raw.partition(b" ")
        if not length.isdigit() or len(length) > 6 or not 0 < int(length) <= len(raw):
            raise SourceError(f"{name!r} is a damaged tar file: rubbish in an extended header")
        key, _, value = raw[len(length) + 1 : int(length)].partition(b"=")
        found[_text(key)] = _text(value.removesuffix(b"\n"))
        raw = raw[int(length) :]
    size_of_file = found.get("size", "0")
    # str.isdigit also likes digits that int does not, such as superscripts.
    if not (size_of_file.isascii() and size_of_file.isdigit()) or len(size_of_file) > 18:
        raise SourceError(f"{name!r} is a damaged tar file: the size of a file is no number")
    kept: dict[str, str] = {key: found[key] for key in ("path", "size") if key in found}
    if any(key.startswith("GNU.sparse") for key in found):
        kept[_SPARSE] = ""  # one key, however many there are
    return kept


def _short_path(header: bytes) -> str:
    path = _text(header[:100].split(b"\0", 1)[0])
    # GNU's own format uses the place of the prefix for other things, and is told by its magic.
    prefix = _text(header[345:500].split(b"\0", 1)[0]) if header[257:263] == b"ustar\0" else ""
    return f"{prefix}/{path}" if prefix else path


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "backslashreplace")


def _number(field: bytes, name: str) -> int:
    """Octal text, or binary with the highest bit set for large numbers (GNU)."""
    if field[0] & 0x80:
        return int.from_bytes(bytes([field[0] & 0x7F]) + field[1:], "big")
    text = field.split(b"\0", 1)[0].strip()
    try:
        return int(text or b"0", 8)
    except ValueError:
        raise SourceError(f"{name!r} is a damaged tar file: the size of a file is no number") from None


def _checksum_is_right(header: bytes) -> bool:
    try:
        declared = int(header[148:156].split(b"\0", 1)[0].strip() or b"0", 8)
    except ValueError:
        return False
    return declared == sum(header[:148]) + 8 * 0x20 + sum(header[156:])
