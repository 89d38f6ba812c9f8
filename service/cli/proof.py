"""Proof that a downloaded network works without the project: it is used in a process that cannot import it."""

from __future__ import annotations

import subprocess
import sys
from importlib.resources import as_file, files
from pathlib import Path

from pydantic import BaseModel, ConfigDict

_LIMIT_S = 120


class Proof(BaseModel):
    """What the network did in a process of its own.

    Attributes:
        parameters: numbers in ``weights.safetensors``, counted there.
        predictions: classes of the first digits of the dataset.
        labels: what those digits are.
        right: correct predictions on all digits, training images included.
        images: how many digits there are.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    parameters: int
    predictions: list[int]
    labels: list[int]
    right: int
    images: int


class ProofFailed(Exception):
    """The process could not use the files; the message holds the end of its error output."""


def prove(folder: Path) -> Proof:
    """Load the network of ``folder`` in an isolated Python and let it classify scikit-learn's digits.

    Raises:
        ProofFailed: when that process fails.
    """
    with as_file(files("service.cli") / "scripts" / "prove.py") as script:
        run = subprocess.run(
            [sys.executable, "-I", str(script), str(folder.absolute())],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=_LIMIT_S,
            check=False,
        )
    if run.returncode:
        raise ProofFailed(run.stderr.strip().splitlines()[-1] if run.stderr.strip() else f"exit code {run.returncode}")
    return Proof.model_validate_json(run.stdout)
