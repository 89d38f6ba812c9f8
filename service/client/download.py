"""Downloads that go on where they broke off and are checked against the server's digest."""

from __future__ import annotations

import hashlib
from http import HTTPStatus
from pathlib import Path

from service.client.errors import ApiError, ClientError, DigestMismatch, is_temporary
from service.client.records import Artifact
from service.client.transport import Transport, segment

_TRIES = 5
_WAIT_S = 1.0
_SILENCE_S = 60.0


def download(transport: Transport, artifact: Artifact, path: Path) -> Path:
    """Fetch an artifact into ``path``, whose folder is made. A file that is already there and right is kept.

    The bytes gather in ``<path>.part``, which survives a broken connection or process, and become ``path`` in one
    step when their SHA-256 is the artifact's: no reader ever sees half a file.

    Raises:
        ApiError: when the server refuses.
        DigestMismatch: when the bytes are not what the server says.
        NoServer: when the connection breaks again and again without a byte between.
    """
    if path.exists() and _sha256(path) == artifact.sha256:
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    failures = 0
    while True:
        before = _size(part)
        try:
            _fetch(transport, artifact, part)
            break
        except ClientError as error:
            failures = failures + 1 if _size(part) == before else 0
            if failures == _TRIES or not is_temporary(error):
                raise
            transport.sleep(_WAIT_S * failures)
    found = _sha256(part)
    if found != artifact.sha256:
        part.unlink()
        raise DigestMismatch(path, artifact.sha256, found)
    part.replace(path)
    return path


def _fetch(transport: Transport, artifact: Artifact, part: Path) -> None:
    have = _size(part)
    if have == artifact.size_bytes:
        return
    # If-Range: should the file have changed, the server sends the new one whole instead of a piece that does not fit.
    etag = f'"{artifact.sha256}"'
    headers = {"Accept-Encoding": "identity"}  # a range counts bytes of the file, not of a compressed form
    if have:
        headers |= {"Range": f"bytes={have}-", "If-Range": etag}
    try:
        with transport.stream(
            f"/artifacts/{segment(artifact.id)}/content", headers=headers, silence_s=_SILENCE_S
        ) as response:
            goes_on = response.status_code == HTTPStatus.PARTIAL_CONTENT
            with part.open("ab" if goes_on else "wb") as file:
                for piece in response.iter_bytes():
                    file.write(piece)
    except ApiError as refusal:
        if refusal.problem.status != HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE or not have:
            raise
        part.unlink()  # longer than the file: left by another one of the same name
        _fetch(transport, artifact, part)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
