"""The real worker process, with the counting trainer in place of the one that trains."""

from __future__ import annotations

from service.settings import Settings
from tests.jobs import TRAINER
from workers.main import run

if __name__ == "__main__":
    raise SystemExit(run(Settings(_env_file=None), TRAINER))
