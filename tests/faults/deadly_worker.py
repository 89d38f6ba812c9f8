"""The real worker process, with the real trainer that keeps appointments to die (see ``deadly_trainer``)."""

from __future__ import annotations

import sys

from service.settings import Settings
from workers.child import TrainerCommand
from workers.main import run

if __name__ == "__main__":
    command = TrainerCommand((sys.executable, "-m", "tests.faults.deadly_trainer"))
    raise SystemExit(run(Settings(_env_file=None), command))
