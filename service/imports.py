"""Paths that users name below the server's import root."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import NoReturn

from service.errors import ErrorItem, ValidationFailed, shortened

POINTER = "/source/path"
"""Of datasets and teachers."""


_LONGEST_NAME = 200


def confined_path(asked: str, import_root: Path | None, pointer: str = POINTER) -> str:
    """The path relative to the import root, with every symbolic link on the way followed.

    Whoever reads the files later resolves the path anew; this check answers the client, that one protects the host.

    Args:
        asked: by the user, relative to the root.
        import_root: of the server.
        pointer: of the field that names it.

    Raises:
        ValidationFailed: it is not a file or folder below the root, or there is no root.
    """
    if import_root is None:
        detail = "imports are switched off: the server's VITAILOR_IMPORT_ROOT is not set"
        refuse_path(asked, "imports_disabled", detail, pointer)
    root = import_root.resolve()
    try:
        found = (root / asked).resolve()
        exists = found.exists()
    except (OSError, RuntimeError):  # a name that is too long, a loop of links
        refuse_path(asked, "path_not_found", "the path cannot be read", pointer)
    if not found.is_relative_to(root):
        detail = "the path leads out of the import root; give one relative to that folder"
        refuse_path(asked, "path_outside_root", detail, pointer)
    if not exists:
        refuse_path(asked, "path_not_found", "there is no such file or folder below the import root", pointer)
    return found.relative_to(root).as_posix()


def name_of(path: str) -> str:
    """What is made of a file is called like the file, in one line that can be shown, unless the user has a name."""
    shown = "".join(char if char.isprintable() else " " for char in PurePosixPath(path).name)
    return " ".join(shown.split())[:_LONGEST_NAME].strip() or "file"


def refuse_path(asked: str, code: str, detail: str, pointer: str = POINTER) -> NoReturn:
    """Refuse a request for its path.

    Raises:
        ValidationFailed: always.
    """
    field = pointer.removeprefix("/").replace("/", ".")
    raise ValidationFailed(f"{field} {shortened(asked)!r}: {detail}.", errors=[ErrorItem(pointer, code, detail)])
