"""What the client does when the network or the server does not do what it should."""

from __future__ import annotations

import hashlib
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.client import ApiError, Artifact, Client, DigestMismatch, NoServer
from service.client.download import download
from service.client.events import Frame, follow, read_frames
from service.client.transport import Transport
from tests.unit.service.scripted import Answer, as_json, frame, problem, scripted_server, stream

CONTENT = bytes(range(256)) * 40
JOB = {
    "id": "job_1",
    "kind": "search",
    "status": "succeeded",
    "done": True,
    "created_at": "2026-11-30T12:00:00Z",
}


class Waits(list[float]):
    """Stands in for time: notes how long the client would have waited."""

    def __call__(self, seconds: float) -> None:
        self.append(seconds)


def transport(url: str, waits: Waits | None = None, retries: int = 3) -> Transport:
    return Transport(url, "key", retries=retries, sleep=Waits() if waits is None else waits)


def artifact(content: bytes = CONTENT) -> Artifact:
    return Artifact(
        id="art_1",
        name="weights.safetensors",
        kind="weights",
        size_bytes=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
        media_type="application/octet-stream",
    )


def unused_url() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}"


def test_a_repeated_post_carries_the_same_idempotency_key() -> None:
    with scripted_server({"POST /search": [problem(503, "unavailable"), as_json(JOB)]}) as server:
        assert transport(server.url).post("/search", {"a": 1}) == JOB
    keys = [request.headers["idempotency-key"] for request in server.requests]
    assert len(keys) == 2
    assert keys[0] == keys[1]
    assert server.requests[0].body == {"a": 1}


def test_different_posts_carry_different_idempotency_keys() -> None:
    with scripted_server({"POST /search": [as_json(JOB)]}) as server:
        sender = transport(server.url)
        sender.post("/search", {})
        sender.post("/search", {})
    first, second = (request.headers["idempotency-key"] for request in server.requests)
    assert first != second


def test_the_servers_retry_after_is_waited_for() -> None:
    busy = Answer(503, problem(503, "unavailable").body, {"Retry-After": "7"})
    waits = Waits()
    with scripted_server({"GET /jobs": [busy, as_json({})]}) as server:
        transport(server.url, waits).get("/jobs")
    assert waits == [7.0]


def test_a_request_whose_first_try_still_runs_is_repeated() -> None:
    with scripted_server({"POST /search": [problem(409, "idempotency_in_progress"), as_json(JOB)]}) as server:
        assert transport(server.url).post("/search", {}) == JOB


@pytest.mark.parametrize(
    ("given", "path"),
    [("../healthz", "/jobs/..%2Fhealthz"), ("x?y=1#z", "/jobs/x%3Fy%3D1%23z"), ("\udcff", "/jobs/%FF")],
)
def test_an_id_of_any_text_asks_for_no_other_path(given: str, path: str) -> None:
    with scripted_server({f"GET {path}": [problem(404, "not_found")]}) as server, Client(server.url) as client:
        with pytest.raises(ApiError) as caught:
            client.job(given)
        assert caught.value.problem.code == "not_found"


@pytest.mark.parametrize("odd", ["\ud800", float("nan"), float("inf"), 10**400])
def test_what_json_cannot_say_is_left_to_the_server_to_refuse(odd: object) -> None:
    with scripted_server({"POST /search": [problem(400, "malformed")]}) as server, pytest.raises(ApiError):
        transport(server.url).post("/search", {"name": odd})


@pytest.mark.parametrize("odd", ["²", "soon", "-1", ""])
def test_an_odd_retry_after_is_passed_over(odd: str) -> None:
    busy = Answer(503, problem(503, "unavailable").body, {"Retry-After": odd})
    with scripted_server({"GET /jobs/job_1": [busy, as_json(JOB)]}) as server:
        assert transport(server.url).get("/jobs/job_1") == JOB


def test_a_refusal_is_not_repeated() -> None:
    with (
        scripted_server({"POST /search": [problem(422, "validation_failed", "Bad.")]}) as server,
        pytest.raises(ApiError, match="validation_failed"),
    ):
        transport(server.url).post("/search", {})
    assert len(server.requests) == 1


def test_a_refusal_tells_each_fault_with_its_place_and_what_is_allowed() -> None:
    items = [{"pointer": "/seed", "code": "x", "detail": "found -1", "allowed": "0 or more"}]
    with (
        scripted_server({"POST /search": [problem(422, "validation_failed", "Bad.", errors=items)]}) as server,
        pytest.raises(ApiError) as caught,
    ):
        transport(server.url).post("/search", {})
    assert "/seed: found -1 (allowed: 0 or more)" in str(caught.value)
    assert caught.value.problem.errors[0].pointer == "/seed"


def test_an_answer_of_some_other_server_is_told_as_that() -> None:
    with (
        scripted_server({"GET /jobs": [Answer(502, b"<html>bad gateway</html>")]}) as server,
        pytest.raises(ApiError, match="is this a ViTailor server"),
    ):
        transport(server.url).get("/jobs")


def test_without_a_server_the_client_gives_up_after_its_retries() -> None:
    waits = Waits()
    with pytest.raises(NoServer):
        transport(unused_url(), waits, retries=2).get("/jobs")
    assert waits == [0.2, 0.4]


def test_lists_are_read_to_their_last_page() -> None:
    first = {"data": [{**JOB, "id": "job_1"}], "has_more": True, "next": "cursor"}
    last = {"data": [{**JOB, "id": "job_2"}], "has_more": False, "next": None}
    with scripted_server({"GET /jobs": [as_json(first), as_json(last)]}) as server, Client(server.url) as client:
        assert [job.id for job in client.jobs()] == ["job_1", "job_2"]
    assert "after=cursor" in server.requests[1].path


def test_a_list_stops_at_the_wanted_length() -> None:
    page = {"data": [JOB], "has_more": True, "next": "cursor"}
    with scripted_server({"GET /jobs": [as_json(page)]}) as server, Client(server.url) as client:
        assert len(client.jobs(limit=2)) == 2
    assert len(server.requests) == 2


def test_records_keep_fields_that_the_client_does_not_know() -> None:
    with scripted_server({"GET /jobs/job_1": [as_json({**JOB, "news": 1})]}) as server, Client(server.url) as client:
        assert client.job("job_1").model_dump()["news"] == 1


# --- event streams ---------------------------------------------------------------------------------------------------


def test_a_broken_stream_goes_on_after_the_last_event() -> None:
    whole = stream(frame(1, "metric", {"n": 1}), frame(2, "metric", {"n": 2}))
    broken = Answer(body=whole.body, headers=whole.headers, break_off=len(frame(1, "metric", {"n": 1})) + 5)
    rest = stream(frame(2, "metric", {"n": 2}), frame(3, "end", {"status": "succeeded"}))
    with scripted_server({"GET /jobs/job_1/events": [broken, rest]}) as server:
        events = list(follow(transport(server.url), "job_1"))
    assert [event.id for event in events] == [1, 2, 3]
    assert [request.headers["last-event-id"] for request in server.requests] == ["0", "1"]


def test_events_that_were_seen_before_are_not_given_again() -> None:
    answer = stream(frame(1, "metric", {}), frame(2, "metric", {}), frame(3, "end", {}))
    with scripted_server({"GET /jobs/job_1/events": [answer]}) as server:
        assert [event.id for event in follow(transport(server.url), "job_1", after=2)] == [3]


def test_where_streams_do_not_get_through_events_are_polled() -> None:
    page = {"data": [{"id": 1, "type": "metric", "data": {}}, {"id": 2, "type": "end", "data": {}}]}
    answers = {
        "GET /jobs/job_1/events": [as_json(page)],
        "GET /jobs/job_1": [as_json({**JOB, "done": False})],
    }
    with scripted_server(answers) as server:
        events = list(follow(transport(server.url), "job_1"))
    assert [event.type for event in events] == ["metric", "end"]


def test_following_an_ended_job_from_its_last_event_returns_at_once() -> None:
    waits = Waits()
    answers = {
        "GET /jobs/job_1/events": [stream(), as_json({"data": []})],
        "GET /jobs/job_1": [as_json(JOB)],
    }
    with scripted_server(answers) as server:
        assert list(follow(transport(server.url, waits), "job_1", after=9)) == []
    assert waits == []


def test_following_an_unknown_job_is_refused() -> None:
    with scripted_server({}) as server, pytest.raises(ApiError, match="not_found"):
        list(follow(transport(server.url), "job_1"))


def test_following_ends_with_no_server_when_it_stays_away() -> None:
    with pytest.raises(NoServer):
        list(follow(transport(unused_url()), "job_1"))


@given(
    st.lists(
        st.builds(
            Frame,
            id=st.integers(1, 10**9).map(str),
            type=st.sampled_from(["metric", "end", "job.status"]),
            data=st.text(st.characters(exclude_characters="\r\n", exclude_categories=["Cs"])),
        )
    )
)
def test_frames_survive_writing_and_reading(frames: list[Frame]) -> None:
    lines: list[str] = []
    for sent in frames:
        lines += [": keep-alive", "", f"id: {sent.id}", f"event: {sent.type}", f"data: {sent.data}", "retry: 5", ""]
    assert list(read_frames(lines)) == frames


def test_an_unfinished_frame_is_dropped() -> None:
    assert list(read_frames(["id: 1", "data: whole", "", "id: 2", "data: ha"])) == [Frame("1", "message", "whole")]


# --- downloads -------------------------------------------------------------------------------------------------------


def test_a_broken_download_goes_on_after_the_last_byte(tmp_path: Path) -> None:
    broken = Answer(body=CONTENT, headers={}, break_off=1000)
    rest = Answer(206, CONTENT[1000:], {"Content-Range": f"bytes 1000-{len(CONTENT) - 1}/{len(CONTENT)}"})
    with scripted_server({"GET /artifacts/art_1/content": [broken, rest]}) as server:
        path = download(transport(server.url), artifact(), tmp_path / "new" / "weights.safetensors")
    assert path.read_bytes() == CONTENT
    assert server.requests[1].headers["range"] == "bytes=1000-"
    assert server.requests[1].headers["if-range"] == f'"{artifact().sha256}"'
    assert [file.name for file in path.parent.iterdir()] == ["weights.safetensors"]


def test_a_server_that_sends_the_whole_file_again_is_understood(tmp_path: Path) -> None:
    (tmp_path / "w.part").write_bytes(b"of another version")
    with scripted_server({"GET /artifacts/art_1/content": [Answer(body=CONTENT, headers={})]}) as server:
        assert download(transport(server.url), artifact(), tmp_path / "w").read_bytes() == CONTENT


def test_a_part_that_is_longer_than_the_file_is_thrown_away(tmp_path: Path) -> None:
    (tmp_path / "w.part").write_bytes(CONTENT + b"more")
    answers = [problem(416, "range_not_satisfiable"), Answer(body=CONTENT, headers={})]
    with scripted_server({"GET /artifacts/art_1/content": answers}) as server:
        assert download(transport(server.url), artifact(), tmp_path / "w").read_bytes() == CONTENT
    assert "range" not in server.requests[1].headers


def test_a_file_with_another_digest_is_refused_and_removed(tmp_path: Path) -> None:
    with (
        scripted_server({"GET /artifacts/art_1/content": [Answer(body=b"x" * len(CONTENT), headers={})]}) as server,
        pytest.raises(DigestMismatch),
    ):
        download(transport(server.url), artifact(), tmp_path / "w")
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_there_is_not_fetched_again(tmp_path: Path) -> None:
    (tmp_path / "w").write_bytes(CONTENT)
    with scripted_server({}) as server:
        download(transport(server.url), artifact(), tmp_path / "w")
    assert server.requests == []


def test_a_download_waits_for_a_server_that_is_not_ready(tmp_path: Path) -> None:
    busy = problem(503, "unavailable", retryable=True)
    with scripted_server({"GET /artifacts/art_1/content": [busy, Answer(body=CONTENT, headers={})]}) as server:
        assert download(transport(server.url), artifact(), tmp_path / "w").read_bytes() == CONTENT


def test_a_connection_that_never_brings_a_byte_is_given_up(tmp_path: Path) -> None:
    silent = Answer(body=CONTENT, headers={}, break_off=0)
    with scripted_server({"GET /artifacts/art_1/content": [silent]}) as server, pytest.raises(NoServer):
        download(transport(server.url), artifact(), tmp_path / "w")


def test_artifact_names_cannot_leave_the_folder(tmp_path: Path) -> None:
    hostile = artifact().model_copy(update={"name": "../../escaped"})
    answers = {"GET /artifacts/art_1/content": [Answer(body=CONTENT, headers={})]}
    with scripted_server(answers) as server, Client(server.url) as client:
        paths = client.download_all([hostile], tmp_path / "out")
    assert paths == [tmp_path / "out" / "escaped"]
