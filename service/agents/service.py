"""Device agents: who they are, and which process may speak for each."""

from __future__ import annotations

import hmac
from datetime import timedelta
from uuid import UUID

from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from service.agents.repository import AgentRepository, Known, OrderRepository
from service.agents.schemas import NewSession
from service.auth import Caller
from service.db.models import Agent, ApiKey
from service.errors import AgentSuperseded, AgentTaken, ErrorItem, InvalidState, NotFound, ValidationFailed
from service.ids import IdKind, format_id
from service.keys.tokens import Scope, Token

_MOST_AGENTS = 200
"""Of one owner."""

_NAMED = 20


async def put_agent(session: AsyncSession, owner: str, name: str, key: str) -> bool:
    """Make an agent, or give it another key, which ends the session of whoever had the old one. The caller commits.

    Returns:
        Whether the agent is new.

    Raises:
        ValidationFailed: the text is no key, or another one's.
        InvalidState: there are too many agents.
    """
    token = Token.parse(key)
    if token is None:
        raise _bad_key(
            "a key looks like vt_<8 letters or digits>_<43 URL-safe characters>; `vitailor new-key` makes one"
        )
    agents = AgentRepository(session, owner)
    known = await agents.get(name, lock=True)
    if known is None and await agents.count() >= _MOST_AGENTS:
        raise InvalidState(f"There are {_MOST_AGENTS} agents already; delete one that is no longer used.")
    key_id = await _key_of(session, owner, name, token)
    if known is None:
        session.add(Agent(owner=owner, name=name, key_id=key_id))
        await session.flush()
        return True
    row = known.row
    if row.key_id != key_id:
        await agents.revoke(row.key_id)
        row.key_id, row.session, row.lease_until = key_id, None, None
        await session.flush()
    return False


async def remove_agent(session: AsyncSession, owner: str, name: str) -> None:
    """Forget an agent and make its key invalid. Its tables stay. The caller commits.

    Raises:
        NotFound: there is none.
        InvalidState: it has yet to measure devices.
    """
    agents = AgentRepository(session, owner)
    known = await agents.get(name, lock=True)
    if known is None:
        raise no_agent(name)
    waiting = [
        format_id(IdKind.DEVICE, found) for found in await OrderRepository(session, owner).open_ids(name, _NAMED)
    ]
    if waiting:
        detail = f"Agent {name} has yet to measure {', '.join(waiting)}; delete these devices first."
        raise InvalidState(detail, extra={"devices": waiting})
    await agents.revoke(known.row.key_id)
    await session.delete(known.row)
    await session.flush()


async def get_agent(session: AsyncSession, owner: str, name: str) -> Known:
    """The agent of this name.

    Raises:
        NotFound: there is none.
    """
    known = await AgentRepository(session, owner).get(name)
    if known is None:
        raise no_agent(name)
    return known


async def connect(session: AsyncSession, caller: Caller, name: str, new: NewSession, lease_s: float) -> None:
    """Give the right to speak for an agent to the process that asks; repeating it is harmless. The caller commits.

    Raises:
        NotFound: the key is of no agent of this name.
        AgentTaken: another process has it, and was alive until a moment ago.
    """
    known = await AgentRepository(session, caller.owner).get(name, lock=True)
    if known is None or not _may_speak(caller, known.row):
        raise _not_yours(name)
    row = known.row
    wanted = UUID(hex=new.session)
    if known.alive and row.session != wanted:
        host = (row.info or {}).get("host")
        raise AgentTaken(
            f"A process on {host!r} speaks for agent {name}. When it is gone, its lease runs out by itself; "
            "for another machine use another agent.",
            extra={"host": host, "lease_until": row.lease_until.isoformat() if row.lease_until else None},
            headers={"Retry-After": "2"},
        )
    row.session, row.lease_until, row.seen_at = wanted, func.now() + timedelta(seconds=lease_s), func.now()
    row.info = new.model_dump(mode="json", exclude_none=True, exclude={"session"})
    await session.flush()


async def hold(session: AsyncSession, caller: Caller, name: str, session_id: UUID, lease_s: float) -> None:
    """Renew the lease of a session. One that ran out is renewed as well, as long as nobody else has taken over.

    Raises:
        NotFound: the key is of no agent of this name.
        AgentSuperseded: the session is no longer the agent's.
    """
    known = await AgentRepository(session, caller.owner).get(name, lock=True)
    if known is None or not _may_speak(caller, known.row):
        raise _not_yours(name)
    if not await AgentRepository(session, caller.owner).hold(name, session_id, lease_s):
        detail = f"This session of agent {name} is over: another process speaks for it, or its key was changed."
        raise AgentSuperseded(detail)


async def disconnect(session: AsyncSession, caller: Caller, name: str, session_id: UUID) -> None:
    """Give up the right to speak for an agent, so that the next process need not wait. The caller commits.

    Raises:
        NotFound: the key is of no agent of this name.
    """
    known = await AgentRepository(session, caller.owner).get(name, lock=True)
    if known is None or not _may_speak(caller, known.row):
        raise _not_yours(name)
    if known.row.session == session_id:
        known.row.session = known.row.lease_until = None
        await session.flush()


def no_agent(name: str) -> NotFound:
    """The refusal of a name that nobody has."""
    return NotFound(f"There is no agent {name}; `PUT /agents/{name}` makes one.")


async def _key_of(session: AsyncSession, owner: str, name: str, token: Token) -> UUID:
    """The row of an agent's key, made when it is new.

    Raises:
        ValidationFailed: the key is another one's, or was revoked.
    """
    new = insert(ApiKey).values(
        owner=owner, name=f"agent {name}", prefix=token.prefix, sha256=token.sha256, scopes=[Scope.AGENT.value]
    )
    await session.execute(new.on_conflict_do_nothing(index_elements=[ApiKey.prefix]))
    row = (await session.execute(select(ApiKey).where(ApiKey.prefix == token.prefix))).scalar_one()
    mine = row.owner == owner and row.name == f"agent {name}" and row.scopes == [Scope.AGENT.value]
    if not mine or row.revoked_at is not None or not hmac.compare_digest(row.sha256, token.sha256):
        raise _bad_key("this key is not new; make another one with `vitailor new-key`")
    return row.id


def _bad_key(detail: str) -> ValidationFailed:
    # The refusal never shows the key: a mistyped secret is still a secret.
    return ValidationFailed.of([ErrorItem("/key", "bad_key", detail)])


def _may_speak(caller: Caller, agent: Agent) -> bool:
    """A key of an agent speaks for this one alone, else one stolen machine could spoil the tables of all."""
    return caller.key_id == agent.key_id or Scope.ADMIN in caller.scopes


def _not_yours(name: str) -> NotFound:
    return NotFound(f"This key is of no agent {name}.")
