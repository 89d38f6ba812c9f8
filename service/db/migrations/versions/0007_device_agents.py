"""Agents that measure devices elsewhere: who they are, and the networks of their orders."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision: str = "0007"
down_revision: str | None = "0006"
branch_labels: None = None
depends_on: None = None


def upgrade() -> None:
    # Nothing has ever written these columns: there was no agent.
    op.drop_index("ix_device_order", "device")
    op.drop_constraint(op.f("ck_device_one_way"), "device", type_="check")
    for column in ("fence", "lease_until", "measured"):
        op.drop_column("device", column)
    op.add_column("device", sa.Column("session", sa.UUID(), nullable=True))
    op.add_column("device", sa.Column("machine", postgresql.JSONB(astext_type=sa.Text()), nullable=True))
    op.create_index(
        "ix_device_order",
        "device",
        ["owner", "agent", "id"],
        postgresql_where=sa.text("latency_table IS NULL AND error IS NULL AND job_id IS NULL"),
    )
    op.create_table(
        "device_network",
        sa.Column("device_id", sa.UUID(), nullable=False),
        sa.Column("n", sa.Integer(), nullable=False),
        sa.Column("architecture", postgresql.JSONB(astext_type=sa.Text()), nullable=False),
        sa.Column("held_out", sa.Boolean(), nullable=False),
        sa.Column("latency", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.ForeignKeyConstraint(
            ["device_id"], ["device.id"], name=op.f("fk_device_network_device_id_device"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("device_id", "n", name=op.f("pk_device_network")),
    )
    op.create_table(
        "agent",
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("key_id", sa.UUID(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("session", sa.UUID(), nullable=True),
        sa.Column("lease_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("seen_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("info", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.CheckConstraint("(session IS NULL) = (lease_until IS NULL)", name=op.f("ck_agent_session_has_lease")),
        sa.ForeignKeyConstraint(["key_id"], ["api_key.id"], name=op.f("fk_agent_key_id_api_key")),
        sa.PrimaryKeyConstraint("owner", "name", name=op.f("pk_agent")),
        sa.UniqueConstraint("key_id", name=op.f("uq_agent_key_id")),
    )


def downgrade() -> None:
    op.drop_table("agent")
    op.drop_table("device_network")
    # Orders without a table cannot be told from measurements whose job is gone.
    op.execute("DELETE FROM device WHERE agent IS NOT NULL AND latency_table IS NULL")
    op.execute("UPDATE device SET agent = NULL WHERE job_id IS NOT NULL")
    op.drop_index("ix_device_order", "device")
    op.drop_column("device", "machine")
    op.drop_column("device", "session")
    op.add_column("device", sa.Column("fence", sa.BigInteger(), server_default="0", nullable=False))
    op.add_column("device", sa.Column("lease_until", sa.DateTime(timezone=True), nullable=True))
    op.add_column(
        "device",
        sa.Column("measured", postgresql.JSONB(astext_type=sa.Text()), server_default="[]", nullable=False),
    )
    op.create_check_constraint(op.f("ck_device_one_way"), "device", "agent IS NULL OR job_id IS NULL")
    op.create_index(
        "ix_device_order",
        "device",
        ["agent", "id"],
        postgresql_where=sa.text("latency_table IS NULL AND error IS NULL"),
    )
