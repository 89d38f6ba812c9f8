"""Reads zip files that nobody vouches for (APPNOTE 6.3.10, sections 4.3 to 4.5).

The standard library's reader takes the whole directory into memory before anything can be counted, so this one reads it
entry by entry. Stored and deflated members are understood. A member is never expanded beyond the size that it declares,
and what it declares must be true.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from workers.data.findings import Findings
from workers.data.limits import MAX_FILE_BYTES, MIB, Guard
from workers.data.source import SourceError
from workers.data.tree import Member, MemberError, Sieve

ZIP_MAGICS = (b"PK\x03\x04", b"PK\x05\x06")
"""First bytes of a zip file with members, and of one without."""

_LOCAL, _CENTRAL, _END = b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06"
_END_64, _LOCATOR_64 = b"PK\x06\x06", b"PK\x06\x07"

_END_FIELDS = struct.Struct("<4sHHHHIIH")
_LOCATOR_64_FIELDS = struct.Struct("<4sIQI")
_END_64_FIELDS = struct.Struct("<4sQHHIIQQQQ")
_CENTRAL_FIELDS = struct.Struct("<4sHHHHHHIIIHHHHHII")
_LOCAL_FIELDS = struct.Struct("<4sHHHHHIIIHH")

_MAX_COMMENT = 0xFFFF
_ENCRYPTED, _UTF_8 = 0x1, 0x800
_STORED, _DEFLATED = 0, 8
_ZIP64_EXTRA, _UNICODE_PATH_EXTRA = 0x0001, 0x7075
_UNIX, _MAC = 3, 19
_KINDS = {0o12: "a symbolic link", 0o2: "a device", 0o6: "a device", 0o1: "a named pipe", 0o14: "a socket"}


@dataclass(frozen=True, slots=True)
class _Entry:
    path: str
    flags: int
    method: int
    crc: int
    packed: int
    size: int
    offset: int
    is_folder: bool
    special: str | None


@dataclass(frozen=True, slots=True)
class _End:
    entries: int
    size: int
    offset: int
    position: int


class ZipTree:
    """A zip file; its list is read once, its members one at a time.

    Args:
        path: the file.
        findings: where ignored and hostile members are noted.
        guard: bounds the number of members and their bytes.

    Raises:
        SourceError: not a whole zip file, encrypted, or with members that no archive of images needs.
        LimitExceeded: too many members or bytes.
    """

    container = "zip"

    def __init__(self, path: Path, findings: Findings, guard: Guard) -> None:
        self.name = path.name
        self._entries: list[_Entry] = []
        self._file: BinaryIO = path.open("rb")
        sieve = Sieve(self.name, findings, guard)
        archive_bytes = path.stat().st_size
        unpacked = 0
        for entry in _entries(self._file, self.name, archive_bytes):
            sieve.add(
                entry.path, size=entry.size, key=len(self._entries), is_folder=entry.is_folder, special=entry.special
            )
            unpacked += entry.size
            self._entries.append(entry)
        sieve.finish()
        guard.expanded(archive_bytes, unpacked)
        self._refuse_overlaps()
        self.members = list(sieve.files.values())
        self.folders = sorted(sieve.folders)

    def read(self, member: Member) -> bytes:
        """The bytes of a file."""
        entry = self._entries[member.key]
        if entry.flags & _ENCRYPTED:
            raise MemberError("encrypted; pack it without a password")
        if entry.method not in (_STORED, _DEFLATED):
            raise MemberError(f"compression method {entry.method}; known are 0 (stored) and 8 (deflate)")
        if max(entry.size, entry.packed) > MAX_FILE_BYTES:
            raise MemberError(f"larger than {MAX_FILE_BYTES:,} bytes")
        packed = self._packed(entry)
        data = packed if entry.method == _STORED else _inflate(packed, entry.size)
        if len(data) != entry.size:
            raise MemberError(f"the archive lies about its size: {entry.size:,} bytes declared, others found")
        if zlib.crc32(data) != entry.crc:
            raise MemberError("wrong checksum: the archive is damaged here")
        return data

    def _packed(self, entry: _Entry) -> bytes:
        self._file.seek(entry.offset)
        header = self._file.read(_LOCAL_FIELDS.size)
        if len(header) < _LOCAL_FIELDS.size or header[:4] != _LOCAL:
            raise MemberError("the archive's list names a place where no member begins")
        name, extra = _LOCAL_FIELDS.unpack(header)[-2:]
        self._file.seek(name + extra, 1)
        data = self._file.read(entry.packed)
        if len(data) < entry.packed:
            raise MemberError("the archive ends in the middle of it")
        return data

    def _refuse_overlaps(self) -> None:
        """Members that share bytes make a bomb of any ratio (Fifield, "A better zip bomb", 2019, section 3)."""
        end = 0
        for entry in sorted(self._entries, key=lambda entry: entry.offset):
            if entry.offset < end:
                raise SourceError(f"members of {self.name!r} share bytes, such as {entry.path!r}: a decompression bomb")
            end = entry.offset + _LOCAL_FIELDS.size + entry.packed


def _inflate(packed: bytes, size: int) -> bytes:
    inflater = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        # One byte more than declared shows that there is more, and costs nothing.
        data = inflater.decompress(packed, size + 1)
    except zlib.error as error:
        raise MemberError(f"the archive is damaged here: {error}") from error
    return data


def _entries(file: BinaryIO, name: str, archive_bytes: int) -> Iterator[_Entry]:
    end = _find_end(file, name, archive_bytes)
    # Whatever was put before the archive moves all offsets; self-extracting programs do that.
    shift = end.position - end.size - end.offset
    if shift < 0:
        raise SourceError(f"{name!r} is a damaged zip file: its list does not fit into it")
    file.seek(end.offset + shift)
    left = end.size
    buffer = b""
    while left or buffer:
        while len(buffer) < _CENTRAL_FIELDS.size + 3 * 0xFFFF and left:
            piece = file.read(min(left, MIB))
            if not piece:
                raise SourceError(f"{name!r} is a damaged zip file: its list is cut off")
            left -= len(piece)
            buffer += piece
        entry, used = _entry(buffer, name, shift)
        buffer = buffer[used:]
        yield entry


def _entry(buffer: bytes, name: str, shift: int) -> tuple[_Entry, int]:
    if len(buffer) < _CENTRAL_FIELDS.size or buffer[:4] != _CENTRAL:
        raise SourceError(f"{name!r} is a damaged zip file: rubbish in its list")
    (_, made_by, _, flags, method, _, _, crc, packed, size, *lengths, _, _, attributes, offset) = (
        _CENTRAL_FIELDS.unpack_from(buffer)
    )
    name_length, extra_length, comment_length = lengths
    start = _CENTRAL_FIELDS.size
    used = start + name_length + extra_length + comment_length
    if len(buffer) < used:
        raise SourceError(f"{name!r} is a damaged zip file: its list is cut off")
    raw = buffer[start : start + name_length]
    extra = buffer[start + name_length : start + name_length + extra_length]
    size, packed, offset = _wide(extra, name, [size, packed, offset])
    system, mode = made_by >> 8, attributes >> 16
    path = _text(raw, flags, extra).replace("\\", "/")
    special = _KINDS.get(mode >> 12) if system in (_UNIX, _MAC) else None
    return _Entry(path, flags, method, crc, packed, size, offset + shift, path.endswith("/"), special), used


def _wide(extra: bytes, name: str, values: list[int]) -> list[int]:
    """Fields that did not fit into 32 bits stand in an extra field, in their order (4.5.3)."""
    missing = [i for i, value in enumerate(values) if value == 0xFFFFFFFF]
    if missing:
        field = _extra(extra, _ZIP64_EXTRA) or b""
        if len(field) < 8 * len(missing):
            raise SourceError(f"{name!r} is a damaged zip file: sizes of a member are missing")
        for position, i in enumerate(missing):
            (values[i],) = struct.unpack_from("<Q", field, 8 * position)
    return values


def _text(raw: bytes, flags: int, extra: bytes) -> str:
    """Names are UTF-8 when they say so; many writers of UTF-8 do not, and code page 437 is the standard's default."""
    unicode = _extra(extra, _UNICODE_PATH_EXTRA)
    if unicode and len(unicode) > 5 and struct.unpack_from("<I", unicode, 1)[0] == zlib.crc32(raw):
        raw = unicode[5:]  # Info-ZIP's own field (4.6.9), which holds for the name that it was made from
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return raw.decode("utf-8", "backslashreplace") if flags & _UTF_8 else raw.decode("cp437")


def _extra(extra: bytes, wanted: int) -> bytes | None:
    position = 0
    while position + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, position)
        if kind == wanted:
            return extra[position + 4 : position + 4 + length]
        position += 4 + length
    return None


def _find_end(file: BinaryIO, name: str, archive_bytes: int) -> _End:
    tail_start = max(0, archive_bytes - _END_FIELDS.size - _MAX_COMMENT - _LOCATOR_64_FIELDS.size)
    file.seek(tail_start)
    tail = file.read()
    found = tail.rfind(_END)
    if found < 0 or len(tail) - found < _END_FIELDS.size:
        raise SourceError(f"{name!r} is a zip file without its end: it is cut off, or still being copied")
    _, disk, start_disk, _, entries, size, offset, _ = _END_FIELDS.unpack_from(tail, found)
    if disk or start_disk not in (0, 0xFFFF):
        raise SourceError(f"{name!r} is one part of a zip file in several parts; join them first")
    position = tail_start + found
    locator = tail[max(0, found - _LOCATOR_64_FIELDS.size) : found]
    if len(locator) == _LOCATOR_64_FIELDS.size and locator[:4] == _LOCATOR_64:
        file.seek(min(_LOCATOR_64_FIELDS.unpack(locator)[2], archive_bytes))
        end = file.read(_END_64_FIELDS.size)
        if len(end) < _END_64_FIELDS.size or end[:4] != _END_64:
            raise SourceError(f"{name!r} is a damaged zip file: its 64-bit end is missing")
        *_, entries, size, offset = _END_64_FIELDS.unpack(end)
        position -= _LOCATOR_64_FIELDS.size + _END_64_FIELDS.size
    return _End(entries, size, offset, position)
