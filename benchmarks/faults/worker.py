"""The real worker process, whose trainer is the one of ``chain``."""

from __future__ import annotations

import sys
from pathlib import Path

from service.logs import configure_logging
from service.settings import Settings
from workers.child import TrainerCommand
from workers.main import run

TRAINER = Path(__file__).with_name("chain.py")

if __name__ == "__main__":
    configure_logging()
    raise SystemExit(run(Settings(_env_file=None), TrainerCommand((sys.executable, str(TRAINER)))))
