"""The hands that measure the population of a search together."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from models.architecture import Architecture
from search.measures import Measure
from workers.shard_messages import SeekHelpers
from workers.stages.scoring import Measures, MeasureScorer
from workers.stages.search_context import SearchContext
from workers.stages.shards.boards import Board, Idle, OwnBoard, SharedBoard
from workers.stages.shards.machine import machine_of
from workers.stages.shards.measuring import ShardMeter, divide
from workers.stages.shards.processes import ShardProcess, files_of


class Crew:
    """Measures populations by several hands; the one of the caller is among them.

    Args:
        scorer: of the search.
        meter: of the same.
        board: where all hands find shards.
        hands: how many there may be.
    """

    def __init__(self, scorer: MeasureScorer, meter: ShardMeter, board: Board, hands: int) -> None:
        self._scorer = scorer
        self._meter = meter
        self._board = board
        self._hands = hands
        self._next = 0

    def measure(
        self, archs: Sequence[Architecture], wanted: Sequence[Sequence[Measure]], poll: Callable[[], None]
    ) -> list[Measures]:
        """As :meth:`MeasureScorer.score_all`, to the same bits, whoever takes part.

        Args:
            archs: candidates.
            wanted: measures of each.
            poll: called time and again; may raise to stop.
        """
        found: list[Measures] = [{} for _ in archs]
        asked = [i for i, names in enumerate(wanted) if names]
        some, names = [archs[i] for i in asked], [wanted[i] for i in asked]
        orders = divide(some, names, batches=self._scorer.views, hands=self._hands, first=self._next)
        self._next += len(orders)
        if len(orders) < 2:
            return self._scorer.score_all(archs, wanted, poll)
        self._board.open([order for order, _ in orders])
        try:
            self._take_part(poll)
            results = dict(self._board.results)
        finally:
            self._board.close()
        for i, measures in zip(asked, self._meter.join(names, orders, results), strict=True):
            found[i] = measures
        return found

    def _take_part(self, poll: Callable[[], None]) -> None:
        done = None
        while True:
            order = self._board.take(0, done)
            done = None
            if order is not None:
                done = self._meter.measure(order, poll)
            elif self._board.is_complete:
                return
            else:
                poll()
                self._board.wait()


@contextmanager
def crew_of(ctx: SearchContext, scorer: MeasureScorer) -> Iterator[Crew | None]:
    """The hands that a spec asks for, until the context is left; None when the trainer is alone."""
    asked = ctx.spec.search.evaluation
    processes = processes_of(ctx)
    if asked.workers == processes == 1:
        yield None
        return
    board: Board = OwnBoard() if asked.workers == 1 else SharedBoard(ctx.channel, Idle(asked.workers))
    with ExitStack() as stack:
        for hand in range(1, processes):
            stack.enter_context(ShardProcess(ctx, board, hand))
        if asked.workers > 1:
            ctx.send(SeekHelpers(count=asked.workers - 1, machine=machine_of(ctx), files=files_of(ctx)))
        yield Crew(scorer, ShardMeter(scorer, ctx.space), board, asked.workers * processes)


def processes_of(ctx: SearchContext) -> int:
    """Processes that score on this worker: as many as asked for, as far as each has processors for its threads.

    All have as many threads as the trainer: results depend on their number.
    """
    asked, threads = ctx.spec.search.evaluation.processes, ctx.start.threads
    room = max(1, len(os.sched_getaffinity(0)) // threads)
    if asked > room:
        detail = (
            f"{room} of {asked} processes score, since each has {threads} threads as the trainer has; a worker with a "
            "smaller VITAILOR_TRAINER_THREADS has room for more"
        )
        ctx.warn("processes_reduced", detail)
    return min(asked, room)
