"""The API as a process: start, streams over real connections, shutdown."""

from __future__ import annotations

import json
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import UUID

import httpx
import pytest
from sqlalchemy import func, select, text
from sqlalchemy.orm import Session

from service.client.events import Frame, read_frames
from service.db.engine import ApplicationName
from service.db.models import Job, JobState
from service.ids import IdKind, format_id
from service.jobs import transitions
from service.jobs.events import EventType, append_event
from service.settings import Settings
from tests.integration.api.rows import TINY, add_job, add_key
from tests.integration.api.server import Server, bound_socket, server, until

HEAVY = ("torch", "torchvision", "timm", "sklearn", "scipy", "pandas", "pyarrow", "PIL", "celery")


@pytest.fixture(scope="module")
def serving(shared_settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("server") / "api.log"
    with bound_socket() as listener, server(shared_settings, listener, log) as running:
        yield running


@pytest.fixture
def http(serving: Server, session: Session, owner: str) -> Iterator[httpx.Client]:
    key = add_key(session, owner=owner, scopes=["admin"])
    with client(serving, key) as ready:
        yield ready


def client(running: Server, key: str) -> httpx.Client:
    return httpx.Client(base_url=running.url, headers={"Authorization": f"Bearer {key}"}, timeout=30.0, trust_env=False)


def events_of(job_id: UUID) -> str:
    return f"/jobs/{format_id(IdKind.JOB, job_id)}/events"


def test_the_process_starts_fast_and_without_what_it_does_not_need(serving: Server) -> None:
    # Processor time, since the wall clock is shared with whatever else runs here.
    assert serving.cpu_s < 4.0
    assert "torch" not in serving.mapped_files


def test_the_application_imports_no_heavy_library() -> None:
    code = "import json, sys, service.main; print(json.dumps(sorted({name.split('.')[0] for name in sys.modules})))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert not set(json.loads(done.stdout)) & set(HEAVY)


def test_a_stream_that_is_cut_again_and_again_loses_and_repeats_nothing(
    http: httpx.Client, session: Session, owner: str
) -> None:
    job_id = add_job(session, owner, JobState.RUNNING)
    stop = threading.Event()

    def write() -> None:
        for n in range(150):
            append_event(session, job_id, EventType.LOG, {"line": f"line {n}"})
            session.commit()
            stop.wait(0.005)
        transitions.finish_succeeded(session, job_id, 1, result={})
        session.commit()

    rng = random.Random(0)
    seen: list[int] = []
    cuts = 0
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(write)
        frame: Frame | None = None
        while frame is None or frame.type != "end":
            wanted = rng.randint(1, 12) if cuts < 20 else 10_000
            headers = {"Accept": "text/event-stream", "Last-Event-ID": str(seen[-1] if seen else 0)}
            with http.stream("GET", events_of(job_id), headers=headers) as response:
                assert response.status_code == 200
                for number, frame in enumerate(read_frames(response.iter_lines()), start=1):
                    seen.append(int(frame.id))
                    if number == wanted:
                        break  # leaving the block cuts the connection
            cuts += 1
        writing.result(timeout=60)
    assert cuts > 20
    page = [
        e["id"]
        for after in (0, 100)
        for e in http.get(events_of(job_id), params={"after": after, "limit": 100}).json()["data"]
    ]
    assert seen == page == list(range(1, 153))


def test_a_stream_survives_the_loss_of_its_database_connections(
    http: httpx.Client, session: Session, owner: str
) -> None:
    job_id = add_job(session, owner, JobState.RUNNING)
    append_event(session, job_id, EventType.LOG, {"line": "before"})
    session.commit()
    with http.stream("GET", events_of(job_id), headers={"Accept": "text/event-stream"}) as response:
        frames = read_frames(response.iter_lines())
        assert next(frames).data == '{"line": "before"}'
        kill = text("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = :name")
        assert (session.scalar(kill, {"name": ApplicationName.API}) or 0) >= 1
        append_event(session, job_id, EventType.LOG, {"line": "after"})
        transitions.finish_succeeded(session, job_id, 1, result={})
        session.commit()
        assert [frame.type for frame in frames] == ["log", "job.status", "end"]


def test_a_client_that_never_heard_the_answer_can_ask_again(
    http: httpx.Client, serving: Server, session: Session, owner: str
) -> None:
    key = http.headers["Authorization"]
    content = json.dumps(TINY).encode()
    host, port = serving.url.removeprefix("http://").split(":")
    head = (
        f"POST /search HTTP/1.1\r\nHost: {host}\r\nAuthorization: {key}\r\nIdempotency-Key: k\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    with socket.create_connection((host, int(port))) as lost:
        lost.sendall(head.encode() + content)  # and hang up before the answer

    def send(_: int) -> httpx.Response:
        return http.post("/search", json=TINY, headers={"Idempotency-Key": "k"})

    with ThreadPoolExecutor(5) as pool:
        answers = list(pool.map(send, range(5)))
    until(lambda: send(0).status_code == 202, "an answer that is not 'in progress'")
    answers.append(send(0))
    assert {answer.status_code for answer in answers} <= {202, 409}
    assert len({answer.json()["id"] for answer in answers if answer.status_code == 202}) == 1
    assert session.scalar(select(func.count()).select_from(Job).where(Job.owner == owner)) == 1
    assert http.post("/search", json={**TINY, "seed": 1}, headers={"Idempotency-Key": "k"}).status_code == 422


def test_open_streams_and_waiting_clients_do_not_hold_the_shutdown(
    shared_settings: Settings, session: Session, owner: str, tmp_path: Path
) -> None:
    job_id = add_job(session, owner, JobState.RUNNING)
    key = add_key(session, owner=owner, scopes=["admin"])
    log = tmp_path / "api.log"
    with bound_socket() as listener:
        with server(shared_settings, listener, log) as running, client(running, key) as http:
            job = f"/jobs/{format_id(IdKind.JOB, job_id)}"
            tag = http.get(job).headers["ETag"]
            host, port = listener.getsockname()
            with socket.create_connection((host, port)) as waiting:
                waiting.sendall(
                    f"GET {job} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {key}\r\n"
                    f"Prefer: wait=60\r\nIf-None-Match: {tag}\r\n\r\n".encode()
                )
                with http.stream("GET", events_of(job_id), headers={"Accept": "text/event-stream"}) as response:
                    lines = response.iter_lines()
                    assert next(lines).startswith("retry:")
                    started = time.monotonic()
                    running.process.send_signal(signal.SIGTERM)
                    assert list(read_frames(lines)) == []  # ends without an error
                assert waiting.makefile("rb").readline().startswith(b"HTTP/1.1 304")
                assert running.process.wait(timeout=30) == 0
                assert time.monotonic() - started < 4.0
        # The launcher keeps the socket: the next process serves on it.
        with server(shared_settings, listener, log) as again, client(again, key) as http:
            assert http.get(job).status_code == 200
