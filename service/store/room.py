"""What "the disk is full" looks like, from the operating system and from libraries that pass it on as text."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from service.errors import StorageFull

_FULL = (errno.ENOSPC, errno.EDQUOT)
_NO_ROOM = frozenset({*_FULL, errno.EFBIG})

# Torch and libraries in Rust (safetensors) have errors of their own, in which the reason is only text.
_IN_WORDS = frozenset(
    {*(os.strerror(code).lower() for code in _FULL), *(f"os error {code}" for code in _FULL), "storagefull"}
)


def is_full(error: BaseException) -> bool:
    """Whether an error, or one that it came from, says that there is no room left."""
    seen: set[int] = set()
    found: BaseException | None = error
    while found is not None and id(found) not in seen:
        seen.add(id(found))
        if isinstance(found, OSError) and found.errno is not None:
            if found.errno in _NO_ROOM:
                return True
        elif any(words in str(found).lower() for words in _IN_WORDS):
            return True
        found = found.__cause__ or found.__context__
    return False


@contextmanager
def room_below(folder: Path) -> Iterator[None]:
    """Turn the operating system's ways to say "full" into ``StorageFull``."""
    try:
        yield
    except OSError as error:
        if error.errno not in _NO_ROOM:
            raise
        raise StorageFull(f"no room left in {folder}: {error.strerror}") from error
