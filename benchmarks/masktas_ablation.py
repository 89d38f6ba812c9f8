"""MaskTAS's ablation and the rank correlation of its score, on the same images and seeds, as jobs of the service.

The toy scale takes minutes and shows that everything works. The full scale takes about three hours on two cores: 10,000
images of CIFAR-10 at 16 pixels, three seeds. It may be stopped at any time and goes on where it was.

    python benchmarks/masktas_ablation.py [--scale toy|full] [--images FOLDER] [--work FOLDER] [--results FILE]
        [--arms ARM ...] [--seeds N ...] [--slots N] [--table]

``--images`` is a folder with ``cifar10-train.parquet`` and ``cifar10-test.parquet`` in the layout of Hugging Face;
default: ``$VITAILOR_TEST_DATA``.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

from masktas.plan import SCALES, Scale, entries
from masktas.runner import Memory, run
from masktas.tables import ablation_table, correlation_tables

_RESULTS = Path(__file__).parent / "results"


def main() -> None:
    """Run what is missing, then print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", choices=SCALES, default="toy", help="how large the study is (default toy)")
    parser.add_argument("--images", type=Path, default=os.environ.get("VITAILOR_TEST_DATA"), help="folder of CIFAR-10")
    parser.add_argument("--work", type=Path, help="folder of the service (default: a new one, removed at the end)")
    parser.add_argument("--results", type=Path, help="default: results/masktas-<scale>.json beside this script")
    parser.add_argument("--arms", nargs="*", help="only these arms")
    parser.add_argument("--seeds", nargs="*", type=int, help="only these seeds")
    parser.add_argument("--slots", type=int, default=os.cpu_count() or 1, help="jobs at once (default: processors)")
    parser.add_argument("--table", action="store_true", help="only print what the results file holds")
    chosen = parser.parse_args()
    scale = SCALES[chosen.scale]
    if not chosen.table and not chosen.images:
        raise SystemExit("skipped: give --images or VITAILOR_TEST_DATA, a folder with CIFAR-10's Parquet files")
    with tempfile.TemporaryDirectory(prefix="vitailor-ablation-") as passing:
        # The results of a toy run are of no use to anybody.
        default = Path(passing) / "results.json" if scale.name == "toy" else _RESULTS / f"masktas-{scale.name}.json"
        memory = Memory(chosen.results or default)
        if not chosen.table:
            Path(passing).chmod(0o711)  # as root, the servers' account has to enter it
            wanted = [
                entry
                for entry in entries(scale)
                if (not chosen.arms or entry.arm in chosen.arms) and (not chosen.seeds or entry.seed in chosen.seeds)
            ]
            run(scale, wanted, Path(chosen.images), chosen.work or Path(passing), memory, chosen.slots)
        _print(scale, memory)


def _print(scale: Scale, memory: Memory) -> None:
    print(f"## Ablation, scale {scale.name}\n\n{ablation_table(scale, memory.entries)}\n")
    print(f"## Rank correlation with stand-alone accuracy\n\n{correlation_tables(scale, memory.entries)}")


if __name__ == "__main__":
    main()
