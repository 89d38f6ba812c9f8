"""What commands print on stdout: tables for people, JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from pydantic import BaseModel
from rich.console import Console
from rich.table import Table

from service.client import Agent, Candidate, Dataset, Device, Event, Job, Space, Supernet, Teacher, Width

_PIPE_WIDTH = 160  # nobody wraps what goes into a file


def make_console() -> Console:
    """The console of stdout: as wide as the terminal, or wide enough for a table when there is none."""
    return Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH, highlight=False, markup=False)


def print_json(value: BaseModel | Sequence[BaseModel] | dict[str, Any]) -> None:
    """Write records or a document as indented JSON."""
    match value:
        case BaseModel():
            plain: Any = value.model_dump(mode="json")
        case dict():
            plain = value
        case _:
            plain = [item.model_dump(mode="json") for item in value]
    print(json.dumps(plain, indent=2, ensure_ascii=False))


def jobs_table(jobs: Iterable[Job]) -> Table:
    """One line a job."""
    table = _table("job", "status", "stage", "name", "age")
    now = datetime.now(UTC)
    for job in jobs:
        age = duration((now - job.created_at).total_seconds())
        table.add_row(job.id, job.status, stage_text(job), job.name or "", age)
    return table


def candidates_table(candidates: Iterable[Candidate], title: str | None = None) -> Table:
    """One line an architecture, the cheapest first."""
    table = _table("architecture", "params [M]", "GMACs", "score", "val acc", "holdout acc", title=title)
    for candidate in sorted(candidates, key=lambda c: c.costs.get("gmacs", 0.0)):
        accuracy = candidate.accuracy or {}
        table.add_row(
            candidate.id,
            number(candidate.costs.get("params_m"), 4),
            number(candidate.costs.get("gmacs"), 5),
            number(candidate.score, 5),
            percent(accuracy.get("val")),
            percent(accuracy.get("holdout")),
        )
    return table


def ranking_table(judged: dict[str, Any]) -> Table:
    """How well each measure and control ranks networks, the best first; of a search's ``rank_correlation``."""
    title = f"{judged['truth']}, {judged['networks']} networks"
    table = _table("ranking by", "Kendall's tau", "Spearman's rho", "tau over params", title=title)
    for row in sorted(judged["measures"], key=lambda row: (row["kendall"] or {"value": -2.0})["value"], reverse=True):
        table.add_row(row["name"], *(estimate(row[key]) for key in ("kendall", "spearman", "gain_over_params")))
    return table


def honesty_table(checks: Sequence[dict[str, Any]]) -> Table:
    """What a search may claim, a line a check; of its result's ``honesty``."""
    table = _table("check", "verdict", "in words")
    for check in checks:
        table.add_row(check["check"], check["verdict"], check["sentence"])
    return table


def datasets_table(datasets: Iterable[Dataset]) -> Table:
    """One line a dataset."""
    table = _table("dataset", "name", "status", "classes", "images")
    for dataset in datasets:
        table.add_row(
            dataset.id, dataset.name, dataset.status, str(len(dataset.classes)), str(dataset.counts.get("images", ""))
        )
    return table


def teachers_table(teachers: Iterable[Teacher]) -> Table:
    """One line a teacher."""
    table = _table("teacher", "name", "kind", "width", "depth", "patch", "image", "licence")
    for teacher in teachers:
        arch, licence = teacher.architecture, teacher.info.get("licence") or {}
        sizes = (str(arch.get(field, "")) for field in ("embed_dim", "depth", "patch_size", "img_size"))
        table.add_row(teacher.id, teacher.name, teacher.info.get("kind", ""), *sizes, licence.get("name") or "")
    return table


def spaces_table(spaces: Iterable[Space]) -> Table:
    """One line a space, with the costs of its smallest and largest member."""
    table = _table("space", "architectures", "params [M]", "GMACs", "for")
    for space in spaces:
        low, high = space.costs["min"], space.costs["max"]
        params, gmacs = (f"{low[metric]:.4g} to {high[metric]:.4g}" for metric in ("params_m", "gmacs"))
        table.add_row(space.name, f"{space.size:.3g}", params, gmacs, space.description)
    return table


def devices_table(devices: Iterable[Device]) -> Table:
    """One line a device."""
    table = _table(
        "device", "name", "status", "runtime", "precision", "batch", "threads", "image", "mean error", "machine"
    )
    fields = ("runtime", "precision", "batch_size", "threads", "img_size")
    for device in devices:
        setting = device.setting or {}
        table.add_row(
            device.id,
            device.name,
            device.status,
            *(str(setting.get(field, "-")) for field in fields),
            percent(device.error_share),
            str(setting.get("device", device.agent or "-")),
        )
    return table


def agents_table(agents: Iterable[Agent]) -> Table:
    """One line an agent."""
    table = _table("agent", "connected", "seen", "machine", "torch", "onnxruntime")
    for agent in agents:
        info = agent.info or {}
        versions = info.get("versions", {})
        table.add_row(
            agent.name,
            "yes" if agent.alive else "no",
            agent.seen_at.strftime("%Y-%m-%d %H:%M:%S") if agent.seen_at else "never",
            f"{info['host']} ({info['system']}, {info['cores']} cores)" if info else "-",
            *(str(versions.get(name, "-")) for name in ("torch", "onnxruntime")),
        )
    return table


def supernets_table(supernets: Iterable[Supernet]) -> Table:
    """One line a supernet."""
    table = _table("supernet", "method", "widths", "offered", "best val acc", "job")
    for supernet in supernets:
        offered = [width for width in supernet.widths if width.offered]
        best = max((width.accuracy for width in offered if width.accuracy is not None), default=None)
        counts = (str(len(supernet.widths)), str(len(offered))) if supernet.widths else ("-", "-")
        table.add_row(supernet.id, supernet.method, *counts, percent(best), supernet.job)
    return table


def widths_table(widths: Sequence[Width], title: str | None = None) -> Table:
    """One line a width of a slimmable network; costs where they are known."""
    priced = any(width.params_m is not None for width in widths)
    costs = ("params [M]", "GMACs") if priced else ()
    table = _table("width", "ratio", *costs, "val acc", "trained", "offered", title=title)
    for width in widths:
        table.add_row(
            str(width.width),
            number(width.ratio, 4),
            *((number(width.params_m, 4), number(width.gmacs, 5)) if priced else ()),
            percent(width.accuracy),
            "no" if width.interpolated else "yes",
            "yes" if width.offered else "no",
        )
    return table


def transfer_table(result: dict[str, Any]) -> Table:
    """What the features of each width are worth on other images; of a transfer's result."""
    title = f"on {result['dataset']}, {result['images']['val']} images"
    table = _table("width", "ratio", "linear probe", f"{result['k']} neighbours", title=title)
    for width in result["widths"]:
        table.add_row(
            str(width["width"]), number(width["ratio"], 4), percent(width["linear_probe"]), percent(width["knn"])
        )
    return table


def event_line(event: Event) -> str:
    """One event on one line."""
    return f"{event.id:>6}  {event.type:<15} {json.dumps(event.data, ensure_ascii=False)}"


def stage_text(job: Job) -> str:
    """Where a job is, such as ``supernet 40 %``."""
    if job.stage is None or job.done:
        return job.stage or ""
    fraction = job.progress.fraction if job.progress else None
    return job.stage if fraction is None else f"{job.stage} {fraction:.0%}"


def number(value: float | None, digits: int) -> str:
    """A number with so many decimals, or a dash for none."""
    return "-" if value is None else f"{value:.{digits}f}"


def estimate(value: dict[str, float] | None) -> str:
    """A figure with its interval, or a dash for none."""
    return "-" if value is None else f"{value['value']:.2f} [{value['low']:.2f}, {value['high']:.2f}]"


def percent(value: float | None) -> str:
    """A share as percentage with two decimals, or a dash for none."""
    return "-" if value is None else f"{value:.2%}"


def duration(seconds: float) -> str:
    """A length of time in its largest two units."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _table(*columns: str, title: str | None = None) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for i, column in enumerate(columns):
        table.add_column(column, no_wrap=i == 0)
    return table
