"""The embedded stack with a one-file web server in place of the service's own processes: ``launcher.py DATA_DIR``.

Prints the addresses as one line of JSON when ready, and stops in order on SIGINT, as ``vitailor up`` does.
"""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from service.embedded import Embedded
from service.embedded.applications import address_of
from service.embedded.children import ChildSpec
from service.settings import Settings

_SERVER = """
import http.server, os, socket, sys

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = str(os.getpid()).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

server = http.server.HTTPServer(("127.0.0.1", 0), Handler, bind_and_activate=False)
server.socket = socket.socket(fileno=int(sys.argv[1]))
server.serve_forever()
"""


def web_server(_: Settings, listener: socket.socket) -> Sequence[ChildSpec]:
    """A child that answers every GET with its process id."""
    url, fd = address_of(listener), listener.fileno()

    def answers() -> bool:
        try:
            return bool(get(url))
        except OSError:
            return False

    return [ChildSpec("web", (sys.executable, "-c", _SERVER, str(fd)), ready=answers, pass_fds=(fd,))]


def get(url: str) -> str:
    """The text at ``url``."""
    with urllib.request.urlopen(url, timeout=5) as response:
        return str(response.read().decode())


def main() -> None:
    """Run until SIGINT."""
    settings = Settings(_env_file=None, data_dir=Path(sys.argv[1]), port=0)
    with contextlib.suppress(KeyboardInterrupt), Embedded(settings, applications=web_server) as stack:
        print(json.dumps({"url": stack.url, "key": stack.api_key, "pids": stack.pids()}), flush=True)
        signal.pause()


if __name__ == "__main__":
    main()
