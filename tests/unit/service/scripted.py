"""A server that answers as a test wrote down: the far border of the client, where a real one cannot be made to fail."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass(frozen=True)
class Answer:
    """One response; ``break_off`` closes the connection after so many bytes of the body, with the rest promised."""

    status: int = 200
    body: bytes = b"{}"
    headers: dict[str, str] = field(default_factory=lambda: {"Content-Type": "application/json"})
    break_off: int | None = None


def as_json(document: Any, status: int = 200) -> Answer:
    return Answer(status, json.dumps(document).encode())


def problem(status: int, code: str, detail: str = "", **more: Any) -> Answer:
    document = {"title": code, "status": status, "detail": detail, "code": code, **more}
    return Answer(status, json.dumps(document).encode(), {"Content-Type": "application/problem+json"})


def stream(*frames: str) -> Answer:
    return Answer(body="".join(frames).encode(), headers={"Content-Type": "text/event-stream"})


def frame(n: int, kind: str, data: Any) -> str:
    return f"event: {kind}\ndata: {json.dumps(data)}\nid: {n}\n\n"


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    headers: dict[str, str]
    body: Any


@dataclass
class Scripted:
    """``answers`` maps ``"GET /path"`` (without the query) to responses; the last one is given again and again."""

    url: str
    answers: dict[str, list[Answer]]
    requests: list[Request] = field(default_factory=list)

    def paths(self) -> list[str]:
        return [f"{request.method} {request.path}" for request in self.requests]


@contextmanager
def scripted_server(answers: dict[str, list[Answer]]) -> Iterator[Scripted]:
    script = Scripted("", {route: list(queue) for route, queue in answers.items()})

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer()

        def do_POST(self) -> None:
            self._answer()

        def do_PUT(self) -> None:
            self._answer()

        def do_DELETE(self) -> None:
            self._answer()

        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            script.requests.append(Request(self.command, self.path, headers, json.loads(body) if body else None))
            queue = script.answers.get(f"{self.command} {self.path.partition('?')[0]}")
            answer = (queue.pop(0) if len(queue) > 1 else queue[0]) if queue else problem(404, "not_found", "No.")
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(answer.body)))
            self.end_headers()
            self.wfile.write(answer.body[: answer.break_off])
            self.close_connection = answer.break_off is not None

        def log_message(self, format: str, *args: Any) -> None:
            """Tests read ``requests`` instead."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    script.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield script
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
