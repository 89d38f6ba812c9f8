"""The real trainer, whose disk another program fills up at a moment that the environment names.

``FILL_DISK`` is the folder to fill, ``FILL_WHEN`` a stage (as it is entered) or ``proof`` (as the process starts that
loads an export again). Of that disk no byte is left.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from models import export
from tests.faults.small_disk import SmallDisk
from workers.stages.context import Context
from workers.trainer import run_stages, serve


def _fill_before(original: Callable[..., Any], is_moment: Callable[..., bool]) -> Callable[..., Any]:
    def filling(*arguments: Any) -> Any:
        if is_moment(*arguments):
            SmallDisk(Path(os.environ["FILL_DISK"])).fill()
        return original(*arguments)

    return filling


if __name__ == "__main__":
    when = os.environ["FILL_WHEN"]
    Context.enter = _fill_before(Context.enter, lambda _, stage: stage == when)  # type: ignore[method-assign]
    export._run_probe = _fill_before(export._run_probe, lambda *_: when == "proof")
    serve(run_stages)
