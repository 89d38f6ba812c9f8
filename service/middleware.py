"""What surrounds every request: an id, a log line, a bound on the body, and a problem for whatever goes wrong."""

from __future__ import annotations

import re
import time
from http import HTTPStatus
from uuid import uuid4

import structlog
from fastapi import Request
from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.errors import PayloadTooLarge
from service.problems import as_service_error, problem_response

log = structlog.get_logger(__name__)

MAX_BODY_BYTES = 1 << 20

# Asked for every few seconds by whoever watches the process.
_PROBES = frozenset({"/healthz", "/readyz", "/readyz/workers"})

_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")


class RequestContext:
    """Outermost middleware: see the module. The id is the client's ``X-Request-ID`` when that is a plain word."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        given = request.headers.get("x-request-id", "")
        request_id = given if _REQUEST_ID.fullmatch(given) else uuid4().hex
        scope.setdefault("state", {})["request_id"] = request_id
        with structlog.contextvars.bound_contextvars(request_id=request_id):
            await self._serve(_Exchange(self._app, request, send, request_id))

    async def _serve(self, exchange: _Exchange) -> None:
        started = time.monotonic()
        try:
            await exchange.run()
        finally:
            write = log.debug if exchange.request.url.path in _PROBES else log.info
            write(
                "request",
                method=exchange.request.method,
                path=exchange.request.url.path,
                status=exchange.status,
                duration_ms=round(1000 * (time.monotonic() - started), 1),
            )


class _Exchange:
    """One request and its response. ``status`` is None until the response starts."""

    def __init__(self, app: ASGIApp, request: Request, send: Send, request_id: str) -> None:
        self.request = request
        self.status: int | None = None
        self._app = app
        self._send = send
        self._request_id = request_id
        self._received = 0

    async def run(self) -> None:
        try:
            self._check_announced_length()
            await self._app(self.request.scope, self._receive, self._respond)
        except ClientDisconnect:
            log.info("client_disconnected")
        except Exception as error:
            if self.status is not None:
                # Half a response is out: only closing the connection can still tell the client.
                log.error("response_broken", exc_info=error)
                raise
            response = problem_response(self.request, as_service_error(self.request, error))
            await response(self.request.scope, self.request.receive, self._respond)

    def _check_announced_length(self) -> None:
        length = self.request.headers.get("content-length", "")
        if length.isascii() and length.isdigit() and int(length[:18]) > MAX_BODY_BYTES:
            raise _too_large()

    async def _receive(self) -> Message:
        message = await self.request.receive()
        if message["type"] == "http.request":
            self._received += len(message.get("body", b""))
            if self._received > MAX_BODY_BYTES:
                raise _too_large()
        return message

    async def _respond(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = MutableHeaders(scope=message)
            headers["X-Request-ID"] = self._request_id
            headers["X-Content-Type-Options"] = "nosniff"
            if self.status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
                headers["Connection"] = "close"  # the rest of the body is not read
        await self._send(message)


def _too_large() -> PayloadTooLarge:
    return PayloadTooLarge(f"The body exceeds {MAX_BODY_BYTES} bytes; send less metadata or fewer fields.")
