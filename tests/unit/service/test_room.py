from __future__ import annotations

import errno

import pytest

from service.store.room import is_full


def raised_from(cause: BaseException) -> RuntimeError:
    try:
        raise RuntimeError("could not save") from cause
    except RuntimeError as error:
        return error


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EFBIG])
def test_every_way_of_the_system_to_say_full_is_known(code: int) -> None:
    assert is_full(OSError(code, "whatever"))
    assert is_full(raised_from(OSError(code, "whatever")))


@pytest.mark.parametrize(
    "text",
    [
        "Error while serializing: I/O error: No space left on device (os error 28)",
        "basic_ios::clear: iostream error: Disk quota exceeded",
    ],
)
def test_libraries_that_pass_it_on_as_text_are_understood(text: str) -> None:
    assert is_full(RuntimeError(text))


@pytest.mark.parametrize("error", [OSError(errno.EACCES, "no"), ValueError("the file is too large"), MemoryError()])
def test_other_errors_are_not_taken_for_it(error: Exception) -> None:
    assert not is_full(error)
