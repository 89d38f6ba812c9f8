"""Lets an idle worker find out how fast it is, once, and tell so in its row."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import subprocess
import sys
import threading
import time
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import structlog
from pydantic import ValidationError

from service.forecast.calibration import CALIBRATION_KEY, Calibration
from service.settings import Settings
from workers.child import trainer_environment
from workers.heartbeat import Presence

log = structlog.get_logger(__name__)

_FILE = "calibration.json"
_IDLE_S = 5.0
"""A worker that was just started is often given work at once, which comes first."""

_LOOK_S = 0.5
_LONGEST_S = 300.0


class Calibrator:
    """A thread that measures while nothing else runs; a job that comes in between ends the measurement.

    The figures are kept in the data folder, and taken again when libraries, device or threads are others.
    """

    def __init__(self, settings: Settings, presence: Presence, draining: threading.Event) -> None:
        self._settings = settings
        self._presence = presence
        self._draining = draining
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="calibrator", daemon=True)

    def __enter__(self) -> Self:
        if self._settings.calibrate:
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        try:
            known = self._read()
            while known is None and self._is_wanted(_IDLE_S):
                known = self._measure()
        except Exception:  # a service without estimates is better than none
            log.exception("calibration_failed")
            return
        if known is not None:
            self._presence.tell(CALIBRATION_KEY, known.model_dump(mode="json"))

    def _is_wanted(self, idle_s: float) -> bool:
        """Wait until the worker has been idle for so long; False when it ends before."""
        idle_since = time.monotonic()
        while not self._is_ending(_LOOK_S):
            if self._presence.is_busy:
                idle_since = time.monotonic()
            elif time.monotonic() - idle_since >= idle_s:
                return True
        return False

    def _is_ending(self, wait_s: float) -> bool:
        return self._closing.wait(wait_s) or self._draining.is_set()

    def _measure(self) -> Calibration | None:
        """The figures; None when a job came in between."""
        settings = self._settings
        began = ("--began", repr(time.time()))
        options = ("--device", settings.device, "--threads", str(settings.threads_per_trainer), *began)
        process = subprocess.Popen(
            (sys.executable, "-m", "workers.calibrate", *options),
            stdin=subprocess.PIPE,  # a life line: it ends with this process
            stdout=subprocess.PIPE,
            env=trainer_environment(os.environ, settings.threads_per_trainer),
            start_new_session=True,
        )
        give_up_at = time.monotonic() + _LONGEST_S
        try:
            while process.poll() is None:
                if self._is_ending(_LOOK_S) or self._presence.is_busy:
                    return None
                if time.monotonic() > give_up_at:
                    raise TimeoutError(f"no figures after {_LONGEST_S:g} s")
        finally:
            process.kill()
            told, _ = process.communicate()
        if process.returncode:
            raise RuntimeError(f"workers.calibrate ended with code {process.returncode}; its error is in this log")
        found = Calibration.model_validate_json(told)
        self._write(found)
        log.info("calibrated", **found.model_dump())
        return found

    @property
    def _path(self) -> Path:
        return self._settings.data_dir / _FILE

    def _circumstances(self) -> dict[str, Any]:
        """What other figures would follow from."""
        return {
            "host": platform.node(),
            "machine": platform.machine(),
            "device": self._settings.device,
            "threads": self._settings.threads_per_trainer,
            "versions": {name: version(name) for name in ("vitailor", "torch")},
        }

    def _read(self) -> Calibration | None:
        with contextlib.suppress(OSError, ValueError, ValidationError, KeyError, TypeError):
            kept = json.loads(self._path.read_text())
            if kept["circumstances"] == self._circumstances():
                return Calibration.model_validate(kept["figures"])
        return None

    def _write(self, found: Calibration) -> None:
        document = {"circumstances": self._circumstances(), "figures": found.model_dump(mode="json")}
        scratch = self._path.with_name(f"{_FILE}.{os.getpid()}")
        scratch.write_text(json.dumps(document))
        scratch.replace(self._path)
