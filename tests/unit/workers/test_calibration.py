from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from service.forecast.calibration import CALIBRATION_KEY, Calibration
from service.settings import Settings
from tests.waiting import wait_until
from workers import calibration
from workers.calibration import Calibrator


class Watched:
    """A worker's presence, as the calibrator sees it."""

    def __init__(self) -> None:
        self.is_busy = False
        self.told: dict[str, Any] = {}

    def tell(self, key: str, value: Any) -> None:
        self.told[key] = value


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calibration, "_IDLE_S", 0.0)
    monkeypatch.setattr(calibration, "_LOOK_S", 0.02)


@pytest.fixture
def presence() -> Watched:
    return Watched()


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(_env_file=None, data_dir=tmp_path, trainer_threads=1)


@pytest.fixture
def draining() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


@pytest.mark.slow
def test_an_idle_worker_measures_itself_once(settings: Settings, presence: Watched, draining: threading.Event) -> None:
    with Calibrator(settings, presence, draining):
        wait_until(lambda: CALIBRATION_KEY in presence.told, "figures", limit_s=120)
    found = Calibration.of_worker(presence.told)
    assert found is not None
    assert found.macs_per_s > 1e8
    kept = (settings.data_dir / "calibration.json").stat()
    again = Watched()
    with Calibrator(settings, again, draining):
        wait_until(lambda: again.told == presence.told, "the figures that were kept")
    assert (settings.data_dir / "calibration.json").stat().st_mtime_ns == kept.st_mtime_ns


def test_a_job_ends_the_measurement(
    settings: Settings, presence: Watched, draining: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = []
    spawn = calibration.subprocess.Popen

    def spy(*args: Any, **kwargs: Any) -> Any:
        started.append(spawn(*args, **kwargs))
        return started[-1]

    monkeypatch.setattr(calibration.subprocess, "Popen", spy)
    with Calibrator(settings, presence, draining):
        wait_until(lambda: started, "the measurement")
        presence.is_busy = True
        wait_until(lambda: started[0].returncode is not None, "its end")
        assert presence.told == {}
        presence.is_busy = False
        wait_until(lambda: len(started) == 2, "the next one")  # and it is tried again
    assert started[1].returncode is not None


def test_figures_of_other_circumstances_are_not_taken(
    settings: Settings, presence: Watched, draining: threading.Event
) -> None:
    draining.set()  # nothing is measured
    figures = {
        "device": "cpu",
        "threads": 1,
        "macs_per_s": 1e10,
        "pass_s": 0.0,
        "update_s": 0.0,
        "start_s": 1.0,
        "base_mb": 1.0,
        "error": 0.0,
    }
    calibrator = Calibrator(settings, presence, draining)
    calibrator._write(Calibration(**figures))
    assert calibrator._read() == Calibration(**figures)
    path = settings.data_dir / "calibration.json"
    document = json.loads(path.read_text())
    document["circumstances"]["threads"] = 2
    path.write_text(json.dumps(document))
    assert calibrator._read() is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"circumstances": 1}'])
def test_a_damaged_file_is_measured_again(
    text: str, settings: Settings, presence: Watched, draining: threading.Event
) -> None:
    (settings.data_dir / "calibration.json").write_text(text)
    assert Calibrator(settings, presence, draining)._read() is None
