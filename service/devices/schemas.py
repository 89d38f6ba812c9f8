"""What the API takes and shows of devices."""

from __future__ import annotations

from enum import StrEnum
from typing import Self

from pydantic import Field

from search.latency import LatencyTable
from service.db.models import TERMINAL_STATES, Device, Job, JobState
from service.devices.repository import OrderState
from service.ids import IdKind, format_id
from service.jobs.spec import DeviceSpec
from service.pagination import Page
from service.schemas import Answer, Json, StoredError, UtcTime, example


class DeviceStatus(StrEnum):
    """How far a device is."""

    WAITING = "waiting"  # for a worker or an agent
    MEASURING = "measuring"
    READY = "ready"
    FAILED = "failed"  # `error` says why; a job can be tried again


class NewDevice(DeviceSpec):
    """Add a latency target: bring its table, or have one measured."""

    model_config = example({"name": "this machine", "build": {"space": "masktas-tiny", "runtime": "onnxruntime"}})


class OrderView(Answer):
    """How far a device agent is with measuring."""

    measured: int = Field(description="Networks.")
    planned: int
    lease_until: UtcTime | None = Field(
        description="The agent works on it and has time until then to say so again; null: it does not work on it now."
    )


class DeviceView(Answer):
    """A latency target. A search names it in a limit or an objective on `latency_ms`."""

    model_config = example(
        {
            "id": "dev_01980000000070008000000000000000",
            "name": "this machine",
            "status": "ready",
            "setting": {
                "device": "AMD EPYC 9R14 (8 cores)",
                "runtime": "torch",
                "precision": "fp32",
                "batch_size": 1,
                "threads": 1,
                "percentile": 50,
                "warmup_runs": 5,
                "runs": 30,
                "img_size": 224,
                "patch_size": 16,
                "in_chans": 3,
                "head_dim": 64,
                "num_classes": 1000,
                "rel_pos": False,
            },
            "digest": "b269f64319a2c684c95f1bbe4c003e15fb6d963796ccebfa169cd2e0024bbb17",
            "error_share": 0.021,
            "held_out": 20,
            "job": "job_01980000000070008000000000000001",
            "agent": None,
            "order": None,
            "build": {"space": {"preset": "masktas-tiny"}, "held_out": 20},
            "error": None,
            "created_at": "2026-11-30T12:00:00Z",
        }
    )

    id: str = Field(description="What a limit names it by.")
    name: str
    status: DeviceStatus
    setting: Json | None = Field(description="What was measured, and how; null until it is ready.")
    digest: str | None = Field(description="SHA-256 of the table.")
    error_share: float | None = Field(
        description="Mean distance of the predictions for held-out networks from what these took, as a share of it."
    )
    held_out: int | None = Field(description="Networks that `error_share` is of.")
    job: str | None = Field(description="The job that measures, while the service remembers it.")
    agent: str | None = Field(description="The device agent that measures or has measured.")
    order: OrderView | None = Field(description="How far the agent is; null without one, and once there is a table.")
    build: Json | None = Field(description="What was asked to be measured; null of a table that was brought along.")
    error: StoredError | None
    created_at: UtcTime

    @classmethod
    def of(cls, row: Device, job: Job | None, order: OrderState | None) -> Self:
        """Show a row; ``job`` is the one that measures it, ``order`` tells how far its agent is."""
        table = LatencyTable.from_json(row.latency_table) if row.latency_table is not None else None
        document = row.latency_table or {}
        lists = ("schema_version", "fixed_ns", "block_ns", "held_out")
        error = None if table is not None else row.error or (job.error if job is not None else None)
        return cls(
            id=format_id(IdKind.DEVICE, row.id),
            name=row.name,
            status=_status(row, job, order),
            setting={name: value for name, value in document.items() if name not in lists} if table else None,
            digest=row.sha256,
            error_share=table.mape if table else None,
            held_out=len(table.held_out) if table else None,
            job=format_id(IdKind.JOB, row.job_id) if row.job_id is not None else None,
            agent=row.agent,
            order=OrderView(measured=order.measured, planned=order.planned, lease_until=order.lease_until)
            if order
            else None,
            build=row.build,
            error=StoredError(**error) if error else None,
            created_at=row.created_at,
        )


class DeviceList(Page[DeviceView]):
    """Devices, the newest first."""


def _status(row: Device, job: Job | None, order: OrderState | None) -> DeviceStatus:
    if row.latency_table is not None:
        return DeviceStatus.READY
    if order is not None and job is None:
        if row.error is not None:
            return DeviceStatus.FAILED
        return DeviceStatus.MEASURING if order.at_it else DeviceStatus.WAITING
    if job is None or job.state in TERMINAL_STATES:
        return DeviceStatus.FAILED
    return DeviceStatus.MEASURING if job.state == JobState.RUNNING else DeviceStatus.WAITING
