"""The API process: ``python -m service.main [--fd N]``."""

from __future__ import annotations

import argparse
import signal
import socket
import sys
from types import FrameType
from typing import Never

import uvicorn
from fastapi import FastAPI

from service.app import create_app
from service.keys.tokens import Token
from service.logs import configure_logging
from service.services import Services
from service.settings import Settings

# Time for answers under way. Streams do not use it up, they end when asked to.
_GRACE_S = 5


class ApiServer(uvicorn.Server):
    """A server that asks its open event streams to end when it shuts down, instead of waiting for them in vain."""

    def __init__(self, config: uvicorn.Config, app: FastAPI) -> None:
        super().__init__(config)
        self._app = app

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close listeners, streams and connections, in this order."""
        parts: Services = self._app.state.services
        parts.listener.close()
        await super().shutdown(sockets)


def main() -> None:
    """Serve until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(prog="python -m service.main", description=main.__doc__)
    parser.add_argument("--fd", type=int, help="serve on this inherited, bound socket instead of host and port")
    fd: int | None = parser.parse_args().fd
    settings = Settings()
    if settings.bootstrap_key is not None and Token.parse(settings.bootstrap_key.get_secret_value()) is None:
        parser.error("VITAILOR_BOOTSTRAP_KEY must look like vt_<8 letters or digits>_<43 URL-safe characters>")
    configure_logging()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _exit)  # uvicorn raises the signal again after its own shutdown
    app = create_app(settings)
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        root_path=settings.root_path.rstrip("/"),
        log_config=None,
        access_log=False,  # the middleware writes one line per request
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=_GRACE_S,
    )
    ApiServer(config, app).run(sockets=None if fd is None else [socket.socket(fileno=fd)])


def _exit(_signal: int, _frame: FrameType | None) -> Never:
    sys.exit(0)


if __name__ == "__main__":
    main()
