"""The lines between supervisor and trainer."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from workers.protocol import Metric, Progress, Stop, decode_from_trainer, decode_to_trainer, encode


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
