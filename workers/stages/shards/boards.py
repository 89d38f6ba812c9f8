"""Where the hands of a search find shards and leave results.

A *hand* measures one shard at a time: hand 0 is the trainer itself, the others are processes beside it. Boards may be
used from several threads.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Protocol

from workers.channel import Channel
from workers.shard_messages import MOST_SHARDS, OpenShards, ShardNews, ShardOrder, ShardResult, TakeShard

_IDLE_S = 0.1

_ASKS_A_SECOND = 100
"""Of all hands of a search together, while nothing is to be had: each question is a transaction."""

_LONGEST_IDLE_S = 0.5
"""Between questions of a hand that has long found nothing, because the search does something else."""

_LONGER = 1.3
"""By this each wait is longer than the one before."""


class Idle:
    """Waits between questions of a hand that finds nothing: short at first, since most shards are free again soon.

    Args:
        workers: that may ask at the same time.
    """

    def __init__(self, workers: int) -> None:
        self._least_s = workers / _ASKS_A_SECOND
        self._next_s = self._least_s

    def wait(self) -> None:
        """Wait, each time longer."""
        time.sleep(self._next_s)
        self._next_s = min(self._next_s * _LONGER, max(_LONGEST_IDLE_S, self._least_s))

    def found(self) -> None:
        """There was something."""
        self._next_s = self._least_s


class Tasks(Protocol):
    """Where a hand finds shards."""

    def take(self, hand: int, done: ShardResult | None) -> ShardOrder | None:
        """Hand in a result, if any, and get a shard; None when there is none to be had now."""
        ...

    def wait(self) -> None:
        """Wait a moment for something to be had."""
        ...


class Board(Tasks, Protocol):
    """Shards of one population after the other."""

    def open(self, orders: Sequence[ShardOrder]) -> None:
        """Offer the shards of a population, the longest first; what there was before is over."""
        ...

    def close(self) -> None:
        """Offer nothing any more."""
        ...

    @property
    def results(self) -> dict[int, ShardResult]:
        """What is known of the open shards."""
        ...

    @property
    def is_complete(self) -> bool:
        """Whether all open shards have a result."""
        ...


class OwnBoard:
    """Shards for the hands of this trainer alone.

    The longest are taken first. When none is free, the trainer's own hand takes one that somebody has held for longer
    than twice what its own longest took: that hand may be dead.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._open: dict[int, ShardOrder] = {}
        self._results: dict[int, ShardResult] = {}
        self._held: dict[int, tuple[int, float]] = {}  # who holds a shard, and since when
        self._patience = Patience()

    def open(self, orders: Sequence[ShardOrder]) -> None:
        """See :class:`Board`."""
        with self._changed:
            self._open = {order.n: order for order in orders}
            self._results, self._held = {}, {}
            self._changed.notify_all()

    def close(self) -> None:
        """See :class:`Board`."""
        self.open(())

    def take(self, hand: int, done: ShardResult | None) -> ShardOrder | None:
        """See :class:`Board`."""
        with self._changed:
            if done is not None and done.n in self._open:
                self._results.setdefault(done.n, done)
                self._changed.notify_all()
            if hand == 0:
                self._patience.handed_in(done)
            n = self._choose(hand)
            if n is None:
                return None
            self._held[n] = (hand, time.monotonic())
            if hand == 0:
                self._patience.taken()
            return self._open[n]

    def wait(self) -> None:
        """See :class:`Board`."""
        with self._changed:
            self._changed.wait(_IDLE_S)

    @property
    def results(self) -> dict[int, ShardResult]:
        """See :class:`Board`."""
        return self._results

    @property
    def is_complete(self) -> bool:
        """See :class:`Board`."""
        return len(self._results) == len(self._open)

    def _choose(self, hand: int) -> int | None:
        missing = [n for n in self._open if n not in self._results]
        free = [n for n in missing if n not in self._held]
        if free:
            return min(free)
        limit = time.monotonic() - self._patience.seconds
        late = [n for n in missing if hand == 0 and self._held[n][1] < limit]
        return late[0] if late else None


class SharedBoard:
    """Shards for the hands of this trainer and for helpers on other workers, by way of the supervisor.

    Args:
        channel: to the supervisor.
        idle: between questions while nothing is to be had.
    """

    def __init__(self, channel: Channel, idle: Idle) -> None:
        self._channel = channel
        self._idle = idle
        self._asking = threading.Lock()
        self._open: frozenset[int] = frozenset()
        self._results: dict[int, ShardResult] = {}
        self._patience = Patience()

    def open(self, orders: Sequence[ShardOrder]) -> None:
        """See :class:`Board`."""
        with self._asking:
            first = min(order.n for order in orders)
            for start in range(0, len(orders), MOST_SHARDS):
                self._channel.send(OpenShards(first=first, shards=list(orders[start : start + MOST_SHARDS])))
            self._results = {}
            self._open = frozenset(order.n for order in orders)

    def close(self) -> None:
        """See :class:`Board`. The rows go when others are opened, or with the attempt."""
        with self._asking:
            self._open, self._results = frozenset(), {}

    def take(self, hand: int, done: ShardResult | None) -> ShardOrder | None:
        """See :class:`Board`."""
        with self._asking:
            if hand == 0:
                self._patience.handed_in(done)
            if done is not None and done.n in self._open:
                self._results.setdefault(done.n, done)
            if self.is_complete:
                return None
            have, patience_s = sorted(self._results), self._patience.seconds
            news = self._channel.ask(TakeShard(hand=hand, have=have, patience_s=patience_s))
            assert isinstance(news, ShardNews), "what a supervisor answers this question with"
            for result in news.results:
                self._results.setdefault(result.n, result)
            if news.order is not None:
                self._idle.found()
                if hand == 0:
                    self._patience.taken()
            return news.order

    def wait(self) -> None:
        """See :class:`Board`."""
        self._idle.wait()

    @property
    def results(self) -> dict[int, ShardResult]:
        """See :class:`Board`."""
        return self._results

    @property
    def is_complete(self) -> bool:
        """See :class:`Board`."""
        return len(self._results) == len(self._open)


class Patience:
    """How long the trainer's own hand waits for a shard that somebody else holds."""

    def __init__(self) -> None:
        self._longest_s = 0.0
        self._since: float | None = None

    def taken(self) -> None:
        """The hand begins to measure a shard."""
        self._since = time.monotonic()

    def handed_in(self, done: ShardResult | None) -> None:
        """The hand is free; ``done`` is what it has measured, if anything."""
        if done is not None and self._since is not None:
            self._longest_s = max(self._longest_s, time.monotonic() - self._since)
        self._since = None

    @property
    def seconds(self) -> float:
        """Twice what its own longest shard took, and a second for those who claim and answer."""
        return 2 * self._longest_s + 1
