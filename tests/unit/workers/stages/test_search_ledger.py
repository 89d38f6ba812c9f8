"""The files that a search grows by."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from tests.channels import RecordingChannel
from tests.stage_runs import TINY, resumed, search_start
from workers.protocol import CheckpointMessage, Start
from workers.stages.context import Context
from workers.stages.search_ledger import FAN_OUT, Kept, SearchLedger
from workers.training.files import write_bytes

SAVES = FAN_OUT**2 + 3


def grown(folder: Path, saves: int) -> tuple[Start, list[CheckpointMessage]]:
    """A search that tells one row between any two checkpoints."""
    start, channel = search_start(TINY, folder), RecordingChannel()
    ctx = Context(start, channel)
    ctx.enter("search")
    ledger = SearchLedger(ctx)
    for n in range(saves):
        ledger.add(Kept.TOLD, [[n, 0.1 * n]])
        ctx.checkpoint({"ledger": ledger.save()})
    return start, channel.of_type(CheckpointMessage)


def restored(start: Start, checkpoint: CheckpointMessage, folder: Path) -> list[Any]:
    ctx = Context(resumed(start, checkpoint, folder), RecordingChannel())
    return list(SearchLedger(ctx).restore(checkpoint.state["state"])[Kept.TOLD])


def test_every_checkpoint_brings_back_what_was_added_before_it(tmp_path: Path) -> None:
    start, checkpoints = grown(tmp_path, FAN_OUT + 2)
    for saves, checkpoint in enumerate(checkpoints, 1):
        rows = [[n, 0.1 * n] for n in range(saves)]
        assert restored(start.model_copy(update={"fence": saves}), checkpoint, tmp_path) == rows


def test_checkpoints_stay_small_and_rows_are_seldom_written_again(tmp_path: Path) -> None:
    start, checkpoints = grown(tmp_path, SAVES)
    most = max(len(checkpoint.files) for checkpoint in checkpoints)
    assert most <= (FAN_OUT - 1) * (1 + math.ceil(math.log(SAVES, FAN_OUT)))
    written = {ref.sha256: ref.size_bytes for checkpoint in checkpoints for ref in checkpoint.files}
    whole = sum(ref.size_bytes for ref in checkpoints[-1].files)
    assert sum(written.values()) <= whole * (1 + math.log(SAVES, FAN_OUT))
    assert restored(start, checkpoints[-1], tmp_path) == [[n, 0.1 * n] for n in range(SAVES)]


def test_files_are_never_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []

    def write_once(path: Path, data: bytes) -> Any:
        names.append(path.name)
        return write_bytes(path, data)

    monkeypatch.setattr("workers.stages.search_ledger.write_bytes", write_once)
    start, checkpoints = grown(tmp_path, SAVES)
    assert len(names) == len(set(names)) == SAVES
    ctx = Context(resumed(start, checkpoints[-1], tmp_path), RecordingChannel())
    ledger = SearchLedger(ctx)
    ledger.restore(checkpoints[-1].state["state"])
    ledger.add(Kept.TOLD, [[SAVES]])
    ledger.save()
    assert len(names) == len(set(names)) == SAVES + 1


def test_rows_come_back_to_the_bit(tmp_path: Path) -> None:
    rows = [[(1, 4.0, 0.1 + 0.2), {"score": math.inf, "other": -0.0}], [[], None]]
    start, channel = search_start(TINY, tmp_path), RecordingChannel()
    ctx = Context(start, channel)
    ctx.enter("search")
    ledger = SearchLedger(ctx)
    ledger.add(Kept.MEASURES, rows)
    ctx.checkpoint({"ledger": ledger.save()})
    again = Context(resumed(start, channel.of_type(CheckpointMessage)[-1], tmp_path), RecordingChannel())
    found = SearchLedger(again).restore(channel.of_type(CheckpointMessage)[-1].state["state"])
    assert repr(found[Kept.MEASURES]) == "[[[1, 4.0, 0.30000000000000004], {'score': inf, 'other': -0.0}], [[], None]]"
    assert found[Kept.TOLD] == []
