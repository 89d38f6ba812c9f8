"""The tables of latency targets: devices, what is to be measured of them, and the agents that do so elsewhere."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from sqlalchemy import CheckConstraint, ForeignKey, Index, Integer, text
from sqlalchemy.orm import Mapped, mapped_column

from service.db.base import Base, Json, created, uuid_pk


class Device(Base):
    """A latency target: its table, and what is known of it while that is being measured.

    With ``agent`` it is an order for that one: the networks are rows of :class:`DeviceNetwork`, and the job that fits
    the table is made when the last of them is measured.
    """

    __tablename__ = "device"
    __table_args__ = (
        CheckConstraint("(latency_table IS NULL) = (sha256 IS NULL)", name="table_has_digest"),
        Index("ix_device_owner", "owner", text("id DESC")),
        Index(
            "ix_device_order",
            "owner",
            "agent",
            "id",
            postgresql_where=text("latency_table IS NULL AND error IS NULL AND job_id IS NULL"),
        ),
    )
    id: Mapped[UUID] = uuid_pk()
    owner: Mapped[str]
    name: Mapped[str]
    job_id: Mapped[UUID | None] = mapped_column(ForeignKey("job.id", ondelete="SET NULL"), unique=True)
    build: Mapped[Json | None]  # what is to be measured; None of a table that was brought along
    latency_table: Mapped[Json | None]
    sha256: Mapped[str | None]  # digest of the table
    agent: Mapped[str | None]  # name of the device agent that measures
    error: Mapped[Json | None]  # why an agent could not measure
    created_at: Mapped[datetime] = created()
    session: Mapped[UUID | None]  # of the agent's process that works on the order; whatever others send is refused
    machine: Mapped[Json | None]  # what all measurements of the order were made on


class DeviceNetwork(Base):
    """A network of an agent's order, and what it took once that was measured."""

    __tablename__ = "device_network"
    device_id: Mapped[UUID] = mapped_column(ForeignKey("device.id", ondelete="CASCADE"), primary_key=True)
    n: Mapped[int] = mapped_column(Integer, primary_key=True)
    architecture: Mapped[Json]
    held_out: Mapped[bool]
    latency: Mapped[Json | None]


class Agent(Base):
    """Somebody elsewhere who measures, and the process that speaks for it until its lease runs out."""

    __tablename__ = "agent"
    __table_args__ = (CheckConstraint("(session IS NULL) = (lease_until IS NULL)", name="session_has_lease"),)
    owner: Mapped[str] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(primary_key=True)
    key_id: Mapped[UUID] = mapped_column(ForeignKey("api_key.id"), unique=True)
    created_at: Mapped[datetime] = created()
    session: Mapped[UUID | None]
    lease_until: Mapped[datetime | None]
    seen_at: Mapped[datetime | None]
    info: Mapped[Json | None]  # what the process says of its machine
