"""PostgreSQL and Valkey of one data folder, ready to use."""

from __future__ import annotations

import contextlib

from service.embedded.account import server_account
from service.embedded.binaries import postgres_programs, valkey_server
from service.embedded.folder import DataFolder
from service.embedded.postgres import Postgres
from service.embedded.supervisor import Supervisor
from service.embedded.valkey import Valkey
from service.settings import Settings


class Servers:
    """Context manager: both servers run, supervised, while it is entered.

    Attributes:
        folder: the locked data folder.
        supervisor: keeps the servers running and takes further children.
        postgres: the database server.
        valkey: the broker.
        settings: the given settings with the addresses of these servers.
    """

    def __init__(self, settings: Settings, *, durable: bool = True) -> None:
        account = server_account(settings.service_user)
        self.folder = DataFolder(settings.data_dir, account)
        self._account = account
        self._durable = durable
        self._given = settings
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Servers:
        """Lock the folder and start the servers.

        Raises:
            EmbeddedError: the folder or the database files cannot be used, or a server does not start.
        """
        with contextlib.ExitStack() as stack:
            folder = stack.enter_context(self.folder)
            self.postgres = Postgres(
                programs=postgres_programs(self._account, folder.path),
                cluster=folder.path / "postgres",
                sockets=folder.runtime,
                account=self._account,
                durable=self._durable,
            )
            self.valkey = Valkey(valkey_server(self._account, folder.path), folder.runtime, self._account)
            self.postgres.prepare(folder.lock_fd)
            folder.empty_runtime()
            self.supervisor = Supervisor(folder.logs, keep_open=(folder.lock_fd,))
            stack.callback(self.supervisor.stop)
            self.supervisor.start((self.valkey.child(), self.postgres.child()))
            self.postgres.create_database()
            addresses = {
                "data_dir": folder.path,
                "database_url": self.postgres.url(),
                "broker_url": self.valkey.url,
            }
            self.settings = self._given.model_copy(update=addresses)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
