"""Appointments to die, kept by a real process with a real SIGKILL.

They are files of the folder named by the environment variable :data:`FOLDER`, called like the stage in which they are
kept and holding the process id to kill, or ``trainer`` or ``worker``. Each is kept once.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

FOLDER = "DEADLY_APPOINTMENTS"  # not VITAILOR_..., which trainers are not given


def keep_appointment(stage: str) -> None:
    """Called by a trainer that is in ``stage``."""
    appointment = Path(os.environ[FOLDER]) / stage
    try:
        victim = appointment.read_text()
    except FileNotFoundError:
        return
    appointment.unlink()
    pids = {"trainer": os.getpid(), "worker": os.getppid()}
    os.kill(pids[victim] if victim in pids else int(victim), signal.SIGKILL)
    if victim == "worker":
        signal.pause()  # the end of stdin is the end of the trainer; nothing may be sent before it
