"""The supervisor of child processes, with small programs as children."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

import pytest
from structlog.testing import capture_logs

from service.embedded.children import Child, ChildSpec
from service.embedded.errors import ChildFailed
from service.embedded.supervisor import Supervisor
from tests.waiting import is_alive, wait_until

_STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); open({mark!r}, 'w'); time.sleep(600)"


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[Supervisor]:
    supervisor = Supervisor(tmp_path)
    yield supervisor
    supervisor.stop()


def _python(name: str, code: str, ready: Callable[[], bool], **values: float) -> ChildSpec:
    return ChildSpec(name, (sys.executable, "-c", code), ready=ready, **values)  # type: ignore[arg-type]


def _sleeper(tmp_path: Path, name: str) -> ChildSpec:
    mark = tmp_path / name
    return _python(name, f"import time; open({str(mark)!r}, 'w'); time.sleep(600)", mark.exists)


def _stubborn(tmp_path: Path, grace_s: float) -> ChildSpec:
    mark = tmp_path / "stubborn"
    return _python("stubborn", _STUBBORN.format(mark=str(mark)), mark.exists, stop_grace_s=grace_s)


def test_groups_stop_in_reverse_order(supervisor: Supervisor, tmp_path: Path) -> None:
    order = tmp_path / "order"
    for name in ("first", "second"):
        mark = tmp_path / name
        code = f"""
import signal, sys
def end(*_):
    with open({str(order)!r}, "a") as file:
        file.write({name!r} + " ")
    sys.exit()
signal.signal(signal.SIGTERM, end)
open({str(mark)!r}, "w")
signal.pause()
"""
        supervisor.start([_python(name, code, mark.exists)])
    assert set(supervisor.pids()) == {"first", "second"}
    supervisor.stop()
    assert order.read_text() == "second first "
    assert supervisor.pids() == {}


def test_child_that_fails_at_first_gets_another_try(supervisor: Supervisor, tmp_path: Path) -> None:
    tried, ready = tmp_path / "tried", tmp_path / "ready"
    code = f"""
import os, time
if not os.path.exists({str(tried)!r}):
    open({str(tried)!r}, "w")
    raise SystemExit("not yet")
open({str(ready)!r}, "w")
time.sleep(600)
"""
    supervisor.start([_python("late", code, ready.exists)])
    assert "late" in supervisor.pids()
    assert "not yet" in (tmp_path / "late.log").read_text()


def test_command_that_does_not_exist_is_reported(supervisor: Supervisor) -> None:
    with pytest.raises(ChildFailed, match="FileNotFoundError"):
        supervisor.start([ChildSpec("nothing", ("/no/such/program",), ready=lambda: False)])


def test_backoff_doubles_up_to_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.embedded.children.FIRST_BACKOFF_S", 0.01)
    monkeypatch.setattr("service.embedded.children.LAST_BACKOFF_S", 0.05)
    child = Child(_python("brief", "pass", lambda: False), tmp_path, ())

    def died(times: int) -> bool:
        child.tend()
        return child.deaths >= times

    with capture_logs() as logs:
        wait_until(lambda: died(5), "five deaths")
    assert [entry["restart_in_s"] for entry in logs] == [0.01, 0.02, 0.04, 0.05, 0.05]


def test_healthy_time_starts_the_backoff_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.embedded.children.HEALTHY_AFTER_S", 0.0)
    monkeypatch.setattr("service.embedded.children.FIRST_BACKOFF_S", 0.01)
    child = Child(_python("brief", "pass", lambda: False), tmp_path, ())

    def died(times: int) -> bool:
        child.tend()
        return child.deaths >= times

    with capture_logs() as logs:
        wait_until(lambda: died(3), "three deaths")
    assert [entry["restart_in_s"] for entry in logs] == [0.01, 0.01, 0.01]


def test_child_that_ignores_its_stop_signal_is_killed_after_its_grace_time(
    supervisor: Supervisor, tmp_path: Path
) -> None:
    supervisor.start([_stubborn(tmp_path, grace_s=0.2)])
    [pid] = supervisor.pids().values()
    supervisor.stop()
    assert not is_alive(pid)


def test_impatience_does_not_cut_the_stop_short(supervisor: Supervisor, tmp_path: Path) -> None:
    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    supervisor.start([_sleeper(tmp_path, "sleeper"), _stubborn(tmp_path, grace_s=1.0)])
    pids = supervisor.pids().values()
    previous = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with capture_logs() as logs:
            supervisor.stop()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    assert "still_stopping" in {entry["event"] for entry in logs}
    assert not any(is_alive(pid) for pid in pids)


def test_children_leave_the_signals_of_the_terminal_to_the_launcher(supervisor: Supervisor, tmp_path: Path) -> None:
    supervisor.start([_sleeper(tmp_path, "sleeper")])
    [pid] = supervisor.pids().values()
    assert os.getsid(pid) == pid
    assert os.getpgid(pid) == pid


def test_child_inherits_no_ignored_signals(supervisor: Supervisor, tmp_path: Path) -> None:
    spec = ChildSpec("sleep", ("sleep", "600"), ready=lambda: True)
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        supervisor.start([spec])
    finally:
        signal.signal(signal.SIGHUP, before)
    [pid] = supervisor.pids().values()
    wait_until(lambda: Path(f"/proc/{pid}/comm").read_text() == "sleep\n", "the tether has become the command")
    status = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    ignored = int(status["SigIgn"], 16)
    # Signals that the C library keeps for itself are ignored in whatever posix_spawn starts, such as make's children.
    assert [signum for signum in signal.valid_signals() if ignored >> (signum - 1) & 1] == []


def test_child_gets_no_key_of_the_launcher(
    supervisor: Supervisor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VITAILOR_BOOTSTRAP_KEY", "secret")
    monkeypatch.setenv("VITAILOR_QUEUES", "cpu")
    mark = tmp_path / "names"
    code = f"""
import os, time
open({str(mark) + ".new"!r}, "w").write(" ".join(n for n in os.environ if n.startswith("VITAILOR_")))
os.rename({str(mark) + ".new"!r}, {str(mark)!r})
time.sleep(600)
"""
    supervisor.start([_python("child", code, mark.exists)])
    names = mark.read_text().split()
    assert "VITAILOR_QUEUES" in names
    assert "VITAILOR_BOOTSTRAP_KEY" not in names


def test_big_log_is_put_aside_at_the_next_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.embedded.children.LOG_LIMIT_BYTES", 100)
    (tmp_path / "sleeper.log").write_text("x" * 101)
    supervisor = Supervisor(tmp_path)
    supervisor.start([_sleeper(tmp_path, "sleeper")])
    supervisor.stop()
    assert (tmp_path / "sleeper.log").read_text() == ""
    assert len((tmp_path / "sleeper.log.1").read_text()) == 101
