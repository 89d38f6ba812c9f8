"""The demonstration: a whole search, from an empty folder to a network that runs without the project."""

from __future__ import annotations

import contextlib
import logging
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from service.cli import output
from service.cli.connection import read_settings
from service.cli.failures import Exit, UsageProblem, problem_lines
from service.cli.jobs import fetch_winner, find_winner, print_result
from service.cli.proof import Proof, ProofFailed, prove
from service.cli.specfile import read_spec
from service.cli.stack import stop_on_signals
from service.cli.watch import follow
from service.client import Candidate, Client, Job
from service.embedded import Embedded, EmbeddedError
from service.logs import configure_logging

MIN_HOLDOUT_ACCURACY = 0.95
"""What the demonstration promises of its winner, on images that nothing was trained or chosen on."""

_TRAINER_THREADS = 1
"""Networks of this size train faster on one thread than on two, which wait for each other at every operation."""

_MILLION = 1_000_000


@dataclass(frozen=True, slots=True)
class Check:
    """One promise and whether it was kept."""

    kept: bool
    text: str


def demo(
    data: Annotated[Path | None, typer.Option("--data", help="Data folder, kept; default: a temporary one.")] = None,
    out: Annotated[Path, typer.Option("--out", help="Where the winner goes.")] = Path("demo-output"),
    keep: Annotated[bool, typer.Option("--keep", help="Keep the temporary data folder.")] = False,
) -> None:
    """Search a network for handwritten digits: start everything, search, download, prove, stop everything."""
    stop_on_signals()
    configure_logging(logging.WARNING)
    console = output.make_console()
    started = time.monotonic()
    try:
        with _data_folder(data, keep) as folder:
            checks = _run(folder, out, console)
    except EmbeddedError as error:
        raise UsageProblem(str(error)) from error
    except KeyboardInterrupt:
        print("\nstopped; nothing is left running")
        raise typer.Exit(Exit.INTERRUPTED) from None
    for check in checks:
        print(f"{'ok  ' if check.kept else 'FAIL'}  {check.text}")
    print(f"everything is stopped again, after {output.duration(time.monotonic() - started)}")
    if not all(check.kept for check in checks):
        raise typer.Exit(Exit.JOB_NOT_SUCCEEDED)


@contextlib.contextmanager
def _data_folder(given: Path | None, keep: bool) -> Iterator[Path]:
    if given is not None:
        yield given
    elif keep:
        folder = Path(tempfile.mkdtemp(prefix="vitailor-demo-"))
        yield folder
        print(f"the data folder {folder} is kept")
    else:
        with tempfile.TemporaryDirectory(prefix="vitailor-demo-") as temporary:
            yield Path(temporary)


def _run(folder: Path, out: Path, console: Console) -> list[Check]:
    with as_file(files("service.cli") / "demo.yaml") as path:
        spec = read_spec(path)
    print(f"starting PostgreSQL, Valkey, API, relay and worker in {folder} ...", flush=True)
    started = time.monotonic()
    settings = read_settings(data_dir=folder, host="127.0.0.1", port=0, trainer_threads=_TRAINER_THREADS)
    with Embedded(settings) as stack, Client(stack.url, stack.api_key) as client:
        print(f"{stack.url} is ready after {time.monotonic() - started:.1f} s", flush=True)
        job = client.search(spec)
        print(f"{job.id}: {job.name}", flush=True)
        job = follow(client, job.id, console)
        if job.status != "succeeded":
            return [_failed(job)]
        print_result(client, job)
        winner = find_winner(client, job)
        paths = fetch_winner(client, job, out)
    for path in paths:
        print(f"downloaded {path} ({path.stat().st_size:,} bytes)")
    return _checks(job, winner, out)


def _failed(job: Job) -> Check:
    reason = "\n".join(problem_lines(job.error)) if job.error else ""
    return Check(False, f"the search {job.status}\n{reason}")


def _checks(job: Job, winner: Candidate, out: Path) -> list[Check]:
    try:
        proof = prove(out)
    except ProofFailed as error:
        return [Check(False, f"the files in {out} do not work on their own: {error}")]
    print(f"{out}/model.py, run by a Python that cannot import this project, on the first {len(proof.labels)} digits:")
    print(f"  digits      {' '.join(map(str, proof.labels))}")
    print(f"  predictions {' '.join(map(str, proof.predictions))}")
    return [*_size_checks(job, winner, proof), *_quality_checks(job, proof)]


def _size_checks(job: Job, winner: Candidate, proof: Proof) -> Iterator[Check]:
    told = round(winner.costs["params_m"] * _MILLION)
    yield Check(
        proof.parameters == told,
        f"{winner.id} has {proof.parameters:,} parameters, counted in its file; the search said {told:,}",
    )
    for limit in job.spec["constraints"]:
        if limit["metric"] == "params_m" and limit["max"] is not None:
            most = round(limit["max"] * _MILLION)
            yield Check(proof.parameters <= most, f"the limit was {most:,} parameters")


def _quality_checks(job: Job, proof: Proof) -> Iterator[Check]:
    result: dict[str, Any] = job.result or {}
    parity, holdout = result["parity"], result["holdout"]
    yield Check(
        parity["max_scaled_diff"] <= parity["tolerance"],
        f"exported and trained network differ by at most {parity['max_abs_diff']:.2g} in any output, "
        f"on {parity['images']} images (tolerance {parity['tolerance']:.0e} of max(1, |output|))",
    )
    yield Check(
        holdout["accuracy"] >= MIN_HOLDOUT_ACCURACY,
        f"{holdout['correct']} of {holdout['images']} images of the untouched holdout are read correctly: "
        f"{holdout['accuracy']:.2%}, {holdout['level']:.0%} interval {holdout['low']:.1%} to {holdout['high']:.1%}",
    )
    yield Check(
        proof.right >= MIN_HOLDOUT_ACCURACY * proof.images,
        f"the downloaded network reads {proof.right:,} of all {proof.images:,} digits, those it learnt from included",
    )
