"""A population measured in shards, by whomever, has the measures of an undivided one to the last bit."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path

import pytest

from models.architecture import Architecture
from search.measures import Measure
from tests.stage_runs import TINY, merged
from tests.unit.workers.stages.runs import search_to_export
from tests.unit.workers.stages.test_scoring import EVERY, SPACE, scorer
from workers.shard_messages import ShardOrder, ShardResult
from workers.stages.scoring import Measures
from workers.stages.shards.boards import OwnBoard
from workers.stages.shards.crew import Crew
from workers.stages.shards.measuring import ShardMeter, divide

SUMS = tuple(measure for measure in EVERY if measure is not Measure.EFFECTIVE_RANK)


def population() -> list[Architecture]:
    return [
        SPACE.decode((depth, *[ratio] * depth, *[heads] * depth, width))
        for depth, ratio, heads, width in product(SPACE.depth[:2], SPACE.mlp_ratio, SPACE.num_heads, SPACE.embed_dim)
    ]


def nothing() -> None:
    """Nobody wants to stop."""


def by_others(measures: tuple[Measure, ...], hands: int) -> tuple[list[ShardOrder], list[Measures]]:
    """All shards by another scorer, out of order, over the wire."""
    archs, one, other = population(), scorer(), ShardMeter(scorer(), SPACE)
    wanted = [measures] * len(archs)
    orders = divide(archs, wanted, batches=one.views, hands=hands, first=7)
    results: dict[int, ShardResult] = {}
    for order, _ in reversed(orders):
        received = ShardOrder.model_validate_json(order.model_dump_json())
        found = other.measure(received, nothing)
        results[order.n] = ShardResult.model_validate_json(found.model_dump_json())
    return [order for order, _ in orders], ShardMeter(one, SPACE).join(wanted, orders, results)


def test_shards_of_candidates_give_the_measures_of_the_whole() -> None:
    orders, found = by_others(EVERY, hands=2)
    assert len(orders) == 8
    assert {order.batches for order in orders} == {None}  # the effective rank is no sum
    assert found == scorer().score_all(population(), [EVERY] * len(found))


def test_shards_of_batches_give_the_measures_of_the_whole() -> None:
    orders, found = by_others(SUMS, hands=100)
    assert {order.batches for order in orders} == {(0, 1), (1, 2), (2, 3)}
    assert found == scorer().score_all(population(), [SUMS] * len(found))


def test_an_infinite_sum_is_no_number_after_all_batches() -> None:
    one = scorer()
    assert one.from_sums([Measure.FEATURE], [[1.0], [float("inf")], [1.0]]) == {"feature": None}


class Hand:
    """Takes shards as another process would, in a thread."""

    def __init__(self, board: OwnBoard, until: Callable[[], bool], *, dies: bool = False) -> None:
        self.measured: list[int] = []
        self._dies = dies
        self._board, self._until = board, until
        self.holds = threading.Event()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        meter, done = ShardMeter(scorer(), SPACE), None
        while not self._until():
            order = self._board.take(1, done)
            done = None
            if order is None:
                self._board.wait()
                continue
            self.holds.set()
            if self._dies:
                return
            done = meter.measure(order, nothing)
            self.measured.append(order.n)


@pytest.fixture
def over() -> Iterator[threading.Event]:
    event = threading.Event()
    yield event
    event.set()


def polling(hand: Hand) -> Callable[[], None]:
    """Lets the trainer's own hand wait until the other one has its first shard."""

    def poll() -> None:
        assert hand.holds.wait(30)

    return poll


def test_two_hands_share_populations_and_find_the_same(over: threading.Event) -> None:
    archs, one, board = population(), scorer(), OwnBoard()
    hand = Hand(board, over.is_set)
    crew = Crew(one, ShardMeter(one, SPACE), board, hands=2)
    expected = scorer().score_all(archs, [EVERY] * len(archs))
    for _ in range(2):
        hand.holds.clear()
        assert crew.measure(archs, [EVERY] * len(archs), polling(hand)) == expected
    assert len(hand.measured) == len(set(hand.measured)) > 1


def test_what_a_dead_hand_holds_is_measured_by_the_trainer(over: threading.Event) -> None:
    archs, one, board = population(), scorer(), OwnBoard()
    hand = Hand(board, over.is_set, dies=True)
    crew = Crew(one, ShardMeter(one, SPACE), board, hands=2)
    found = crew.measure(archs, [SUMS] * len(archs), polling(hand))
    assert found == scorer().score_all(archs, [SUMS] * len(archs))
    assert hand.measured == []


def test_candidates_of_which_nothing_is_asked_are_in_no_shard() -> None:
    archs, one = population(), scorer()
    wanted = [SUMS if i % 2 else () for i in range(len(archs))]
    crew = Crew(one, ShardMeter(one, SPACE), OwnBoard(), hands=2)
    assert crew.measure(archs, wanted, nothing) == scorer().score_all(archs, wanted)
    assert crew.measure(archs[:2], [(), ()], nothing) == [{}, {}]


@pytest.mark.slow
def test_a_search_by_two_processes_finds_what_one_process_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1})
    both = merged(TINY, {"search": {"population": 12, "evaluation": {"processes": 2}}})
    alone = merged(TINY, {"search": {"population": 12}})
    found, expected = search_to_export(tmp_path / "2", body=both), search_to_export(tmp_path / "1", body=alone)
    assert found.rows == expected.rows
    assert found.outputs["search"]["best"] == expected.outputs["search"]["best"]
