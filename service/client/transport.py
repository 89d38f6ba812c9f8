"""Requests to the API with the repetitions that are safe, and problems turned into :class:`ApiError`."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from ipaddress import ip_address
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import httpx
from pydantic import ValidationError

from service.client.errors import ApiError, NoServer, Unreachable
from service.client.records import Problem

Json = dict[str, Any]

_RETRIED_STATUSES = frozenset({HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE})
_IN_PROGRESS = "idempotency_in_progress"
_LONGEST_WAIT_S = 10.0


class Transport:
    """Sends requests to one server; not for use by several threads at once.

    Args:
        base_url: such as ``http://127.0.0.1:8000``, with the prefix of a proxy if there is one.
        api_key: sent as bearer token; None where the server asks for none.
        retries: how often a request is repeated when the server does not answer or answers that it cannot just now.
        first_wait_s: pause before the first repetition, doubled for each further one; ``Retry-After`` wins.
        sleep: how to wait; a seam for tests.

    Raises:
        Unreachable: when the URL, the key or the environment's proxy cannot be used.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str | None,
        *,
        timeout_s: float = 30.0,
        retries: int = 3,
        first_wait_s: float = 0.2,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.base_url = base_url.rstrip("/")
        self.sleep = sleep
        self._retries = retries
        self._first_wait_s = first_wait_s
        self._timeout_s = timeout_s
        self._http = _connection(self.base_url, api_key, timeout_s)

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def get(self, path: str, params: Mapping[str, Any] | None = None) -> Any:
        """The JSON at ``path``; parameters that are None are left out.

        Raises:
            ApiError: when the server refuses.
            NoServer: when nothing answers.
        """
        given = {key: value for key, value in (params or {}).items() if value is not None}
        return self._send("GET", path, params=given).json()

    def post(self, path: str, body: Json | None = None, headers: Mapping[str, str] | None = None) -> Any:
        """Send a creating or acting request and return its JSON, None for an answer without content.

        It carries a fresh idempotency key, the same in every repetition, so the server acts at most once.

        Raises:
            ApiError: when the server refuses.
            NoServer: when nothing answers.
        """
        given = {"Idempotency-Key": str(uuid4()), **(headers or {})}
        response = (
            self._send("POST", path, headers=given) if body is None else self._send_json("POST", path, body, given)
        )
        return response.json() if response.content else None

    def put(self, path: str, body: Json) -> Any:
        """Put something where the path says, and return what is there then.

        Raises:
            ApiError: when the server refuses.
            NoServer: when nothing answers.
        """
        return self._send_json("PUT", path, body, {}).json()

    def delete(self, path: str) -> None:
        """Delete what is at ``path``.

        Raises:
            ApiError: when the server refuses.
            NoServer: when nothing answers.
        """
        self._send("DELETE", path)

    @contextmanager
    def stream(
        self, path: str, *, headers: Mapping[str, str], params: Mapping[str, Any] | None = None, silence_s: float = 30.0
    ) -> Iterator[httpx.Response]:
        """A response whose body the caller reads piece by piece. Not repeated: the caller knows how to go on.

        Args:
            silence_s: how long the server may send nothing.

        Raises:
            ApiError: when the server refuses.
            NoServer: when nothing answers, also while the caller reads.
        """
        timeout = httpx.Timeout(self._timeout_s, read=silence_s)
        try:
            with self._http.stream("GET", path, headers=headers, params=params, timeout=timeout) as response:
                if not response.is_success:
                    response.read()
                    raise refusal_of(response)
                yield response
        except httpx.TransportError as error:
            raise self._no_server(error) from error

    def _send_json(self, method: str, path: str, body: Json, headers: Mapping[str, str]) -> httpx.Response:
        # ASCII: what is no text, such as a file name that is not UTF-8, reaches the server and is refused there.
        content = json.dumps(body).encode()
        return self._send(method, path, content=content, headers={**headers, "Content-Type": "application/json"})

    def _send(self, method: str, path: str, **options: Any) -> httpx.Response:
        wait_s = self._first_wait_s
        for attempt in range(self._retries + 1):
            last = attempt == self._retries
            try:
                response = self._http.request(method, path, **options)
            except httpx.TransportError as error:
                if last:
                    raise self._no_server(error) from error
            else:
                if response.is_success:
                    return response
                refusal = refusal_of(response)
                if last or not _worth_repeating(refusal):
                    raise refusal
                wait_s = max(wait_s, _retry_after(response))
            self.sleep(min(wait_s, _LONGEST_WAIT_S))
            wait_s *= 2
        raise AssertionError("the last attempt returns or raises")

    def _no_server(self, error: httpx.TransportError) -> NoServer:
        return NoServer(self.base_url, str(error) or type(error).__name__)


def _connection(base_url: str, api_key: str | None, timeout_s: float) -> httpx.Client:
    try:
        url = httpx.URL(base_url)
    except httpx.InvalidURL as error:
        raise Unreachable(f"{base_url!r} is no URL: {error}") from error
    if url.scheme not in ("http", "https") or not url.host:
        raise Unreachable(f"{base_url!r} is not the URL of a server, such as http://127.0.0.1:8000")
    if api_key is not None and not (api_key.isascii() and api_key.isprintable()):
        raise Unreachable("the API key holds characters that no key has; it is one line such as vt_<id>_<secret>")
    try:
        return httpx.Client(
            base_url=url,
            headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
            timeout=timeout_s,
            # The environment's proxy cannot reach this machine's own addresses.
            trust_env=not _is_loopback(url.host),
        )
    except (httpx.InvalidURL, ValueError, ImportError) as error:
        raise Unreachable(f"the proxy that the environment names cannot be used: {error}") from error


def segment(text: str) -> str:
    """A text as one part of a path: whatever was given for an id names no other path."""
    return quote(text.encode("utf-8", "surrogateescape"), safe="")


def refusal_of(response: httpx.Response) -> ApiError:
    """The error that a response which is no success stands for, also when it is not the API that answered."""
    try:
        return ApiError(Problem.model_validate_json(response.content))
    except ValidationError:
        detail = f"{response.url} answered without a problem document; is this a ViTailor server?"
        reason = response.reason_phrase or "unexpected answer"
        return ApiError(Problem(title=reason, status=response.status_code, detail=detail))


def _worth_repeating(refusal: ApiError) -> bool:
    return refusal.problem.status in _RETRIED_STATUSES or refusal.problem.code == _IN_PROGRESS


def _retry_after(response: httpx.Response) -> float:
    value = response.headers.get("Retry-After", "")
    return float(value) if value.isdecimal() else 0.0


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
