"""Latency targets, and the jobs that measure them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision: str = "0004"
down_revision: str | None = "0003"
branch_labels: None = None
depends_on: None = None

_BEFORE = "kind IN ('search', 'dataset_import', 'teacher_import', 'supernet_import', 'extract', 'transfer')"
_AFTER = (
    "kind IN ('search', 'dataset_import', 'teacher_import', 'supernet_import', 'extract', 'transfer', 'latency_table')"
)


def upgrade() -> None:
    op.drop_constraint(op.f("ck_job_kind"), "job", type_="check")
    op.create_check_constraint(op.f("ck_job_kind"), "job", _AFTER)
    op.create_table(
        "device",
        sa.Column("id", sa.UUID(), server_default=sa.text("uuidv7()"), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("job_id", sa.UUID(), nullable=True),
        sa.Column("build", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column("latency_table", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column("sha256", sa.Text(), nullable=True),
        sa.Column("agent", sa.Text(), nullable=True),
        sa.Column("fence", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("lease_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("measured", postgresql.JSONB(astext_type=sa.Text()), server_default="[]", nullable=False),
        sa.Column("error", postgresql.JSONB(astext_type=sa.Text()), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint("(latency_table IS NULL) = (sha256 IS NULL)", name=op.f("ck_device_table_has_digest")),
        sa.CheckConstraint("agent IS NULL OR job_id IS NULL", name=op.f("ck_device_one_way")),
        sa.ForeignKeyConstraint(["job_id"], ["job.id"], name=op.f("fk_device_job_id_job"), ondelete="SET NULL"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_device")),
        sa.UniqueConstraint("job_id", name=op.f("uq_device_job_id")),
    )
    op.create_index("ix_device_owner", "device", ["owner", sa.literal_column("id DESC")])
    op.create_index(
        "ix_device_order",
        "device",
        ["agent", "id"],
        postgresql_where=sa.text("latency_table IS NULL AND error IS NULL"),
    )


def downgrade() -> None:
    op.drop_table("device")
    op.execute("DELETE FROM job WHERE kind = 'latency_table'")
    op.drop_constraint(op.f("ck_job_kind"), "job", type_="check")
    op.create_check_constraint(op.f("ck_job_kind"), "job", _BEFORE)
