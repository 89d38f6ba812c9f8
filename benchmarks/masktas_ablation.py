"""MaskTAS's ablation and the rank correlation of its score, on the same images and seeds, as jobs of the service.

The toy scale takes minutes and shows that everything works. The full scale takes about three hours on two cores: 10,000
images of CIFAR-10 at 16 pixels, three seeds. It may be stopped at any time and goes on where it was.

    python benchmarks/masktas_ablation.py [--scale toy|full] [--images FOLDER] [--work FOLDER] [--results FILE]
        [--arms ARM ...] [--seeds N ...] [--slots N] [--table]

``--images`` is a folder with ``cifar10-train.parquet`` and ``cifar10-test.parquet`` in the layout of Hugging Face;
default: ``$VITAILOR_TEST_DATA``.
"""

from __future__ import annotations

from masktas.plan import SCALES, study
from masktas.tables import tables
from study.command import run_study


def main() -> None:
    """Run what is missing, then print the tables."""
    run_study(
        __doc__,
        "masktas",
        SCALES,
        lambda name: study(SCALES[name]),
        lambda name, entries: tables(SCALES[name], entries),
    )


if __name__ == "__main__":
    main()
