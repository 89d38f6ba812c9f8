"""The real trainer, which keeps appointments to die: in the middle of a stage, or where it ends."""

from __future__ import annotations

from typing import Any

from tests.faults.appointments import keep_appointment
from tests.faults.measurements import keep_record
from workers.stages.context import Context, Json
from workers.trainer import run_stages, serve


def _die_on_the_way() -> None:
    progress, complete = Context.progress, Context.complete

    def deadly_progress(self: Context, fraction: float, **detail: Any) -> None:
        if 0.5 <= fraction < 1:
            keep_appointment(self.stage)
        progress(self, fraction, **detail)

    def deadly_complete(self: Context, outputs: Json) -> None:
        keep_appointment(self.stage)
        complete(self, outputs)

    Context.progress, Context.complete = deadly_progress, deadly_complete  # type: ignore[method-assign]


if __name__ == "__main__":
    _die_on_the_way()
    keep_record()
    serve(run_stages)
