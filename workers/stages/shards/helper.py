"""The job of a helper: measures shards of another job's search until that needs it no more."""

from __future__ import annotations

from contextlib import ExitStack

from workers.channel import Channel, StopRequested
from workers.protocol import Result, Start
from workers.shard_messages import HelpWithShard, ShardGrant, ShardOrder, ShardResult
from workers.stages.scorers import scorer_of
from workers.stages.search_context import SearchContext
from workers.stages.shards.boards import Idle
from workers.stages.shards.crew import processes_of
from workers.stages.shards.machine import machine_of
from workers.stages.shards.measuring import ShardMeter
from workers.stages.shards.processes import ShardProcess


class HelperBoard:
    """Shards of the search that is helped, by way of the supervisor.

    Args:
        channel: to it.
        idle: between questions while nothing is to be had.

    Attributes:
        over: why there is nothing to be had any more; None while there may be.
        measured: shards so far.
        candidates: in these; those whose batches were divided count in each of their shards.
    """

    def __init__(self, channel: Channel, idle: Idle) -> None:
        self._channel = channel
        self._idle = idle
        self.over: str | None = None
        self.measured = 0
        self.candidates = 0

    def take(self, hand: int, done: ShardResult | None) -> ShardOrder | None:
        """Hand in a result, if any, and get a shard."""
        if self.over is not None:
            return None
        grant = self._channel.ask(HelpWithShard(hand=hand, done=done))
        assert isinstance(grant, ShardGrant), "what a supervisor answers this question with"
        if done is not None:
            self.measured += 1
            self.candidates += len(done.measures or done.sums or ())
        self.over = grant.over
        if grant.order is not None:
            self._idle.found()
        return grant.order

    def wait(self) -> None:
        """Wait a moment for something to be had."""
        self._idle.wait()


def scoring_job(start: Start, channel: Channel) -> Result:
    """Measure shards of the search that ``start.spec`` is of, whose files and outputs are those to resume from.

    Args:
        start: the order of that search, with the helper's own job, fence and folder.
        channel: to the helper's supervisor.

    Raises:
        StopRequested: the search is over, or another job needs the slot.
    """
    ctx = SearchContext(start, channel)
    unlike = sorted(fact for fact, value in machine_of(ctx).items() if start.helps["machine"].get(fact) != value)
    if unlike:
        detail = f"This worker is unlike that of the search in {', '.join(unlike)}, so that its numbers would differ."
        ctx.warn("machine_differs", detail)
        return _result(HelperBoard(channel, Idle(1)), unlike)
    meter = ShardMeter(scorer_of(ctx), ctx.space)
    asked = ctx.spec.search.evaluation
    board = HelperBoard(channel, Idle(asked.workers))
    with ExitStack() as stack:
        for hand in range(1, processes_of(ctx)):
            stack.enter_context(ShardProcess(ctx, board, hand))
        done = None
        while board.over is None:
            ctx.poll()
            order = board.take(0, done)
            done = None if order is None else meter.measure(order, ctx.poll)
            if order is None and board.over is None:
                board.wait()
    if board.over == "slot":
        raise StopRequested("drain")
    return _result(board, [])


def _result(board: HelperBoard, unlike: list[str]) -> Result:
    found = {"shards": board.measured, "candidates": board.candidates, "unlike": unlike}
    return Result(result=found, artifacts=[])
