"""Shards of the population that a running search scores with the help of other workers."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from sqlalchemy import CheckConstraint, ForeignKey, Integer
from sqlalchemy.orm import Mapped, mapped_column

from service.db.base import Base


class Shard(Base):
    """Some candidates on some batches of images. Rows live as long as their population is being scored.

    ``task`` and ``result`` are JSON as text: what they hold are exact floats that only trainers read.
    """

    __tablename__ = "shard"
    __table_args__ = (CheckConstraint("(holder_id IS NULL) = (taken_at IS NULL)", name="taken_by_holder"),)
    job_id: Mapped[UUID] = mapped_column(ForeignKey("job.id", ondelete="CASCADE"), primary_key=True)  # the search
    fence: Mapped[int] = mapped_column(primary_key=True)  # of its attempt
    n: Mapped[int] = mapped_column(Integer, primary_key=True)  # counts all shards of the attempt
    task: Mapped[str]
    holder_id: Mapped[UUID | None]  # job whose attempt measures it, and which of its processes
    holder_fence: Mapped[int | None]
    hand: Mapped[int | None] = mapped_column(Integer)
    taken_at: Mapped[datetime | None]
    result: Mapped[str | None]
