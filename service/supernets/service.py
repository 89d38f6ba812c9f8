"""What can be done with supernets: find the one that a search takes over."""

from __future__ import annotations

from sqlalchemy.ext.asyncio import AsyncSession

from service.errors import ErrorItem, ValidationFailed
from service.ids import BadId, IdKind, format_id, parse_id
from service.supernets.info import SupernetInfo
from service.supernets.repository import SupernetRepository

# As many as help; a user with more supernets looks them up.
_NAMED = 20


async def find_supernet(session: AsyncSession, owner: str, reference: str) -> SupernetInfo:
    """The supernet that a search names.

    Raises:
        ValidationFailed: no such supernet.
    """
    supernets = SupernetRepository(session, owner)
    try:
        row = await supernets.get(parse_id(IdKind.SUPERNET, reference))
    except BadId:
        row = None
    if row is None:
        allowed = [format_id(IdKind.SUPERNET, known.id) for known in await supernets.page(None, _NAMED)]
        detail = f"there is no supernet {reference!r}; name one of GET /supernets by its id"
        items = [ErrorItem("/warm_start/supernet", "unknown_supernet", detail, allowed)]
        raise ValidationFailed(f"warm_start: {detail}.", errors=items)
    return SupernetInfo.from_row(row)
