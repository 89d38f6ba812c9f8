"""The embedded Valkey: the broker that carries doorbells. It keeps nothing on disk, because nothing in it matters."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from redis import Redis
from redis.exceptions import RedisError

from service.embedded.account import Account
from service.embedded.children import ChildSpec


@dataclass(frozen=True, slots=True)
class Valkey:
    """A Valkey server on a unix socket in the folder ``sockets``."""

    program: Path
    sockets: Path
    account: Account

    @property
    def socket(self) -> Path:
        """Where it listens."""
        return self.sockets / "valkey.sock"

    @property
    def url(self) -> str:
        """Its URL in Celery's spelling."""
        return f"redis+socket://{self.socket}"

    def child(self) -> ChildSpec:
        """The server process."""
        options = {
            "port": "0",
            "unixsocket": str(self.socket),
            "unixsocketperm": "700",
            "dir": str(self.sockets),
            "save": "",
            "appendonly": "no",
            "maxmemory-policy": "noeviction",
            "daemonize": "no",
        }
        arguments = [part for name, value in options.items() for part in (f"--{name}", value)]
        return ChildSpec(name="valkey", argv=(str(self.program), *arguments), ready=self.answers, account=self.account)

    def answers(self) -> bool:
        """Whether the server answers a PING."""
        try:
            with Redis(unix_socket_path=str(self.socket), socket_timeout=5) as client:
                return bool(client.ping())
        except RedisError:
            return False
