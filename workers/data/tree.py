"""Files below one root, wherever they lie: in a folder, in a zip or in a tar.

Nothing is ever unpacked to a path that an archive names: members are read into memory one at a time, and their paths
are only compared and shown.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from service.datasets.findings import FindingCode
from workers.data.findings import Findings, printable
from workers.data.limits import MAX_DEPTH, MAX_FILE_BYTES, MAX_PATH_BYTES, Guard
from workers.data.source import SourceError

Parts = tuple[str, ...]
"""A path below the root as text, folder by folder."""

_SYSTEM_NAMES = frozenset({"__macosx", "thumbs.db", "desktop.ini", "lost+found", "@eadir", "$recycle.bin"})
_DRIVE = re.compile(r"[A-Za-z]:")


class MemberError(ValueError):
    """One file cannot be read; the message is the reason, for the dataset's report."""


class HostileName(ValueError):
    """A path that no honest archive has; the message is the reason."""


@dataclass(frozen=True, slots=True)
class Member:
    """One file.

    Attributes:
        parts: its path; text that JSON can hold.
        size: in bytes, as declared.
        key: where its tree finds it.
    """

    parts: Parts
    size: int
    key: int

    @property
    def where(self) -> str:
        """The path, for reports."""
        return "/".join(self.parts)

    @property
    def suffix(self) -> str:
        """Lower-case suffix with its dot; empty without one."""
        return Path(self.parts[-1]).suffix.lower()


class Tree(Protocol):
    """Files and folders below a root. Hidden, system and special ones are left out, and noted when it is opened."""

    @property
    def name(self) -> str:
        """Of the folder or archive."""
        ...

    @property
    def container(self) -> str:
        """``folder``, ``zip`` or ``tar``, with its compression."""
        ...

    @property
    def members(self) -> Sequence[Member]:
        """All files, in an order that depends on the tree."""
        ...

    @property
    def folders(self) -> Sequence[Parts]:
        """Folders, at least those that hold nothing."""
        ...

    def read(self, member: Member) -> bytes:
        """The bytes of a file, at most :data:`~workers.data.limits.MAX_FILE_BYTES`.

        Raises:
            MemberError: they cannot be read, or are not what is declared.
        """
        ...


def is_hidden(name: str) -> bool:
    """True for names of files and folders that programs leave behind."""
    return name.startswith(".") or name.casefold() in _SYSTEM_NAMES


def parts_of(path: str) -> Parts:
    """Take apart a path of an archive; empty for the root itself.

    Raises:
        HostileName: it leads out of the root, or is no path.
    """
    if "\0" in path:
        raise HostileName("a NUL character in its name")
    if path.startswith(("/", "\\")) or _DRIVE.match(path):
        raise HostileName("an absolute path")
    if ".." in re.split(r"[/\\]", path):
        raise HostileName("a path with '..', which leads out of its folder")
    if len(path.encode()) > MAX_PATH_BYTES:
        raise HostileName(f"a path of more than {MAX_PATH_BYTES} bytes")
    parts = tuple(part for part in path.split("/") if part not in ("", "."))
    if len(parts) > MAX_DEPTH:
        raise HostileName(f"more than {MAX_DEPTH} folders in one another")
    return parts


@dataclass(slots=True)
class Sieve:
    """Collects what an archive lists: keeps files and folders, notes what is hidden, twice there or hostile."""

    name: str
    findings: Findings
    guard: Guard
    files: dict[Parts, Member] = field(default_factory=dict)
    folders: set[Parts] = field(default_factory=set)
    _noted: set[Parts] = field(default_factory=set)
    _hostile: int = 0

    def add(self, path: str, *, size: int, key: int, is_folder: bool = False, special: str | None = None) -> None:
        """One entry of the list; ``special`` says what it is when it is neither file nor folder.

        Raises:
            LimitExceeded: one too many.
        """
        self.guard.member(size)
        shown = path if len(path) <= MAX_PATH_BYTES else path[:MAX_PATH_BYTES]
        try:
            parts = parts_of(path)
        except HostileName as error:
            self.refuse(shown, str(error))
            return
        if special is not None:
            self.refuse(shown, special)
        elif is_folder:
            if not self._is_hidden(parts):
                self.folders.add(parts)
        elif parts and not self._is_hidden(parts):
            self._keep(Member(parts, size, key))

    def refuse(self, path: str, reason: str) -> None:
        """Note an entry for which the whole archive is refused in the end."""
        self._hostile += 1
        self.findings.add(FindingCode.HOSTILE_MEMBER, path, reason)

    def finish(self) -> None:
        """Call at the end of the list.

        Raises:
            SourceError: the archive holds something that no archive of images needs.
        """
        if self._hostile:
            raise SourceError(
                f"{self.name!r} holds {self._hostile} entries that lead out of their folder or are no files, such as "
                f"{self.findings.first(FindingCode.HOSTILE_MEMBER)}; nothing of it was read. Pack it again without them"
            )

    def _keep(self, member: Member) -> None:
        if member.parts in self.files:
            reason = "the archive has two files of this name; the last one counts, as when it is unpacked"
            self.findings.add(FindingCode.NAME_CLASH, member.where, reason)
        self.files[member.parts] = member

    def _is_hidden(self, parts: Parts) -> bool:
        for depth, part in enumerate(parts, start=1):
            if is_hidden(part):
                if parts[:depth] not in self._noted:
                    self._noted.add(parts[:depth])
                    self.findings.add(FindingCode.IGNORED, "/".join(parts[:depth]), "hidden or system name")
                return True
        return False


class FolderTree:
    """A folder on disk. Links are not followed.

    Args:
        root: the folder.
        findings: where ignored files are noted.
        guard: bounds the number of files.

    Raises:
        LimitExceeded: too many files or bytes.
    """

    container = "folder"

    def __init__(self, root: Path, findings: Findings, guard: Guard) -> None:
        self.name = printable(root.name)
        self.members: list[Member] = []
        self.folders: list[Parts] = []
        self._paths: list[Path] = []
        self._walk(root, (), findings, guard)

    def read(self, member: Member) -> bytes:
        """The bytes of a file."""
        try:
            # It may have been replaced since it was listed: by a link out of the root, or by a pipe that blocks.
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
            with open(os.open(self._paths[member.key], flags), "rb") as file:  # noqa: PTH123
                data = file.read(MAX_FILE_BYTES + 1)
        except OSError as error:
            raise MemberError(f"cannot be read: {error.strerror or error}") from error
        if len(data) > MAX_FILE_BYTES:
            raise MemberError(f"larger than {MAX_FILE_BYTES:,} bytes")
        return data

    def _walk(self, folder: Path, parts: Parts, findings: Findings, guard: Guard) -> None:
        for entry in sorted(os.scandir(folder), key=lambda found: found.name):
            here = (*parts, printable(entry.name))
            reason = _reason_to_ignore(entry, len(here))
            if reason:
                guard.member()
                findings.add(FindingCode.IGNORED, "/".join(here), reason)
            elif entry.is_dir(follow_symlinks=False):
                guard.member()
                self.folders.append(here)
                self._walk(Path(entry.path), here, findings, guard)
            else:
                size = entry.stat(follow_symlinks=False).st_size
                guard.member(size)
                self.members.append(Member(here, size, len(self._paths)))
                self._paths.append(Path(entry.path))


def _reason_to_ignore(entry: os.DirEntry[str], depth: int) -> str | None:
    if is_hidden(entry.name):
        return "hidden or system name"
    if entry.is_symlink():
        return "link; links are not followed"
    if entry.is_dir(follow_symlinks=False):
        return f"more than {MAX_DEPTH} folders in one another" if depth >= MAX_DEPTH else None
    return None if entry.is_file(follow_symlinks=False) else "neither file nor folder"


def children(names: Iterable[Parts], base: Parts) -> Iterator[Parts]:
    """Those paths that lie below ``base``, relative to it."""
    depth = len(base)
    return (parts[depth:] for parts in names if len(parts) > depth and parts[:depth] == base)
