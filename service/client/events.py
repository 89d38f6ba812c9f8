"""Following a job: its history first, then live, each event exactly once."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from service.client.errors import ClientError, is_temporary
from service.client.records import Event
from service.client.transport import Transport, segment

# The server sends a comment at least this often while nothing happens; twice that is a dead connection.
_SILENCE_S = 60.0
_STREAM_TRIES = 3
_POLL_S = 2.0
_PAGE = 100
END = "end"


@dataclass(frozen=True, slots=True)
class Frame:
    """One message of an event stream."""

    id: str
    type: str
    data: str


def read_frames(lines: Iterable[str]) -> Iterator[Frame]:
    """Split a ``text/event-stream`` into messages (WHATWG HTML, section 9.2.6); an unfinished last one is dropped."""
    last_id, kind, data = "", "message", list[str]()
    for line in lines:
        if not line:
            if data:
                yield Frame(last_id, kind, "\n".join(data))
            kind, data = "message", []
            continue
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        match field:
            case "id":
                last_id = value
            case "event":
                kind = value
            case "data":
                data.append(value)
            case _:  # comments (an empty field name) and fields of a later standard
                continue


def follow(transport: Transport, job_id: str, after: int = 0) -> Iterator[Event]:
    """Events of a job with a number above ``after``, in order, until the one that says that nothing will follow.

    The stream is taken up again after the last event when the connection breaks. Where streams do not get through
    (some proxies hold them back), the same events are asked for every two seconds.

    Raises:
        ApiError: when the server refuses, such as for an unknown job.
        NoServer: when the server stays away.
    """
    failures = 0
    while failures < _STREAM_TRIES:
        came_through = False
        try:
            for event in _stream(transport, job_id, after):
                after, came_through = event.id, True
                yield event
                if event.type == END:
                    return
        except ClientError as error:
            if not is_temporary(error):
                raise
            # Otherwise go on below; the polling that comes last raises when the server stays away.
        else:
            if not came_through and _is_over(transport, job_id, after):
                return
        failures = 0 if came_through else failures + 1
        transport.sleep(_POLL_S * failures)
    yield from _poll(transport, job_id, after)


def page(transport: Transport, job_id: str, after: int, limit: int = _PAGE) -> list[Event]:
    """Events that exist now with a number above ``after``, at most ``limit``."""
    answer = transport.get(f"/jobs/{segment(job_id)}/events", {"after": after, "limit": limit})
    return [Event.model_validate(item) for item in answer["data"]]


def _stream(transport: Transport, job_id: str, after: int) -> Iterator[Event]:
    headers = {"Accept": "text/event-stream", "Last-Event-ID": str(after)}
    with transport.stream(f"/jobs/{segment(job_id)}/events", headers=headers, silence_s=_SILENCE_S) as response:
        if not response.headers.get("Content-Type", "").startswith("text/event-stream"):
            return
        for frame in read_frames(response.iter_lines()):
            if frame.id.isdecimal() and int(frame.id) > after:
                yield Event(id=int(frame.id), type=frame.type, data=json.loads(frame.data))


def _poll(transport: Transport, job_id: str, after: int) -> Iterator[Event]:
    while True:
        events = page(transport, job_id, after)
        for event in events:
            yield event
            after = event.id
            if event.type == END:
                return
        if not events:
            if _is_over(transport, job_id, after):
                return
            transport.sleep(_POLL_S)


def _is_over(transport: Transport, job_id: str, after: int) -> bool:
    """Whether the caller has seen all that there will be, its last event included."""
    done = bool(transport.get(f"/jobs/{segment(job_id)}")["done"])
    return done and not page(transport, job_id, after, limit=1)
