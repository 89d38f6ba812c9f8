"""The whole service on one machine: servers, schema, key, and the service's own processes."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Sequence

from service.db.engine import ApplicationName, session_factory, sync_engine
from service.db.migrate import UnknownSchema, upgrade
from service.embedded.applications import address_of, application_children
from service.embedded.children import ChildSpec
from service.embedded.errors import EmbeddedError
from service.embedded.folder import write_private
from service.embedded.servers import Servers
from service.keys.service import BadKey, ensure_bootstrap_key, new_key
from service.settings import Settings

Applications = Callable[[Settings, socket.socket], Sequence[ChildSpec]]


class Embedded:
    """Context manager: the whole service runs, supervised, while it is entered.

    Leaving it stops everything in order; so does the death of this process, whatever its cause.

    Attributes:
        servers: PostgreSQL and Valkey.
        settings: the given settings with their addresses.
        url: where the API answers; also in ``server.json`` of the data folder.
        api_key: a key with all rights; also in the file ``api-key`` of the data folder.
    """

    settings: Settings
    url: str
    api_key: str

    def __init__(
        self, settings: Settings, *, applications: Applications = application_children, durable: bool = True
    ) -> None:
        """Prepare only. ``durable=False`` trades safety against power loss for speed, for tests."""
        self.servers = Servers(settings, durable=durable)
        self._applications = applications
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Embedded:
        """Start everything and return when all of it is ready.

        Raises:
            EmbeddedError: something cannot be started; the message says what to do. Nothing is left running.
        """
        with contextlib.ExitStack() as stack:
            servers = stack.enter_context(self.servers)
            self.settings = servers.settings
            listener = stack.enter_context(_listen(self.settings.host, self.settings.port))
            self.url = address_of(listener)
            self._migrate()
            self.api_key = self._make_key_known()
            servers.supervisor.start(self._applications(self.settings, listener))
            servers.folder.publish({"url": self.url, "pid": os.getpid(), "database_url": self.settings.database_url})
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def pids(self) -> dict[str, int]:
        """Process ids of the children that run now, by name."""
        return self.servers.supervisor.pids()

    def _migrate(self) -> None:
        try:
            upgrade(self.settings.database_url)
        except UnknownSchema as error:
            raise EmbeddedError(f"data folder {self.settings.data_dir}: {error}") from error

    def _make_key_known(self) -> str:
        path = self.settings.data_dir / "api-key"
        if self.settings.bootstrap_key is not None:
            key, origin = self.settings.bootstrap_key.get_secret_value(), "VITAILOR_BOOTSTRAP_KEY"
        elif path.exists():
            key, origin = path.read_text().strip(), str(path)
        else:
            key, origin = new_key(), str(path)
        engine = sync_engine(self.settings.database_url, ApplicationName.LAUNCHER)
        try:
            with session_factory(engine).begin() as session:
                ensure_bootstrap_key(session, key)
        except BadKey as error:
            raise EmbeddedError(f"{origin}: {error}") from error
        finally:
            engine.dispose()
        write_private(path, key + "\n")
        return key


def _listen(host: str, port: int) -> socket.socket:
    """The API's socket. The launcher keeps it, so that clients wait while the API restarts instead of being refused."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise EmbeddedError(
            f"cannot listen on {host} port {port}: {error.strerror}; choose another with --port, 0 for any free one"
        ) from error
