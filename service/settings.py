"""Settings of all processes: environment variables with the prefix ``VITAILOR_``, or an env file.

Settings are read by entry points only (never at import) and handed on as one frozen object.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Self

from pydantic import Field, SecretStr, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

_DATA_DIR = Path(".vitailor")


class Settings(BaseSettings):
    """Where things are and how patient each part is. All durations are seconds."""

    model_config = SettingsConfigDict(env_prefix="VITAILOR_", env_file=".env", extra="ignore", frozen=True)

    data_dir: Path = Field(_DATA_DIR, description="Run directories, caches and the local artifact store live here.")
    database_url: str = Field(
        "postgresql+psycopg://vitailor@localhost/vitailor", description="One URL for sync and async use."
    )
    broker_url: str = Field("redis://localhost:6379/0", description="redis://, rediss:// or redis+socket:///path")
    store_url: str | None = Field(None, description="file:///path or s3://bucket/prefix; default: <data_dir>/store")
    import_root: Path | None = Field(None, description="Datasets may be imported from paths below this folder only.")
    import_max_files: int = Field(500_000, ge=1, description="Files of one dataset, whether in a folder or an archive.")
    import_max_bytes: int = Field(64 * 2**30, ge=1, description="Bytes of all files of one dataset, unpacked.")
    import_max_s: float = Field(21_600.0, gt=0, description="How long the import of one dataset may take.")

    host: str = Field("127.0.0.1", min_length=1, description="Address that the API listens on.")
    port: int = Field(8000, ge=0, le=65535, description="0 picks any free port.")
    root_path: str = Field("", description="Prefix under which a proxy serves the API.")
    bootstrap_key: SecretStr | None = Field(None, description="First admin key; made and printed when not given.")
    service_user: str = Field("nobody", description="User that embedded PostgreSQL runs as when started as root.")

    worker_name: str = Field("worker", description="Unique per worker process; part of the lease owner.")
    worker_slots: int = Field(1, ge=1, le=64, description="Jobs that one worker runs at once.")
    queues: str = Field("cpu", description="Comma-separated queues that a worker serves.")
    trainer_threads: int = Field(0, ge=0, description="CPU threads of one trainer; 0: cores divided by slots.")
    trainer_memory_mb: int = Field(
        0,
        ge=0,
        description="Memory of its own that one trainer may take, in 10^6 bytes, of which its libraries need about "
        "500; 0: no limit. What a GPU holds does not count.",
    )
    device: str = Field(
        "auto",
        pattern=r"^(auto|cpu|cuda(:[0-9]+)?)$",
        description="auto, cpu, cuda or cuda:1: what trainers compute on.",
    )
    calibrate: bool = Field(
        True, description="An idle worker measures its own speed once, which estimates of new searches rest on."
    )

    lease_s: float = Field(60.0, gt=0, description="How long a job stays a worker's without a heartbeat.")
    heartbeat_s: float = Field(10.0, gt=0, description="Between two renewals of a lease; at most half of it.")
    desired_poll_s: float = Field(1.0, gt=0, description="How often a running job's owner looks for cancel and pause.")
    stop_grace_s: float = Field(5.0, gt=0, description="From the stop line to SIGTERM, and from SIGTERM to SIGKILL.")
    relay_interval_s: float = Field(
        1.0, gt=0, description="How often queued jobs are announced and lost leases taken back."
    )
    republish_s: float = Field(15.0, gt=0, description="An announced job that nobody took is announced again.")
    deaf_after_s: float = Field(
        30.0, gt=0, description="An idle worker that no message has reached for so long is reported as deaf."
    )
    retry_backoff_s: float = Field(5.0, gt=0, description="Doubled for each further failure, at most 5 minutes.")
    stall_s: float = Field(
        3600.0, ge=0, description="A trainer whose work shows no sign of life for so long hangs and is ended; 0: never."
    )
    checkpoint_s: float = Field(15.0, ge=0, description="Time between checkpoints inside a stage.")
    sweep_s: float = Field(
        600.0, gt=0, description="How often a worker clears away what killed processes have left on disk."
    )
    idempotency_ttl_s: float = Field(86_400.0, gt=0, description="How long the answers to idempotency keys are kept.")

    @model_validator(mode="after")
    def _leases_outlive_heartbeats(self) -> Self:
        if self.heartbeat_s * 2 > self.lease_s:
            raise ValueError(
                f"heartbeat_s {self.heartbeat_s:g} must be at most half of lease_s {self.lease_s:g}: "
                "one lost heartbeat must not cost the lease"
            )
        return self

    @property
    def store_location(self) -> str:
        """The artifact store's URL, local below the data folder unless configured."""
        return self.store_url or (self.data_dir.absolute() / "store").as_uri()

    @property
    def threads_per_trainer(self) -> int:
        """CPU threads of one trainer child. Results depend on it, so jobs record it."""
        return self.trainer_threads or max(1, (os.cpu_count() or 1) // self.worker_slots)
