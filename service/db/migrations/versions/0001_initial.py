"""All tables of the first version."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision: str = "0001"
down_revision: str | None = None
branch_labels: None = None
depends_on: None = None


def upgrade() -> None:
    op.create_table(
        "api_key",
        sa.Column("id", sa.UUID(), server_default=sa.text("uuidv7()"), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("prefix", sa.Text(), nullable=False),
        sa.Column("sha256", sa.LargeBinary(), nullable=False),
        sa.Column("scopes", sa.ARRAY(sa.Text()), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("revoked_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("last_used_at", sa.DateTime(timezone=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_api_key")),
        sa.UniqueConstraint("prefix", name=op.f("uq_api_key_prefix")),
    )

    op.create_table(
        "dataset",
        sa.Column("id", sa.UUID(), server_default=sa.text("uuidv7()"), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("status", sa.Text(), server_default="validating", nullable=False),
        sa.Column("source", JSONB(), nullable=False),
        sa.Column("sha256", sa.Text(), nullable=True),
        sa.Column("size_bytes", sa.BigInteger(), nullable=True),
        sa.Column("classes", sa.ARRAY(sa.Text()), server_default="{}", nullable=False),
        sa.Column("counts", JSONB(), server_default="{}", nullable=False),
        sa.Column("image", JSONB(), server_default="{}", nullable=False),
        sa.Column("report", JSONB(), nullable=True),
        sa.Column("error", JSONB(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.CheckConstraint("status <> 'ready' OR sha256 IS NOT NULL", name=op.f("ck_dataset_ready_has_blob")),
        sa.CheckConstraint("status IN ('validating', 'ready', 'rejected')", name=op.f("ck_dataset_status")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_dataset")),
        sa.UniqueConstraint("owner", "name", "version", name=op.f("uq_dataset_owner_name_version")),
    )

    op.create_table(
        "idempotency",
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("request_sha256", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("status_code", sa.Integer(), nullable=False),
        sa.Column("headers", JSONB(), nullable=False),
        sa.Column("body", JSONB(), nullable=False),
        sa.PrimaryKeyConstraint("owner", "key", name=op.f("pk_idempotency")),
    )

    op.create_table(
        "worker",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("queues", sa.ARRAY(sa.Text()), nullable=False),
        sa.Column("slots", sa.Integer(), nullable=False),
        sa.Column("busy", sa.Integer(), nullable=False),
        sa.Column("draining", sa.Boolean(), server_default="false", nullable=False),
        sa.Column("info", JSONB(), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("heartbeat_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_worker")),
    )

    op.create_table(
        "job",
        sa.Column("id", sa.UUID(), server_default=sa.text("uuidv7()"), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("spec", JSONB(), nullable=False),
        sa.Column("meta", JSONB(), server_default="{}", nullable=False),
        sa.Column("dataset_id", sa.UUID(), nullable=True),
        sa.Column("parent_id", sa.UUID(), nullable=True),
        sa.Column("queue", sa.Text(), nullable=False),
        sa.Column("priority", sa.Integer(), server_default="0", nullable=False),
        sa.Column("seed", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.Text(), server_default="queued", nullable=False),
        sa.Column("desired", sa.Text(), server_default="run", nullable=False),
        sa.Column("fence", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("attempts", sa.Integer(), server_default="0", nullable=False),
        sa.Column("failures", sa.Integer(), server_default="0", nullable=False),
        sa.Column("max_failures", sa.Integer(), server_default="3", nullable=False),
        sa.Column("lease_owner", sa.Text(), nullable=True),
        sa.Column("lease_until", sa.DateTime(timezone=True), nullable=True),
        sa.Column("not_before", sa.DateTime(timezone=True), nullable=True),
        sa.Column("published_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("deadline_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("last_seq", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("revision", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("stage", sa.Text(), nullable=True),
        sa.Column("progress", JSONB(), server_default="{}", nullable=False),
        sa.Column("warnings", JSONB(), server_default="[]", nullable=False),
        sa.Column("device_seconds", sa.Double(), server_default="0", nullable=False),
        sa.Column("result", JSONB(), nullable=True),
        sa.Column("error", JSONB(), nullable=True),
        sa.Column("stop_reason", sa.Text(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("heartbeat_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.CheckConstraint(
            "(finished_at IS NOT NULL) = (state IN ('succeeded', 'failed', 'cancelled'))",
            name=op.f("ck_job_terminal_is_finished"),
        ),
        sa.CheckConstraint("(state = 'running') = (lease_until IS NOT NULL)", name=op.f("ck_job_running_has_lease")),
        sa.CheckConstraint("desired IN ('run', 'pause', 'cancel')", name=op.f("ck_job_desired")),
        sa.CheckConstraint("kind IN ('search', 'dataset_import')", name=op.f("ck_job_kind")),
        sa.CheckConstraint(
            "state IN ('queued', 'running', 'paused', 'succeeded', 'failed', 'cancelled')", name=op.f("ck_job_state")
        ),
        sa.CheckConstraint("(lease_until IS NULL) = (lease_owner IS NULL)", name=op.f("ck_job_lease_has_owner")),
        sa.ForeignKeyConstraint(["dataset_id"], ["dataset.id"], name=op.f("fk_job_dataset_id_dataset")),
        sa.ForeignKeyConstraint(["parent_id"], ["job.id"], name=op.f("fk_job_parent_id_job")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_job")),
    )
    op.create_index(
        "ix_job_claim",
        "job",
        ["queue", sa.literal_column("priority DESC"), "id"],
        postgresql_where=sa.text("state = 'queued'"),
    )
    op.create_index("ix_job_lease", "job", ["lease_until"], postgresql_where=sa.text("state = 'running'"))
    op.create_index("ix_job_owner", "job", ["owner", sa.literal_column("id DESC")])

    op.create_table(
        "attempt",
        sa.Column("job_id", sa.UUID(), nullable=False),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("worker", sa.Text(), nullable=False),
        sa.Column("info", JSONB(), server_default="{}", nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("outcome", sa.Text(), nullable=True),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        sa.Column("error", JSONB(), nullable=True),
        sa.ForeignKeyConstraint(["job_id"], ["job.id"], name=op.f("fk_attempt_job_id_job"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job_id", "fence", name=op.f("pk_attempt")),
    )

    op.create_table(
        "candidate",
        sa.Column("job_id", sa.UUID(), nullable=False),
        sa.Column("n", sa.Integer(), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("genotype", sa.ARRAY(sa.Double()), nullable=False),
        sa.Column("parents", sa.ARRAY(sa.Integer()), nullable=False),
        sa.Column("score", sa.Double(), nullable=True),
        sa.Column("scores", JSONB(), server_default="{}", nullable=False),
        sa.Column("costs", JSONB(), nullable=False),
        sa.Column("feasible", sa.Boolean(), nullable=False),
        sa.Column("on_front", sa.Boolean(), server_default="false", nullable=False),
        sa.Column("rank", sa.Integer(), nullable=True),
        sa.Column("architecture", JSONB(), nullable=False),
        sa.Column("accuracy", JSONB(), nullable=True),
        sa.ForeignKeyConstraint(["job_id"], ["job.id"], name=op.f("fk_candidate_job_id_job"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job_id", "n", name=op.f("pk_candidate")),
        sa.UniqueConstraint("job_id", "genotype", name=op.f("uq_candidate_job_id_genotype")),
    )
    op.create_index("ix_candidate_front", "candidate", ["job_id"], postgresql_where=sa.text("on_front"))
    op.create_index("ix_candidate_score", "candidate", ["job_id", sa.literal_column("score DESC"), "n"])

    op.create_table(
        "checkpoint",
        sa.Column("job_id", sa.UUID(), nullable=False),
        sa.Column("n", sa.BigInteger(), nullable=False),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("stage", sa.Text(), nullable=False),
        sa.Column("state", JSONB(), nullable=False),
        sa.Column("files", JSONB(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["job.id"], name=op.f("fk_checkpoint_job_id_job"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job_id", "n", name=op.f("pk_checkpoint")),
    )

    op.create_table(
        "job_event",
        sa.Column("job_id", sa.UUID(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.Column("type", sa.Text(), nullable=False),
        sa.Column("payload", JSONB(), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["job.id"], name=op.f("fk_job_event_job_id_job"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("job_id", "seq", name=op.f("pk_job_event")),
    )

    op.create_table(
        "supernet",
        sa.Column("id", sa.UUID(), server_default=sa.text("uuidv7()"), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("job_id", sa.UUID(), nullable=False),
        sa.Column("method", sa.Text(), nullable=False),
        sa.Column("space", JSONB(), nullable=False),
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("info", JSONB(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["job.id"], name=op.f("fk_supernet_job_id_job"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_supernet")),
        sa.UniqueConstraint("job_id", name=op.f("uq_supernet_job_id")),
    )

    op.create_table(
        "teacher",
        sa.Column("id", sa.UUID(), server_default=sa.text("uuidv7()"), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("job_id", sa.UUID(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("architecture", JSONB(), nullable=False),
        sa.Column("info", JSONB(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(["job_id"], ["job.id"], name=op.f("fk_teacher_job_id_job"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_teacher")),
        sa.UniqueConstraint("job_id", name=op.f("uq_teacher_job_id")),
    )

    op.create_table(
        "artifact",
        sa.Column("id", sa.UUID(), server_default=sa.text("uuidv7()"), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("job_id", sa.UUID(), nullable=False),
        sa.Column("candidate_n", sa.Integer(), nullable=True),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("media_type", sa.Text(), nullable=False),
        sa.Column("sha256", sa.Text(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), server_default=sa.text("now()"), nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id", "candidate_n"],
            ["candidate.job_id", "candidate.n"],
            name=op.f("fk_artifact_job_id_candidate_n_candidate"),
            ondelete="CASCADE",
        ),
        sa.ForeignKeyConstraint(["job_id"], ["job.id"], name=op.f("fk_artifact_job_id_job"), ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_artifact")),
        sa.UniqueConstraint(
            "job_id",
            "candidate_n",
            "name",
            name=op.f("uq_artifact_job_id_candidate_n_name"),
            postgresql_nulls_not_distinct=True,
        ),
    )
    op.create_index("ix_artifact_sha256", "artifact", ["sha256"])


def downgrade() -> None:
    op.drop_table("artifact")
    op.drop_table("teacher")
    op.drop_table("supernet")
    op.drop_table("job_event")
    op.drop_table("checkpoint")
    op.drop_table("candidate")
    op.drop_table("attempt")
    op.drop_table("job")
    op.drop_table("worker")
    op.drop_table("idempotency")
    op.drop_table("dataset")
    op.drop_table("api_key")
