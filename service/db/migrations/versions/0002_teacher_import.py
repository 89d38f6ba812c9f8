"""Jobs that register teachers."""

from __future__ import annotations

from alembic import op

revision: str = "0002"
down_revision: str | None = "0001"
branch_labels: None = None
depends_on: None = None


def upgrade() -> None:
    op.drop_constraint(op.f("ck_job_kind"), "job", type_="check")
    op.create_check_constraint(op.f("ck_job_kind"), "job", "kind IN ('search', 'dataset_import', 'teacher_import')")


def downgrade() -> None:
    # Their teachers go with them, by the foreign key.
    op.execute("DELETE FROM job WHERE kind = 'teacher_import'")
    op.drop_constraint(op.f("ck_job_kind"), "job", type_="check")
    op.create_check_constraint(op.f("ck_job_kind"), "job", "kind IN ('search', 'dataset_import')")
