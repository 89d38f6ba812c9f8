"""The Pareto front in a table of its own, and an index for each order of candidates."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision: str = "0005"
down_revision: str | None = "0004"
branch_labels: None = None
depends_on: None = None

_COSTS = ("params_m", "gmacs", "weight_mb", "peak_mem_mb", "latency_ms")


def upgrade() -> None:
    op.create_table(
        "front_member",
        sa.Column("job_id", sa.UUID(), nullable=False),
        sa.Column("n", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id", "n"],
            ["candidate.job_id", "candidate.n"],
            name=op.f("fk_front_member_job_id_n_candidate"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("job_id", "n", name=op.f("pk_front_member")),
    )
    op.execute("INSERT INTO front_member (job_id, n) SELECT job_id, n FROM candidate WHERE on_front")
    op.drop_index("ix_candidate_front", "candidate")
    op.drop_column("candidate", "on_front")
    op.drop_index("ix_candidate_score", "candidate")
    op.create_index(
        "ix_candidate_score",
        "candidate",
        ["job_id", sa.text("(- score)"), "n"],
        postgresql_where=sa.text("score IS NOT NULL"),
    )
    for name in _COSTS:
        cost = f"(costs ->> '{name}')::double precision"
        op.create_index(
            f"ix_candidate_{name}",
            "candidate",
            ["job_id", sa.text(f"({cost})"), "n"],
            postgresql_where=sa.text(f"{cost} IS NOT NULL"),
        )
    op.create_index("ix_candidate_infeasible", "candidate", ["job_id", "n"], postgresql_where=sa.text("NOT feasible"))
    op.create_index("ix_candidate_rank", "candidate", ["job_id", "rank"], postgresql_where=sa.text("rank IS NOT NULL"))


def downgrade() -> None:
    for name in ("rank", "infeasible", *_COSTS, "score"):
        op.drop_index(f"ix_candidate_{name}", "candidate")
    op.create_index("ix_candidate_score", "candidate", ["job_id", sa.literal_column("score DESC"), "n"])
    op.add_column("candidate", sa.Column("on_front", sa.Boolean(), server_default="false", nullable=False))
    op.execute(
        "UPDATE candidate SET on_front = true FROM front_member AS member "
        "WHERE (member.job_id, member.n) = (candidate.job_id, candidate.n)"
    )
    op.create_index("ix_candidate_front", "candidate", ["job_id"], postgresql_where=sa.text("on_front"))
    op.drop_table("front_member")
