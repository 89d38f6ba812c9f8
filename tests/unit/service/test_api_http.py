"""HTTP as the standards have it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fastapi import Request
from hypothesis import given
from hypothesis import strategies as st

from service.errors import Malformed
from service.http import accepts, content_disposition, matches_etag, parse_json, preferred_wait_s, url


def request(root_path: str = "", **headers: str) -> Request:
    raw = [(name.replace("_", "-").encode(), value.encode("latin-1")) for name, value in headers.items()]
    return Request({"type": "http", "headers": raw, "method": "GET", "path": "/", "root_path": root_path})


storable = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
documents = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | storable,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(storable, inner, max_size=4),
    max_leaves=20,
)


@given(documents)
def test_every_storable_document_is_read_as_it_was_written(document: Any) -> None:
    assert parse_json(json.dumps(document).encode()) == document
    assert parse_json(json.dumps(document, ensure_ascii=False).encode()) == document


@given(st.binary(max_size=40))
def test_any_bytes_are_a_document_or_malformed(body: bytes) -> None:
    try:
        document = parse_json(body)
    except Malformed:
        return
    assert json.loads(body) == document


def test_a_key_of_absurd_length_is_not_repeated() -> None:
    with pytest.raises(Malformed) as caught:
        parse_json(json.dumps({"k" * 100_000: 1}).encode())
    assert len(caught.value.detail) < 500


def test_an_unstorable_text_is_pointed_at() -> None:
    with pytest.raises(Malformed) as caught:
        parse_json(b'{"a/b": [1, {"c": "x\\u0000"}]}')
    assert caught.value.errors[0].pointer == "/a~1b/1/c"


@pytest.mark.parametrize(
    ("header", "chosen"),
    [
        (None, "application/json"),
        ("", "application/json"),
        ("*/*", "application/json"),
        ("text/event-stream", "text/event-stream"),
        ("Text/Event-Stream", "text/event-stream"),
        ("text/*", "text/event-stream"),
        ("text/event-stream, application/json", "application/json"),
        ("application/json;q=0.5, text/event-stream;q=0.6", "text/event-stream"),
        ("application/json;q=0, */*", "text/event-stream"),
        ("text/event-stream;q=0", "application/json"),
        ("image/png", "application/json"),
        ("text/event-stream;q=x", "application/json"),
    ],
)
def test_the_best_liked_form_is_sent(header: str | None, chosen: str) -> None:
    asked = request() if header is None else request(accept=header)
    assert accepts(asked, ("application/json", "text/event-stream")) == chosen


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("wait=5", 5),
        ("respond-async, wait=5", 5),
        ('Wait = "7"; x=1', 7),
        ("wait=100", 60),
        ("wait=" + "9" * 5000, 60),
        ("wait=-5", 0),
        ("wait=1.5", 0),
        ("wait=²", 0),
        ("wait", 0),
        ("handling=lenient", 0),
    ],
)
def test_a_preferred_wait_is_bounded_or_ignored(header: str, seconds: int) -> None:
    assert preferred_wait_s(request(prefer=header), 60) == seconds


def test_tags_are_compared_weakly() -> None:
    assert matches_etag(request(if_none_match='"a", W/"b"'), '"b"')
    assert matches_etag(request(if_none_match='"b"'), 'W/"b"')
    assert not matches_etag(request(if_none_match='"a"'), '"b"')
    assert not matches_etag(request(), '"b"')


def test_file_names_are_given_in_both_forms() -> None:
    header = content_disposition('Größe "1"/x.json')
    assert header == "attachment; filename=\"Gr__e _1__x.json\"; filename*=UTF-8''Gr%C3%B6%C3%9Fe%20%221%22%2Fx.json"


def test_paths_carry_the_prefix_of_a_proxy() -> None:
    assert url(request(), "/jobs/1") == "/jobs/1"
    assert url(request("/nas/"), "/jobs/1") == "/nas/jobs/1"
