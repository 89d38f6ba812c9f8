import json
from itertools import pairwise

import pytest

from search.trace import MOST_ROWS, Trace


@pytest.mark.parametrize("generations", [1, 10, MOST_ROWS, MOST_ROWS + 1, 5000])
def test_it_keeps_a_bounded_even_selection_with_the_last_one(generations: int) -> None:
    trace = Trace()
    for i in range(generations):
        trace.add(i, {"value": i / 2})
    kept = [row["generation"] for row in trace.rows]
    assert kept[0] == 0
    assert kept[-1] == generations - 1
    assert len(kept) <= MOST_ROWS + 1
    assert len(kept) >= min(generations, MOST_ROWS // 2)
    assert len({b - a for a, b in pairwise(kept[:-1])}) <= 1
    assert all(row["value"] == row["generation"] / 2 for row in trace.rows)


@pytest.mark.parametrize("stop", [0, 7, 300])
def test_it_goes_on_from_a_state(stop: int) -> None:
    undisturbed, interrupted, resumed = Trace(), Trace(), Trace()
    for i in range(stop):
        interrupted.add(i, {"value": i})
    resumed.restore(json.loads(json.dumps(interrupted.state())))
    for i in range(stop, 600):
        resumed.add(i, {"value": i})
    for i in range(600):
        undisturbed.add(i, {"value": i})
    assert resumed.rows == undisturbed.rows
