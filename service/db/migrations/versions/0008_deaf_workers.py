"""Workers say whether messages of the broker reach them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision: str = "0008"
down_revision: str | None = "0007"
branch_labels: None = None
depends_on: None = None


def upgrade() -> None:
    op.add_column("worker", sa.Column("deaf", sa.Boolean(), server_default="false", nullable=False))


def downgrade() -> None:
    op.drop_column("worker", "deaf")
