"""The bytes of an artifact over HTTP: whole or one range, conditional, resumable."""

from __future__ import annotations

from fastapi import Request, Response
from fastapi.responses import StreamingResponse

from service.db.models import Artifact
from service.http import content_disposition, matches_etag, strong_etag, wanted_range
from service.store import ArtifactStore

# An artifact's bytes never change; a shared cache must still not hand them to others.
_CACHE_CONTROL = "private, max-age=31536000, immutable"


async def serve_content(request: Request, artifact: Artifact, store: ArtifactStore) -> Response:
    """Answer GET or HEAD.

    Raises:
        RangeNotSatisfiable: the range lies behind the end of the file.
        BlobMissing: the row promises bytes that the store has lost.
    """
    etag = strong_etag(artifact.sha256)
    headers = {"ETag": etag, "Cache-Control": _CACHE_CONTROL, "Accept-Ranges": "bytes"}
    if matches_etag(request, etag):
        return Response(status_code=304, headers=headers)
    headers["Content-Disposition"] = content_disposition(artifact.name)
    size = artifact.size_bytes
    if request.method == "HEAD":
        headers["Content-Length"] = str(size)
        return Response(headers=headers, media_type=artifact.media_type)
    part = wanted_range(request, size, etag)
    if part is None:
        headers["Content-Length"] = str(size)
        chunks = await store.open_range_async(artifact.sha256)
        return StreamingResponse(chunks, headers=headers, media_type=artifact.media_type)
    headers["Content-Length"] = str(part.length)
    headers["Content-Range"] = f"bytes {part.start}-{part.end - 1}/{size}"
    chunks = await store.open_range_async(artifact.sha256, part.start, part.end)
    return StreamingResponse(chunks, 206, headers=headers, media_type=artifact.media_type)
