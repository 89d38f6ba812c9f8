"""Making keys known to the service."""

from __future__ import annotations

import hmac

from sqlalchemy import select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from service.db.models import ApiKey
from service.keys.tokens import Scope, Token, new_key

__all__ = ["DEFAULT_OWNER", "BadKey", "ensure_bootstrap_key", "new_key"]

DEFAULT_OWNER = "default"
"""Owner of everything that is made with the bootstrap key."""


class BadKey(ValueError):
    """The text cannot serve as an API key. The message never shows it: a mistyped secret is still a secret."""


def ensure_bootstrap_key(session: Session, key: str) -> None:
    """Make ``key`` a valid admin key of the owner ``default``; harmless when it already is. The caller commits.

    A key that was revoked stays revoked, or a restart would undo the revocation.

    Raises:
        BadKey: when ``key`` has not the form that :func:`new_key` gives, or its id belongs to another key.
    """
    token = Token.parse(key)
    if token is None:
        raise BadKey("the bootstrap key must look like vt_<8 letters or digits>_<43 URL-safe characters>")
    row = insert(ApiKey).values(
        owner=DEFAULT_OWNER, name="bootstrap", prefix=token.prefix, sha256=token.sha256, scopes=[Scope.ADMIN.value]
    )
    session.execute(row.on_conflict_do_nothing(index_elements=[ApiKey.prefix]))
    stored = session.execute(select(ApiKey.sha256).where(ApiKey.prefix == token.prefix)).scalar_one()
    if not hmac.compare_digest(stored, token.sha256):
        raise BadKey(f"the id {token.prefix} of the bootstrap key belongs to another key; choose another id")
