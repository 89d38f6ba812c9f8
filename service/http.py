"""HTTP as the standards have it: strict JSON bodies, entity tags, byte ranges, preferences, file names.

Nothing here knows the service's domains.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from email.message import Message
from typing import Any, NoReturn
from urllib.parse import quote

from fastapi import Request, Response
from fastapi.routing import APIRoute

from models.architecture import escape_pointer
from service.errors import ErrorItem, Malformed, RangeNotSatisfiable, UnsupportedMediaType
from service.openapi import check_query

# Deeper documents gain nobody anything and exhaust the stack of whoever walks them.
_MAX_JSON_DEPTH = 64

# No field is called anything like it; a refusal repeats the key, so it must not be of any length.
_MAX_KEY = 256

# What PostgreSQL can store neither as text nor as jsonb.
_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


class StrictRoute(APIRoute):
    """A route that refuses what it does not know.

    Query parameters must be among those of the document. A JSON body is read by :func:`parse_json`, and only from
    requests that say that it is JSON.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Wrap FastAPI's handler."""
        handler = super().get_route_handler()
        has_body = self.body_field is not None

        async def strict(request: Request) -> Response:
            check_query(request)
            if has_body:
                _require_json(request)
                request = _ParsedRequest(request, parse_json(await request.body()))
            return await handler(request)

        return strict


class _ParsedRequest(Request):
    """A request whose body has been parsed already."""

    def __init__(self, request: Request, document: Any) -> None:
        super().__init__(request.scope, request.receive)
        self._body = b"parsed"  # FastAPI asks for the document only when there are bytes
        self.document = document

    async def json(self) -> Any:
        return self.document


def parsed_body(request: Request) -> Any:
    """The JSON document that came with a request, None for routes that read none."""
    return request.document if isinstance(request, _ParsedRequest) else None


def _require_json(request: Request) -> None:
    message = Message()
    message["content-type"] = request.headers.get("content-type", "")
    subtype = message.get_content_subtype()
    if message.get_content_maintype() != "application" or not (subtype == "json" or subtype.endswith("+json")):
        found = request.headers.get("content-type")
        raise UnsupportedMediaType(
            f"The body's Content-Type is {found!r}; send JSON with Content-Type: application/json."
            if found
            else "The request has no Content-Type; send JSON with Content-Type: application/json."
        )


def parse_json(body: bytes) -> Any:
    """Parse one JSON document as RFC 8259 defines it.

    Python's own extensions are refused (NaN, Infinity, numbers too large for a double), and so is what the RFC leaves
    open and readers disagree on: repeated keys. A silently dropped value would be a silently changed request.

    Raises:
        Malformed: when the bytes are not such a document, nested too deeply, or hold text that cannot be stored.
    """
    if not body.strip():
        raise Malformed("The request needs a body; send a JSON object.")
    try:
        document = json.loads(
            body.decode("utf-8"),
            parse_constant=_refuse_constant,
            parse_float=_finite,
            object_pairs_hook=_unique_keys,
        )
    except UnicodeDecodeError as error:
        raise Malformed(f"The body is not UTF-8: byte {error.start} cannot be read.") from error
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise Malformed(f"The body is not JSON: {error.msg} at {where}.") from error
    except RecursionError as error:
        raise Malformed(f"The body is nested more than {_MAX_JSON_DEPTH} levels deep.") from error
    except ValueError as error:
        raise Malformed("The body holds an integer with too many digits.") from error
    _check_document(document, "", 0)
    return document


def _refuse_constant(text: str) -> NoReturn:
    raise Malformed(f"The body is not JSON: {text} is no number there; leave the field out or send null.")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise Malformed(f"The number {text[:40]} is too large for a double.")
    return value


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise Malformed(f"The key {twice[:80]!r} is given more than once in one object.")
    return found


def _check_document(value: Any, pointer: str, depth: int) -> None:
    if depth > _MAX_JSON_DEPTH:
        raise Malformed(f"The body is nested more than {_MAX_JSON_DEPTH} levels deep.")
    match value:
        case str():
            if _UNSTORABLE.search(value):
                raise _unstorable(pointer)
        case list():
            for i, item in enumerate(value):
                _check_document(item, f"{pointer}/{i}", depth + 1)
        case dict():
            for key, item in value.items():
                if _UNSTORABLE.search(key):
                    raise _unstorable(pointer)
                if len(key) > _MAX_KEY:
                    raise Malformed(
                        f"The key {key[:40]!r}... has {len(key)} characters; at most {_MAX_KEY} are allowed."
                    )
                _check_document(item, f"{pointer}/{escape_pointer(key)}", depth + 1)


def _unstorable(pointer: str) -> Malformed:
    detail = "a text holds a NUL character or half of a surrogate pair"
    return Malformed(
        f"The body cannot be stored: {detail}.",
        errors=[ErrorItem(pointer, "unstorable_text", detail, "Unicode text without U+0000")],
    )


def strong_etag(digest: str) -> str:
    """The entity tag of a file with this digest: equal tags mean equal bytes."""
    return f'"{digest}"'


def weak_etag(version: str) -> str:
    """The entity tag of a document in this version: equal tags mean that nothing of interest changed."""
    return f'W/"{version}"'


def _opaque(tag: str) -> str:
    return tag.strip().removeprefix("W/")


def matches_etag(request: Request, etag: str) -> bool:
    """True when ``If-None-Match`` names this tag (RFC 9110, section 13.1.2: weak comparison)."""
    header = request.headers.get("if-none-match")
    if header is None:
        return False
    return header.strip() == "*" or _opaque(etag) in {_opaque(tag) for tag in header.split(",")}


@dataclass(frozen=True, slots=True)
class ByteRange:
    """The bytes ``start`` to ``end - 1`` of a file."""

    start: int
    end: int

    @property
    def length(self) -> int:
        """Number of bytes."""
        return self.end - self.start


_RANGE = re.compile(r"bytes=\s*([0-9]{0,18})-([0-9]{0,18})\s*")


def wanted_range(request: Request, size: int, etag: str) -> ByteRange | None:
    """The range that a request asks for, None for the whole file.

    One range is served. Several at once, other units and what cannot be read are answered with the whole file, as
    RFC 9110 (section 14.2) allows; so is a range whose ``If-Range`` names other content (strong comparison).

    Raises:
        RangeNotSatisfiable: when the range lies behind the end of the file.
    """
    header = request.headers.get("range")
    condition = request.headers.get("if-range")
    match = _RANGE.fullmatch(header) if header is not None else None
    if match is None or (condition is not None and condition.strip() != etag):
        return None
    first, last = match.groups()
    if not first and not last:
        return None
    if first:
        start = int(first)
        end = min(int(last) + 1, size) if last else size
        if last and int(last) < start:
            return None
    else:
        start, end = max(0, size - int(last)), size
    if start >= size or start >= end:
        raise RangeNotSatisfiable(
            f"Range {header!r} lies outside the file of {size} bytes.",
            headers={"Content-Range": f"bytes */{size}", "Accept-Ranges": "bytes"},
        )
    return ByteRange(start, end)


def content_disposition(name: str) -> str:
    """The header that saves a download under ``name``, whatever characters it holds (RFC 6266, section 5)."""
    plain = re.sub(r"[^A-Za-z0-9._ -]", "_", name)
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe='')}"


def preferred_wait_s(request: Request, longest_s: int) -> int:
    """Seconds that ``Prefer: wait=N`` (RFC 7240, section 4.3) asks the server to wait, at most ``longest_s``; 0: none.

    Preferences that cannot be read are ignored, as the RFC demands.
    """
    for preference in ",".join(request.headers.getlist("prefer")).split(","):
        name, _, value = preference.split(";")[0].partition("=")
        value = value.strip().strip('"')
        if name.strip().lower() == "wait" and value.isascii() and value.isdigit():
            return min(int(value[:9]), longest_s)
    return 0


def accepts(request: Request, offered: Iterable[str]) -> str:
    """The media type to answer with: the one of ``offered`` that ``Accept`` likes best, the first when in doubt."""
    offers = list(offered)
    ranges = [_media_range(part) for part in request.headers.get("accept", "*/*").split(",")]
    best, best_quality = offers[0], 0.0
    for offer in offers:
        quality = _quality(offer, ranges)
        if quality > best_quality:
            best, best_quality = offer, quality
    return best


def _media_range(text: str) -> tuple[str, float]:
    media, *parameters = (part.strip().lower() for part in text.split(";"))
    quality = next((p[2:] for p in parameters if p.startswith("q=")), "1")
    return media, float(quality) if re.fullmatch(r"[01](\.\d{0,3})?", quality) else 0.0


def _quality(offer: str, ranges: Iterable[tuple[str, float]]) -> float:
    """The quality that the most specific matching range gives to an offer (RFC 9110, section 12.5.1)."""
    patterns = [offer, f"{offer.partition('/')[0]}/*", "*/*"]
    matching = [(patterns.index(media), quality) for media, quality in ranges if media in patterns]
    return min(matching)[1] if matching else 0.0


def url(request: Request, path: str) -> str:
    """A path of this service as clients see it: below the prefix of a proxy, when there is one."""
    return f"{request.scope.get('root_path', '').rstrip('/')}{path}"
