"""More processes beside the trainer, each with a scorer of its own: ``python -m workers.stages.shards.processes``.

They belong to the process group of the trainer, so that whatever kills it kills them, and end by themselves when the
pipe from it is closed. They write no file and know nothing of supervisor, database or store.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import torch
from pydantic import ValidationError

from workers.channel import Channel
from workers.protocol import CHECKPOINT_FORMAT, Resume, Start
from workers.shard_messages import ShardOrder, ShardResult
from workers.stages.scorers import scorer_of
from workers.stages.search_context import SearchContext
from workers.stages.shards.boards import Tasks
from workers.stages.shards.measuring import ShardMeter
from workers.stages.supernet import DECODER_FILE, PROJECTOR_FILE, SUPERNET_FILE
from workers.stages.teacher import TEACHER_FILE

_READY = b"ready\n"


class ShardProcess:
    """A hand: a process and the thread that serves it. Use as a context manager.

    Args:
        ctx: of the search.
        tasks: where shards are found.
        hand: its number there.
    """

    def __init__(self, ctx: SearchContext, tasks: Tasks, hand: int) -> None:
        self._start = _order_for(ctx)
        self._tasks = tasks
        self._hand = hand
        self._closing = threading.Event()
        self._process = subprocess.Popen(
            (sys.executable, "-m", __name__), stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self._thread = threading.Thread(target=self._serve, name=f"hand-{hand}", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.set()
        self._process.kill()
        self._process.wait()

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def _serve(self) -> None:
        orders, results = _pipe(self._process.stdin), _pipe(self._process.stdout)
        try:
            _write(orders, self._start)
            if results.readline() != _READY:
                raise EOFError
            done = None
            while not self._closing.is_set():
                order = self._tasks.take(self._hand, done)
                done = None
                if order is None:
                    self._tasks.wait()
                    continue
                _write(orders, order)
                done = ShardResult.model_validate_json(results.readline())
        except (OSError, EOFError, ValidationError):
            # Killed, out of memory, or at its end: whoever waits for its shard measures it again.
            if not self._closing.is_set():
                print(f"scoring process {self.pid} has gone", file=sys.stderr, flush=True)


def files_of(ctx: SearchContext) -> list[str]:
    """The files that the scorer of a search is made from."""
    return [name for name in (TEACHER_FILE, SUPERNET_FILE, PROJECTOR_FILE, DECODER_FILE) if ctx.file(name) is not None]


def _order_for(ctx: SearchContext) -> Start:
    """The trainer's own order, from where the search begins."""
    resume = Resume(stage="search", state={"format": CHECKPOINT_FORMAT, "outputs": ctx.outputs}, files=files_of(ctx))
    return ctx.start.model_copy(update={"resume": resume})


def _pipe(stream: IO[bytes] | None) -> IO[bytes]:
    assert stream is not None  # both ends are pipes
    return stream


def _write(pipe: IO[bytes], message: Start | ShardOrder | ShardResult) -> None:
    pipe.write(message.model_dump_json().encode() + b"\n")
    pipe.flush()


def main() -> None:
    """Measure shards until the trainer closes the pipe."""
    results = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what libraries print goes to the log
    orders = sys.stdin.buffer
    start = Start.model_validate_json(orders.readline())
    torch.set_num_threads(start.threads)
    torch.use_deterministic_algorithms(True)
    with Path(os.devnull).open("wb") as nowhere:
        ctx = SearchContext(start, Channel(nowhere))
        meter = ShardMeter(scorer_of(ctx), ctx.space)
        results.write(_READY)
        results.flush()
        for line in orders:
            _write(results, meter.measure(ShardOrder.model_validate_json(line), lambda: None))


if __name__ == "__main__":
    main()
