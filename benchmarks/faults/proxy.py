"""A TCP proxy before a server's unix socket, which does to connections what networks do."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

_CHUNK_BYTES = 65_536
# An abortive close: the peer sees a reset instead of an orderly end (socket(7), SO_LINGER).
_RESET = struct.pack("ii", 1, 0)


@dataclass(slots=True, eq=False)
class _Link:
    client: asyncio.StreamWriter
    server: asyncio.StreamWriter
    mute: bool = False


class Proxy:
    """Forwards ``127.0.0.1:port`` to a unix socket while entered. Its methods may be called from any thread."""

    port: int

    def __init__(self, upstream: Path) -> None:
        self._upstream = upstream
        self._links: set[_Link] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._delay_s = 0.0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=f"proxy-{upstream.name}", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        listener = asyncio.start_server(self._serve, "127.0.0.1", 0)
        self._server = asyncio.run_coroutine_threadsafe(listener, self._loop).result()
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def connections(self) -> int:
        """How many connections pass through now."""
        return len(self._links)

    def cut(self) -> int:
        """Reset all connections; how many."""
        links = list(self._links)
        self._call(lambda: [_reset(link) for link in links])
        return len(links)

    def mute(self) -> int:
        """From now on all connections of now swallow what is sent, in both directions, and are never closed by us."""
        links = list(self._links)
        for link in links:
            link.mute = True
        return len(links)

    def delay(self, seconds: float) -> None:
        """Let each chunk wait so long in each direction; 0 ends it."""
        self._delay_s = seconds

    def _call(self, function: Callable[[], object]) -> None:
        done = threading.Event()

        def run() -> None:
            try:
                function()
            finally:
                done.set()

        self._loop.call_soon_threadsafe(run)
        done.wait(10)

    async def _close(self) -> None:
        self._server.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            server_reader, server_writer = await asyncio.open_unix_connection(str(self._upstream))
        except OSError:  # the server is away, and so are we
            writer.transport.abort()
            return
        link = _Link(writer, server_writer)
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._links.add(link)
        try:
            pumps = (self._pump(link, reader, server_writer), self._pump(link, server_reader, writer))
            await asyncio.gather(*pumps)
        finally:
            self._links.discard(link)
            self._tasks.discard(task)
            _reset(link)

    async def _pump(self, link: _Link, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(_CHUNK_BYTES):
                if self._delay_s:
                    await asyncio.sleep(self._delay_s)
                if link.mute:
                    continue
                target.write(data)
                await target.drain()
        target.close()


def _reset(link: _Link) -> None:
    raw = link.client.get_extra_info("socket")
    if raw is not None:
        with contextlib.suppress(OSError):
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    link.client.transport.abort()
    link.server.transport.abort()
