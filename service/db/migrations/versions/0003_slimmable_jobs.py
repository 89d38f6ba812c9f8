"""Jobs on slimmable networks: imports, extractions, transfers."""

from __future__ import annotations

from alembic import op

revision: str = "0003"
down_revision: str | None = "0002"
branch_labels: None = None
depends_on: None = None

_BEFORE = "kind IN ('search', 'dataset_import', 'teacher_import')"
_AFTER = "kind IN ('search', 'dataset_import', 'teacher_import', 'supernet_import', 'extract', 'transfer')"


def upgrade() -> None:
    op.drop_constraint(op.f("ck_job_kind"), "job", type_="check")
    op.create_check_constraint(op.f("ck_job_kind"), "job", _AFTER)


def downgrade() -> None:
    # What they made goes with them, by the foreign key.
    op.execute("DELETE FROM job WHERE kind IN ('supernet_import', 'extract', 'transfer')")
    op.drop_constraint(op.f("ck_job_kind"), "job", type_="check")
    op.create_check_constraint(op.f("ck_job_kind"), "job", _BEFORE)
