"""The command line of a study."""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

from study.memory import Json, Memory
from study.plan import Entry, Study
from study.runner import run

_RESULTS = Path(__file__).parents[1] / "results"


def run_study(
    description: str | None,
    name: str,
    scales: Collection[str],
    study: Callable[[str], Study],
    tables: Callable[[str, Mapping[str, Json]], str],
) -> None:
    """Run what is missing of the scale that the command line names, then print the tables.

    Args:
        description: of the script.
        name: of the study, by which its results file is called.
        scales: that there are; ``toy`` is the default, whose results are not kept.
        study: what a scale runs.
        tables: Markdown, from a scale and the results.
    """
    chosen = _parser(description, name, scales).parse_args()
    if not chosen.table and not chosen.images:
        raise SystemExit("skipped: give --images or VITAILOR_TEST_DATA, a folder with CIFAR-10's Parquet files")
    with tempfile.TemporaryDirectory(prefix="vitailor-study-") as passing:
        # The results of a toy run are of no use to anybody.
        default = Path(passing) / "results.json" if chosen.scale == "toy" else _RESULTS / f"{name}-{chosen.scale}.json"
        memory = Memory(chosen.results or default)
        if not chosen.table:
            Path(passing).chmod(0o711)  # as root, the servers' account has to enter it

            def wanted(entry: Entry) -> bool:
                return (not chosen.arms or entry.arm in chosen.arms) and (
                    not chosen.seeds or entry.seed in chosen.seeds
                )

            run(study(chosen.scale), wanted, Path(chosen.images), chosen.work or Path(passing), memory, chosen.slots)
        print(tables(chosen.scale, memory.entries))


def _parser(description: str | None, name: str, scales: Collection[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", choices=scales, default="toy", help="how large the study is (default toy)")
    parser.add_argument("--images", type=Path, default=os.environ.get("VITAILOR_TEST_DATA"), help="folder of CIFAR-10")
    parser.add_argument("--work", type=Path, help="folder of the service (default: a new one, removed at the end)")
    parser.add_argument("--results", type=Path, help=f"default: results/{name}-<scale>.json beside this script")
    parser.add_argument("--arms", nargs="*", help="only these arms, and what they take over")
    parser.add_argument("--seeds", nargs="*", type=int, help="only these seeds")
    parser.add_argument("--slots", type=int, default=os.cpu_count() or 1, help="jobs at once (default: processors)")
    parser.add_argument("--table", action="store_true", help="only print what the results file holds")
    return parser
