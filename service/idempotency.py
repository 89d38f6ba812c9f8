"""``Idempotency-Key``: a client that lost an answer sends the request again and gets that answer, not a second job.

The answer is stored in the transaction that does the work, so there is no moment at which one exists without the
other. While that transaction runs it holds an advisory lock named after owner and key; a second request that meets
the lock is told so. A request that was refused has done nothing and leaves nothing: it may be corrected and sent
again under its key.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any

from fastapi import Depends, Header, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from sqlalchemy import delete, func, insert, select
from sqlalchemy.ext.asyncio import AsyncSession

from service.auth import Caller
from service.db.models import Idempotency
from service.errors import IdempotencyInProgress, IdempotencyKeyReuse
from service.http import parsed_body
from service.services import ServicesDep

REPLAYED = "Idempotency-Replayed"

_KeyHeader = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=255,
        pattern="^[!-~]+$",
        description="Any word of your choice, new for each intention: repeating the request with it acts only once.",
    ),
]


def json_response(model: BaseModel, status: int = 200, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """A model as a response whose content can also be stored."""
    return JSONResponse(json.loads(model.model_dump_json()), status, headers=headers)


@dataclass(frozen=True, slots=True)
class Once:
    """One acting request, which is performed at most once for each key of an owner."""

    owner: str
    key: str | None
    request_sha256: bytes
    kept_for: timedelta

    async def perform(self, session: AsyncSession, act: Callable[[], Awaitable[JSONResponse]]) -> JSONResponse:
        """Act, store the answer and commit; or give the answer that the first such request got.

        Raises:
            IdempotencyInProgress: the first request with this key still runs.
            IdempotencyKeyReuse: the key came with another request before.
        """
        stored = await self._recall(session) if self.key is not None else None
        if stored is not None:
            return stored
        response = await act()
        if self.key is not None:
            await self._remember(session, response)
        await session.commit()
        return response

    async def _recall(self, session: AsyncSession) -> JSONResponse | None:
        lock = func.pg_try_advisory_xact_lock(func.hashtextextended(f"{self.owner} {self.key}", 0))
        if not (await session.execute(select(lock))).scalar_one():
            raise IdempotencyInProgress(
                "The first request with this Idempotency-Key still runs; send this one again in a second.",
                headers={"Retry-After": "1"},
            )
        query = select(Idempotency).where(
            Idempotency.owner == self.owner,
            Idempotency.key == self.key,
            Idempotency.created_at > func.now() - self.kept_for,
        )
        row = (await session.execute(query)).scalar_one_or_none()
        if row is None:
            return None
        if not hmac.compare_digest(row.request_sha256, self.request_sha256):
            raise IdempotencyKeyReuse(
                "This Idempotency-Key came with another request before; use a new key for a new intention."
            )
        return JSONResponse(row.body, row.status_code, headers={**row.headers, REPLAYED: "true"})

    async def _remember(self, session: AsyncSession, response: JSONResponse) -> None:
        # Expired answers of this owner go now: nobody else has a reason to look at them, and the table stays small.
        expired = Idempotency.created_at <= func.now() - self.kept_for
        await session.execute(delete(Idempotency).where(Idempotency.owner == self.owner, expired))
        headers = {k: v for k, v in response.headers.items() if k not in ("content-length", "content-type")}
        await session.execute(
            insert(Idempotency).values(
                owner=self.owner,
                key=self.key,
                request_sha256=self.request_sha256,
                status_code=response.status_code,
                headers=headers,
                body=json.loads(bytes(response.body)),
            )
        )


def _fingerprint(request: Request) -> bytes:
    """What makes two requests the same: method, path and the meaning, not the spelling, of the JSON body."""
    meaning: list[Any] = [request.method, request.url.path, request.url.query, parsed_body(request)]
    return hashlib.sha256(json.dumps(meaning, sort_keys=True, separators=(",", ":")).encode()).digest()


async def _once(request: Request, parts: ServicesDep, key: _KeyHeader = None) -> Once:
    caller: Caller = request.state.caller
    kept_for = timedelta(seconds=parts.settings.idempotency_ttl_s)
    return Once(caller.owner, key, _fingerprint(request), kept_for)


OnceDep = Annotated[Once, Depends(_once)]
