"""The history of a job as pages and as a stream."""

from __future__ import annotations

import asyncio
import json
import threading
from contextlib import aclosing
from typing import Any
from uuid import UUID

import pytest
from fastapi.testclient import TestClient
from sqlalchemy.orm import Session

from service.client.events import Frame, read_frames
from service.db.engine import async_engine, async_session_factory, conninfo
from service.db.models import JobState
from service.events import stream as event_streams
from service.events.listener import JobListener
from service.ids import IdKind, format_id
from service.jobs import transitions
from service.jobs.events import EventType, append_event
from service.services import Services
from service.settings import Settings
from service.store import open_store
from tests.integration.api.rows import TINY, add_job

STREAM = {"Accept": "text/event-stream"}


def path_of(job_id: UUID) -> str:
    return f"/jobs/{format_id(IdKind.JOB, job_id)}/events"


def finished_job(session: Session, owner: str, metrics: int) -> UUID:
    job_id = add_job(session, owner, JobState.RUNNING)
    for step in range(metrics):
        append_event(session, job_id, EventType.METRIC, {"stage": "teacher", "step": step, "values": {"loss": 0.5}})
    transitions.finish_succeeded(session, job_id, 1, result={})
    session.commit()
    return job_id


def pages(api: TestClient, path: str, limit: int) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    cursor = 0
    while True:
        page = api.get(path, params={"after": cursor, "limit": limit}).json()
        events += page["data"]
        if not page["has_more"]:
            return events
        cursor = int(page["next"])


def stream(api: TestClient, path: str, headers: dict[str, str] | None = None) -> list[Frame]:
    """The frames of a stream that ends."""
    with api.stream("GET", path, headers={**STREAM, **(headers or {})}) as response:
        assert response.status_code == 200
        assert response.headers["Content-Type"].startswith("text/event-stream")
        assert response.headers["Cache-Control"] == "no-cache"
        return list(read_frames(response.iter_lines()))


def test_pages_hold_every_event_once(api: TestClient, session: Session, owner: str) -> None:
    path = path_of(finished_job(session, owner, metrics=5))
    events = pages(api, path, limit=2)
    assert [event["id"] for event in events] == list(range(1, 8))
    assert [event["type"] for event in events[-2:]] == ["job.status", "end"]
    assert events[0]["data"] == {"stage": "teacher", "step": 0, "values": {"loss": 0.5}}


def test_a_stream_replays_the_history_and_ends(api: TestClient, session: Session, owner: str) -> None:
    path = path_of(finished_job(session, owner, metrics=250))
    frames = stream(api, path)
    told = [(int(frame.id), frame.type, json.loads(frame.data)) for frame in frames]
    assert told == [(event["id"], event["type"], event["data"]) for event in pages(api, path, limit=100)]
    assert told[-1][1] == "end"


@pytest.mark.parametrize("by", ["header", "parameter"])
def test_a_stream_goes_on_after_the_last_event_seen(api: TestClient, session: Session, owner: str, by: str) -> None:
    path = path_of(finished_job(session, owner, metrics=4))
    frames = stream(api, path, {"Last-Event-ID": "3"}) if by == "header" else stream(api, f"{path}?after=3")
    assert [int(frame.id) for frame in frames] == [4, 5, 6]


def test_the_header_of_a_reconnecting_browser_wins(api: TestClient, session: Session, owner: str) -> None:
    path = path_of(finished_job(session, owner, metrics=4))
    assert [int(frame.id) for frame in stream(api, f"{path}?after=1", {"Last-Event-ID": "5"})] == [6]


def test_a_client_that_has_seen_the_end_is_told_not_to_come_back(api: TestClient, session: Session, owner: str) -> None:
    path = path_of(finished_job(session, owner, metrics=0))
    assert api.get(path, headers={**STREAM, "Last-Event-ID": "2"}).status_code == 204


def test_an_end_that_a_retry_has_overtaken_is_no_end(api: TestClient) -> None:
    job = api.post("/search", json=TINY).json()["id"]
    for action in ("cancel", "retry", "cancel"):
        api.post(f"/jobs/{job}/{action}")
    events = pages(api, f"/jobs/{job}/events", limit=100)
    assert [event["id"] for event in events] == list(range(1, len(events) + 1))
    assert [event["type"] for event in events].count("end") == 1
    assert events[-1]["type"] == "end"
    assert [frame.type for frame in stream(api, f"/jobs/{job}/events")] == [event["type"] for event in events]


@pytest.mark.parametrize("value", ["-1", "x", str(2**63), "9" * 5000])
def test_a_position_that_cannot_be_is_refused(api: TestClient, session: Session, owner: str, value: str) -> None:
    path = path_of(add_job(session, owner))
    response = api.get(path, headers={"Last-Event-ID": value})
    assert (response.status_code, response.json()["errors"][0]["pointer"]) == (422, "last-event-id")
    assert api.get(path, params={"after": value}).json()["errors"][0]["pointer"] == "after"


def test_a_page_behind_the_last_event_is_empty(api: TestClient, session: Session, owner: str) -> None:
    page = api.get(path_of(finished_job(session, owner, metrics=0)), params={"after": 2**63 - 1}).json()
    assert page == {"data": [], "has_more": False, "next": None}


def test_a_live_stream_tells_what_comes_and_then_ends(api: TestClient, session: Session, owner: str) -> None:
    job_id = add_job(session, owner, JobState.RUNNING)
    path = path_of(job_id)
    append_event(session, job_id, EventType.LOG, {"line": "before"})
    session.commit()
    frames: list[Frame] = []
    reader = threading.Thread(target=lambda: frames.extend(stream(api, path)))
    reader.start()
    for n in range(20):
        append_event(session, job_id, EventType.LOG, {"line": f"line {n}"})
        session.commit()
    transitions.finish_succeeded(session, job_id, 1, result={})
    session.commit()
    reader.join(timeout=60)
    assert not reader.is_alive()
    assert [int(frame.id) for frame in frames] == list(range(1, 24))
    assert frames[-1].type == "end"


def test_a_silent_stream_shows_that_it_lives(
    shared_settings: Settings, session: Session, owner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_streams, "_KEEP_ALIVE_S", 0.0)
    job_id = add_job(session, owner, JobState.RUNNING)

    async def first_frames() -> list[bytes]:
        engine = async_engine(shared_settings.database_url, "test")
        listener = JobListener(conninfo(shared_settings.database_url, "test"))
        store = open_store(shared_settings.store_location)
        parts = Services(shared_settings, async_session_factory(engine), store, listener)
        async with aclosing(event_streams.event_stream(parts, owner, job_id, 0)) as frames:
            found = [await anext(frames), await anext(frames)]
        await engine.dispose()
        return found

    opening, comment = asyncio.run(first_frames())
    assert opening.startswith(b"retry: ")
    assert comment.startswith(b":")
