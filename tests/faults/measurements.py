"""Measured latencies that a real trainer writes down, or those of an earlier run in their place.

They lie in a folder beside the appointments, if there is one: ``taken``, a line of JSON for each measurement in the
order of time, and ``replayed``, an object with the milliseconds of each genotype. With the latter nothing is measured.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from models.architecture import Architecture
from tests.faults.appointments import FOLDER
from workers.latency.measure import Latency
from workers.latency.meter import NetworkMeter

NAME = "measurements"


def key_of(genotype: object) -> str:
    """The same for every spelling of a number."""
    return json.dumps([float(gene) for gene in genotype])  # type: ignore[attr-defined]


def read_taken(folder: Path) -> list[tuple[str, float]]:
    """Every whole measurement so far: genotype and milliseconds."""
    path = folder / "taken"
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [(row[0], row[1]) for row in (json.loads(line) for line in lines if line.endswith("\n"))]


def keep_record() -> None:
    """Let this process write down what it measures."""
    folder = Path(os.environ[FOLDER]).with_name(NAME)
    if not folder.is_dir():
        return
    measure = NetworkMeter.measure

    def recorded(self: NetworkMeter, arch: Architecture) -> float:
        key, replayed = key_of(arch.genotype), folder / "replayed"
        if replayed.exists():
            return float(json.loads(replayed.read_text())[key])
        taken = measure(self, arch)
        with (folder / "taken").open("a") as file:
            file.write(json.dumps([key, taken]) + "\n")
        return taken

    def of_an_export(self: NetworkMeter, exported: Path, arch: Architecture) -> Latency:
        # As when the candidate was measured: a machine that is busier at the end would fail the job by its own limit.
        ns = round(1e6 * dict(read_taken(folder))[key_of(arch.genotype)])
        return Latency(ns=ns, low_ns=ns, high_ns=ns, runs=1, warmup_runs=0, steady=True, outliers=0)

    NetworkMeter.measure = recorded  # type: ignore[method-assign]
    NetworkMeter.measure_export = of_an_export  # type: ignore[method-assign]
