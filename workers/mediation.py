"""What a supervisor does for a trainer that shares a population out or helps with one: rows, under its fence."""

from __future__ import annotations

from collections.abc import Callable
from typing import assert_never

from sqlalchemy.orm import Session

from service.jobs.values import Claim, Lost
from service.shards import board
from workers.shard_messages import (
    MOST_SHARDS,
    HelpWithShard,
    OpenShards,
    SeekHelpers,
    ShardAnswer,
    ShardGrant,
    ShardNews,
    ShardOrder,
    ShardResult,
    TakeShard,
)


class ShardMediator:
    """Answers a trainer's questions about shards. Belongs to one thread.

    Args:
        claim: of the attempt.
        write: runs a change in a transaction and repeats it while the database is away.
        lease_s: workers that have been silent for longer count as lost.
    """

    def __init__(self, claim: Claim, write: Callable[[Callable[[Session], object]], object], lease_s: float) -> None:
        self._claim = claim
        self._write = write
        self._lease_s = lease_s

    def take(
        self, message: SeekHelpers | OpenShards | TakeShard | HelpWithShard, answer: Callable[[ShardAnswer], None]
    ) -> None:
        """Do what the trainer asks for, and answer it; not when the attempt is lost, as it is being killed then."""
        search = board.Search(self._claim.job_id, self._claim.fence)
        match message:
            case SeekHelpers():
                self._write(
                    lambda session: board.seek_helpers(session, search, message.count, message.machine, message.files)
                )
            case OpenShards():
                tasks = {order.n: order.model_dump_json() for order in message.shards}
                self._write(lambda session: board.offer(session, search, message.first, tasks))
            case TakeShard():
                turn = self._write(
                    lambda session: board.take(
                        session,
                        search,
                        message.hand,
                        have=message.have,
                        patience_s=message.patience_s,
                        most_results=MOST_SHARDS,
                    )
                )
                if isinstance(turn, board.Turn):
                    results = [ShardResult.model_validate_json(result) for result in turn.results.values()]
                    answer(ShardNews(ask=message.ask, order=_order(turn.task), results=results))
            case HelpWithShard():
                grant = self._write(lambda session: self._help(session, message))
                if isinstance(grant, board.Grant):
                    answer(ShardGrant(ask=message.ask, order=_order(grant.task), over=grant.over))
            case _:
                assert_never(message)

    def _help(self, session: Session, message: HelpWithShard) -> board.Grant | Lost:
        done = None if message.done is None else (message.done.n, message.done.model_dump_json())
        helper = board.Holder(self._claim.job_id, self._claim.fence, message.hand)
        return board.help_out(session, helper, board.search_of(self._claim.spec), done, self._lease_s)


def _order(task: str | None) -> ShardOrder | None:
    return None if task is None else ShardOrder.model_validate_json(task)
