"""The operating-system account that the servers run as: PostgreSQL refuses to run as root."""

from __future__ import annotations

import os
import pwd
import stat
from dataclasses import dataclass
from pathlib import Path

from service.embedded.errors import EmbeddedError


@dataclass(frozen=True, slots=True)
class Account:
    """A user with its primary group; it keeps no other groups."""

    name: str
    uid: int
    gid: int

    @property
    def is_ours(self) -> bool:
        """Whether this process runs as the account already."""
        return self.uid == os.geteuid()

    def give(self, path: Path, mode: int) -> None:
        """Make the account the owner of ``path``, with these permission bits."""
        if not self.is_ours:
            os.chown(path, self.uid, self.gid)
        path.chmod(mode)


def launcher_account() -> Account:
    """The account that this process runs as.

    Raises:
        EmbeddedError: the uid has no entry in the user database, without which PostgreSQL does not start.
    """
    uid = os.geteuid()
    try:
        entry = pwd.getpwuid(uid)
    except KeyError:
        raise EmbeddedError(
            f"user id {uid} has no name on this machine, and PostgreSQL needs one: add it to /etc/passwd"
        ) from None
    return Account(entry.pw_name, uid, os.getegid())


def server_account(service_user: str) -> Account:
    """The account for the servers: our own, or ``service_user`` when we are root.

    Raises:
        EmbeddedError: there is no such user, or it is root itself.
    """
    ours = launcher_account()
    if ours.uid != 0:
        return ours
    try:
        entry = pwd.getpwnam(service_user)
    except KeyError:
        raise EmbeddedError(
            f"the service user {service_user!r} does not exist: set VITAILOR_SERVICE_USER to an unprivileged user"
        ) from None
    if entry.pw_uid == 0:
        raise EmbeddedError(
            f"the service user {service_user!r} is root, and PostgreSQL refuses that: "
            "set VITAILOR_SERVICE_USER to an unprivileged user"
        )
    return Account(entry.pw_name, entry.pw_uid, entry.pw_gid)


def blocking_folder(path: Path, account: Account) -> Path | None:
    """The first existing part of ``path``, itself included, that ``account`` cannot enter; None if it can enter all."""
    for folder in (*reversed(path.parents), path):
        if not folder.exists():
            return None
        status = folder.stat()
        if status.st_uid == account.uid:
            needed = stat.S_IXUSR
        elif status.st_gid == account.gid:
            needed = stat.S_IXGRP
        else:
            needed = stat.S_IXOTH
        if not status.st_mode & needed:
            return folder
    return None
