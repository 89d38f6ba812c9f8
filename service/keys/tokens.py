"""The text form of API keys: ``vt_<id>_<secret>``.

The id finds the row and may be shown; the secret is 32 random bytes, so its hash needs no slow function.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import string
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

_ID_CHARS = 8
_SECRET_BYTES = 32  # 43 characters of URL-safe base64
_ALPHABET = string.ascii_letters + string.digits
_FORMAT = re.compile(r"vt_([A-Za-z0-9]{8})_([A-Za-z0-9_-]{43})")


class Scope(StrEnum):
    """What a key may do. ``admin`` includes the others."""

    JOBS_READ = "jobs:read"
    JOBS_WRITE = "jobs:write"
    ARTIFACTS_READ = "artifacts:read"
    AGENT = "agent"  # measure for the one device agent that the key is of, and nothing else
    ADMIN = "admin"


@dataclass(frozen=True, slots=True)
class Token:
    """A well-formed key, known or not.

    Attributes:
        text: the whole key, a secret.
        prefix: ``vt_<id>``, its public part.
    """

    text: str
    prefix: str

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Read a key; None when the text is not one."""
        match = _FORMAT.fullmatch(text)
        return cls(text=text, prefix=f"vt_{match[1]}") if match else None

    @property
    def sha256(self) -> bytes:
        """What the database keeps of the key."""
        return hashlib.sha256(self.text.encode("ascii")).digest()


def new_key() -> str:
    """Make a random key."""
    public = "".join(secrets.choice(_ALPHABET) for _ in range(_ID_CHARS))
    return f"vt_{public}_{secrets.token_urlsafe(_SECRET_BYTES)}"
