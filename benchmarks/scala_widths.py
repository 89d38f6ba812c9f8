"""Slimmable networks width by width: Scala without each of its parts, US-Net, separate training, unseen widths.

The toy scale takes minutes and shows that everything works. The full scale is 10,000 images of CIFAR-10 at 16 pixels,
three seeds. It may be stopped at any time and goes on where it was.

    python benchmarks/scala_widths.py [--scale toy|full] [--images FOLDER] [--work FOLDER] [--results FILE]
        [--arms ARM ...] [--seeds N ...] [--slots N] [--table]

``--images`` is a folder with ``cifar10-train.parquet`` and ``cifar10-test.parquet`` in the layout of Hugging Face;
default: ``$VITAILOR_TEST_DATA``. Time and memory are measured by ``scala_cost.py``.
"""

from __future__ import annotations

from scala.plan import SCALES, study
from scala.tables import tables
from study.command import run_study


def main() -> None:
    """Run what is missing, then print the tables."""
    run_study(__doc__, "scala", SCALES, lambda name: study(SCALES[name]), lambda _, entries: tables(entries))


if __name__ == "__main__":
    main()
