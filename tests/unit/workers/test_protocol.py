"""The lines between supervisor and trainer."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from tests.trainer import candidate
from workers.protocol import (
    MOST_MOVES,
    MOST_ROWS,
    Metric,
    Progress,
    Stop,
    candidate_messages,
    decode_from_trainer,
    decode_to_trainer,
    encode,
)


def test_messages_are_single_lines_that_read_back() -> None:
    message = Metric(stage="teacher", step=3, values={"note": "two\nlines"})
    line = encode(message)
    assert line.count(b"\n") == 1
    assert decode_from_trainer(line) == message


def test_no_number_becomes_null() -> None:
    """PostgreSQL's JSON has no NaN either."""
    line = encode(Metric(stage="teacher", step=3, values={"loss": float("nan"), "rate": float("inf")}))
    assert decode_from_trainer(line) == Metric(stage="teacher", step=3, values={"loss": None, "rate": None})


@pytest.mark.parametrize("line", [b"", b"chatter\n", b'{"type": "unknown"}\n', b'{"type": "stop", "reason": "whim"}\n'])
def test_anything_else_is_refused(line: bytes) -> None:
    with pytest.raises(ValidationError):
        decode_from_trainer(line)
    with pytest.raises(ValidationError):
        decode_to_trainer(line)


def test_each_side_reads_only_what_is_said_to_it() -> None:
    with pytest.raises(ValidationError):
        decode_from_trainer(encode(Stop(reason="drain")))
    with pytest.raises(ValidationError):
        decode_to_trainer(encode(Progress(stage="teacher", fraction=0.5)))


def test_a_large_generation_comes_in_messages_of_bounded_size_rows_first() -> None:
    rows = [candidate(n) for n in range(2 * MOST_ROWS + 1)]
    joined, left = list(range(MOST_MOVES + 1)), [1, 2]
    messages = list(candidate_messages(rows, joined, left, anew=True))
    assert [(len(m.rows), len(m.joined), m.left, m.anew) for m in messages] == [
        (MOST_ROWS, 0, [], False),
        (MOST_ROWS, 0, [], False),
        (1, MOST_MOVES, [1, 2], True),
        (0, 1, [], False),
    ]
    assert [row for m in messages for row in m.rows] == rows


@pytest.mark.parametrize(("anew", "expected"), [(True, 1), (False, 0)])
def test_an_empty_front_is_told_when_it_replaces_another(anew: bool, expected: int) -> None:
    assert len(list(candidate_messages([], [], [], anew=anew))) == expected
