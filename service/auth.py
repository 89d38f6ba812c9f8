"""Who asks: bearer keys, checked before anything else of a request is looked at."""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from typing import Annotated
from uuid import UUID

from fastapi import Depends, Request, Security
from fastapi.security import HTTPBearer, SecurityScopes
from starlette.types import ASGIApp, Receive, Scope, Send

from service.errors import Forbidden, Unauthorized
from service.keys.repository import find_key, note_use
from service.keys.tokens import Scope as KeyScope
from service.keys.tokens import Token
from service.services import Services, services

PUBLIC_PATHS = frozenset({"/healthz", "/readyz", "/readyz/workers", "/openapi.json"})
"""Paths that need no key. Everything else does, so that a new route cannot be open by mistake."""

_CHALLENGE = 'Bearer realm="vitailor"'

# Compared with when the id is unknown, so that known and unknown ids take the same time.
_NOBODY = bytes(32)


@dataclass(frozen=True, slots=True)
class Caller:
    """The owner on whose behalf a request acts, and what its key allows."""

    owner: str
    key_id: UUID
    scopes: frozenset[str]


class Authentication:
    """Middleware that turns the key of a request into a :class:`Caller`, or refuses the request."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection.

        Raises:
            Unauthorized: without a valid key.
        """
        if scope["type"] == "http":
            request = Request(scope, receive)
            if _path_below_root(scope) not in PUBLIC_PATHS:
                scope["state"]["caller"] = await _authenticate(request)
        await self._app(scope, receive, send)


def _path_below_root(scope: Scope) -> str:
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", "").rstrip("/"))


async def _authenticate(request: Request) -> Caller:
    scheme, _, text = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not text.strip():
        raise Unauthorized(
            "The request carries no API key; send the header Authorization: Bearer <key>.",
            headers={"WWW-Authenticate": _CHALLENGE},
        )
    caller = await _caller_of(services(request), text.strip())
    if caller is None:
        raise Unauthorized(
            "The API key is not valid: unknown, expired or revoked.",
            headers={"WWW-Authenticate": f'{_CHALLENGE}, error="invalid_token"'},
        )
    return caller


async def _caller_of(parts: Services, text: str) -> Caller | None:
    token = Token.parse(text)
    if token is None:
        return None
    async with parts.sessions() as session:
        key = await find_key(session, token.prefix)
        matches = hmac.compare_digest(key.sha256 if key else _NOBODY, token.sha256)
        if key is None or not matches or not key.is_valid:
            return None
        if not key.use_is_noted:
            await note_use(session, key.id)
            await session.commit()
    return Caller(key.owner, key.id, frozenset(key.scopes))


_bearer = HTTPBearer(scheme_name="ApiKey", bearerFormat="vt_<id>_<secret>", description="An API key.", auto_error=False)


async def _authorised(
    request: Request, needed: SecurityScopes, _documented: Annotated[object, Depends(_bearer)]
) -> Caller:
    caller: Caller = request.state.caller
    missing = [scope for scope in needed.scopes if scope not in caller.scopes]
    if missing and KeyScope.ADMIN not in caller.scopes:
        raise Forbidden(
            f"The key lacks the scope {missing[0]}; it has {', '.join(sorted(caller.scopes)) or 'none'}.",
            extra={"required": missing},
        )
    return caller


JobReader = Annotated[Caller, Security(_authorised, scopes=[KeyScope.JOBS_READ.value])]
JobWriter = Annotated[Caller, Security(_authorised, scopes=[KeyScope.JOBS_WRITE.value])]
Administrator = Annotated[Caller, Security(_authorised, scopes=[KeyScope.ADMIN.value])]
AgentCaller = Annotated[Caller, Security(_authorised, scopes=[KeyScope.AGENT.value])]
ArtifactReader = Annotated[Caller, Security(_authorised, scopes=[KeyScope.ARTIFACTS_READ.value])]
