"""What checkpoints of a long search cost, beside what they cost when each of them held the whole search.

Run ``python benchmarks/search_checkpoints.py --candidates 100000``. Candidates are random members of a space with
made-up measures, told in generations with a checkpoint after each; the files go through the supervisor's promotion into
a store in a folder. The old way, the whole search as JSON in the checkpoint's message, is measured at a few places in
between and summed up over all generations by the trapezoidal rule; what the database made of it is left out.
"""

from __future__ import annotations

import argparse
import io
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from search.constraints import feasible_set
from search.presets import resolve
from search.random_search import RandomSearch
from service.store import open_store
from workers.channel import Channel
from workers.promote import upload
from workers.protocol import CheckpointMessage, Start, encode
from workers.stages.context import Context, Json
from workers.stages.search_ledger import Kept, SearchLedger

POPULATION = 50
PROBES = 10  # of the old way


class _Kept(Channel):
    """Keeps the last message in place of a supervisor."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO())
        self.last: CheckpointMessage | None = None

    def send(self, message: object) -> None:
        if isinstance(message, CheckpointMessage):
            self.last = message


@dataclass
class _Costs:
    """Sums over all checkpoints, and the largest of them."""

    trainer_s: float = 0.0
    supervisor_s: float = 0.0
    state_bytes: int = 0
    files_bytes: int = 0
    most_files: int = 0
    old_s: list[tuple[int, float]] = field(default_factory=list)
    old_bytes: list[tuple[int, float]] = field(default_factory=list)


def start_in(folder: Path) -> Start:
    """An order that has nothing but a run directory."""
    (folder / "run").mkdir()
    return Start(
        job_id="job_0",
        fence=1,
        kind="search",
        spec={},
        seed=0,
        run_dir=str(folder / "run"),
        cache_dir=str(folder),
        threads=1,
        device="cpu",
        checkpoint_s=1.0,
        lease_s=60.0,
        dataset={},
    )


def run(candidates: int, folder: Path) -> tuple[_Costs, Json, Start]:
    """A search of so many candidates: costs, the last state, and the order that it was run by."""
    start, channel = start_in(folder), _Kept()
    ctx = Context(start, channel)
    ctx.enter("search")
    ledger, costs = SearchLedger(ctx), _Costs()
    store, stored = open_store((folder / "store").as_uri()), set[str]()
    rng = np.random.default_rng(0)
    generations = candidates // POPULATION
    feasible = feasible_set(resolve("masktas-small"), [], 1000)
    search = RandomSearch(feasible, population=POPULATION, generations=generations - 1, rng=rng)
    probes = {round(share * generations) for share in np.linspace(1 / PROBES, 1, PROBES)}
    measured: list[Json] = []
    for generation in range(1, generations + 1):
        proposals = search.ask()
        scores = rng.normal(size=POPULATION)
        rows = [
            [p.genotype, {"consistency": score, "reconstruction": score, "effective_rank": score}]
            for p, score in zip(proposals, map(float, scores), strict=True)
        ]
        search.tell(list(map(float, scores)))
        began = time.perf_counter()
        ledger.add(Kept.MEASURES, rows)
        ledger.add(Kept.TOLD, search.history(proposals[0].n))
        ctx.checkpoint({"search": {"state": search.state()}, "ledger": ledger.save()})
        costs.trainer_s += time.perf_counter() - began
        assert channel.last is not None
        began = time.perf_counter()
        upload(store, Path(start.run_dir), channel.last.files, stored)
        costs.supervisor_s += time.perf_counter() - began
        costs.state_bytes = max(costs.state_bytes, len(encode(channel.last)))
        costs.most_files = max(costs.most_files, len(channel.last.files))
        measured += rows
        if generation in probes:
            began = time.perf_counter()
            whole = {"search": {"state": search.state(), "history": search.history()}, "measures": measured}
            line = encode(CheckpointMessage(stage="search", state=whole, files=[]))
            costs.old_s.append((generation, time.perf_counter() - began))
            costs.old_bytes.append((generation, len(line)))
    costs.files_bytes = sum(path.stat().st_size for path in Path(start.run_dir).glob("*.jsonl"))
    assert channel.last is not None
    return costs, channel.last.state, start


def summed(probes: list[tuple[int, float]]) -> float:
    """Over all generations, from values at some of them; it begins with nothing."""
    places, values = zip((0, 0.0), *probes, strict=True)
    return float(np.trapezoid(values, places))


def main() -> None:
    """Print one line for each figure."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--candidates", type=int, default=100_000)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        costs, state, order = run(asked.candidates, Path(name))
        began = time.perf_counter()
        rows = SearchLedger(Context(order, _Kept())).restore(state["state"])
        restore_s = time.perf_counter() - began
        assert len(rows[Kept.TOLD]) == asked.candidates
    saves = asked.candidates // POPULATION
    print(f"{asked.candidates:,} candidates, {saves:,} checkpoints")
    print(f"{'':<34}{'before':>14}{'now':>14}")
    lines = [
        ("trainer, seconds in all", summed(costs.old_s), costs.trainer_s),
        ("megabytes written in all", summed(costs.old_bytes) / 1e6, costs.files_bytes / 1e6),
        ("largest message, kilobytes", costs.old_bytes[-1][1] / 1e3, costs.state_bytes / 1e3),
    ]
    for what, before, now in lines:
        print(f"{what:<34}{before:>14,.1f}{now:>14,.1f}")
    print(f"{'supervisor, seconds in all':<34}{'':>14}{costs.supervisor_s:>14,.1f}")
    print(f"{'most files of a checkpoint':<34}{'':>14}{costs.most_files:>14}")
    print(f"{'reading all of it back, seconds':<34}{'':>14}{restore_s:>14,.1f}")


if __name__ == "__main__":
    main()
