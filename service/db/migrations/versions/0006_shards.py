"""Shards of populations that several workers score, and the kind of the jobs that help."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision: str = "0006"
down_revision: str | None = "0005"
branch_labels: None = None
depends_on: None = None

_KINDS = "'search', 'dataset_import', 'teacher_import', 'supernet_import', 'extract', 'transfer', 'latency_table'"


def upgrade() -> None:
    op.drop_constraint(op.f("ck_job_kind"), "job", type_="check")
    op.create_check_constraint(op.f("ck_job_kind"), "job", f"kind IN ({_KINDS}, 'scoring')")
    op.create_table(
        "shard",
        sa.Column("job_id", sa.UUID(), nullable=False),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("n", sa.Integer(), nullable=False),
        sa.Column("task", sa.Text(), nullable=False),
        sa.Column("holder_id", sa.UUID(), nullable=True),
        sa.Column("holder_fence", sa.BigInteger(), nullable=True),
        sa.Column("hand", sa.Integer(), nullable=True),
        sa.Column("taken_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("result", sa.Text(), nullable=True),
        sa.CheckConstraint("(holder_id IS NULL) = (taken_at IS NULL)", name=op.f("ck_shard_taken_by_holder")),
        sa.ForeignKeyConstraint(["job_id"], ["job.id"], name=op.f("fk_shard_job_id_job"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job_id", "fence", "n", name=op.f("pk_shard")),
    )


def downgrade() -> None:
    op.drop_table("shard")
    op.execute("DELETE FROM job WHERE kind = 'scoring'")
    op.drop_constraint(op.f("ck_job_kind"), "job", type_="check")
    op.create_check_constraint(op.f("ck_job_kind"), "job", f"kind IN ({_KINDS})")
