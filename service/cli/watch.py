"""Following a job on the terminal: a bar for each stage, the time left, and the best network so far."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TaskID, TextColumn
from rich.text import Text

from service.cli.output import duration, number
from service.client import Client, Event, Job

_PLAIN_STEP = 0.25  # without a terminal, a stage gets a line at each quarter


@dataclass(slots=True)
class View:
    """What is known of a job while it is followed.

    Attributes:
        stages: share done of each stage, in the order in which they began.
        evaluated: candidates scored so far.
        best: the best-scored one that meets the limits.
    """

    status: str = "queued"
    stages: dict[str, float] = field(default_factory=dict)
    eta_seconds: float | None = None
    evaluated: int = 0
    best: dict[str, Any] | None = None
    warnings: list[str] = field(default_factory=list)

    def take(self, event: Event) -> None:
        """Learn from an event; unknown types say nothing."""
        match event.type:
            case "job.status":
                self.status = event.data["status"]
            case "stage.progress":
                self._progress(event.data["stage"], event.data["fraction"], event.data.get("eta_seconds"))
            case "candidate":
                self._candidates(event.data.get("evaluated", 0), event.data.get("best", []))
            case "warning":
                self.warnings.append(event.data["detail"])

    def summary(self) -> str:
        """Status, time left and best network, in one line."""
        parts = [self.status]
        if self.status == "running" and self.eta_seconds:
            parts.append(f"about {duration(self.eta_seconds)} left")
        if self.best is not None:
            costs = self.best["costs"]
            parts.append(
                f"{self.evaluated} networks scored, best {number(self.best['score'], 5)} "
                f"with {number(costs['params_m'], 4)} M parameters, {number(costs['gmacs'], 5)} GMACs"
            )
        return "; ".join(parts)

    def _progress(self, stage: str, fraction: float, eta_seconds: float | None) -> None:
        # A stage begins when the one before it has ended, which may have had no time to say so.
        for earlier in self.stages:
            if earlier == stage:
                break
            self.stages[earlier] = 1.0
        self.stages[stage] = fraction
        self.eta_seconds = eta_seconds

    def _candidates(self, evaluated: int, best: Iterable[dict[str, Any]]) -> None:
        self.evaluated = max(self.evaluated, evaluated)
        for row in best:
            if self.best is None or row["score"] > self.best["score"]:
                self.best = row


class LiveDisplay:
    """Bars that move, for a terminal."""

    def __init__(self, console: Console) -> None:
        self._bars = Progress(
            TextColumn("{task.description:<10}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %")
        )
        self._tasks: dict[str, TaskID] = {}
        self._live = Live(Text(""), console=console, refresh_per_second=8)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def show(self, view: View) -> None:
        """Move the bars."""
        for stage, fraction in view.stages.items():
            if stage not in self._tasks:
                self._tasks[stage] = self._bars.add_task(stage, total=1.0)
            self._bars.update(self._tasks[stage], completed=fraction)
        warnings = [Text(f"warning: {warning}", style="yellow") for warning in view.warnings]
        self._live.update(Group(self._bars, *warnings, Text(view.summary())))


class PlainDisplay:
    """Lines, for logs and pipes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._status = ""
        self._steps: dict[str, int] = {}
        self._warnings = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing to undo: every line is out."""

    def show(self, view: View) -> None:
        """Write a line for what is worth one."""
        for warning in view.warnings[self._warnings :]:
            self._console.print(f"warning: {warning}")
        self._warnings = len(view.warnings)
        if view.status != self._status:
            self._status = view.status
            self._console.print(view.status)
        for stage, fraction in view.stages.items():
            step = int(fraction / _PLAIN_STEP)
            if step > self._steps.get(stage, -1):
                self._steps[stage] = step
                self._console.print(f"{stage:<10} {fraction:>4.0%}  {view.summary()}")


def make_display(console: Console) -> LiveDisplay | PlainDisplay:
    """The display that suits where the console writes to."""
    return LiveDisplay(console) if console.is_terminal else PlainDisplay(console)


def follow(client: Client, job_id: str, console: Console) -> Job:
    """Show a job until it has ended and return it as it then is. Ctrl-C leaves the job alone."""
    view = View()
    with make_display(console) as display:
        for event in client.follow(job_id):
            view.take(event)
            display.show(view)
    return client.job(job_id)
