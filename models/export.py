"""The export of one trained network: a folder that loads with torch and timm alone.

``weights.safetensors`` holds the weights under timm's names, ``architecture.json`` says what the network is, what it
expects and where it came from, ``model.py`` builds and loads it.  :func:`verify_export` proves the folder in a separate
process that cannot import this project.

The weights file is a function of architecture and weights: its metadata carries no time and no job, so equal runs
give equal digests.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from models.export_record import ExportedFile, ExportError, ExportRecord, architecture_document
from models.extract import check_state
from models.templates import model, parity_probe

WEIGHTS_FILE = "weights.safetensors"
ARCHITECTURE_FILE = "architecture.json"
MODEL_FILE = "model.py"

PARITY_TOLERANCE = 1e-5
"""Largest accepted difference of a float32 logit, relative to its size but at least to 1."""

# One key only: safetensors writes several in an order of its own choice, and digests would differ.
_METADATA_KEY = "vitailor"
_STDERR_LINES = 20


class ExportLoadError(RuntimeError):
    """The export could not be loaded or run on its own; the message ends with what the process said."""


@dataclass(frozen=True, slots=True)
class Parity:
    """Outcome of one proof.

    Attributes:
        max_abs_diff: largest absolute difference of a logit.
        max_scaled_diff: largest difference after division by ``max(1, abs(expected logit))``.
        tolerance: what ``max_scaled_diff`` may be at most.
        images: number of images compared.
        params: parameters counted in the weights file.
    """

    max_abs_diff: float
    max_scaled_diff: float
    tolerance: float
    images: int
    params: int

    @property
    def holds(self) -> bool:
        """True when all logits agree; NaN never does."""
        return self.max_scaled_diff <= self.tolerance


class ParityError(RuntimeError):
    """The export answers differently from the network that it was made of."""

    def __init__(self, parity: Parity) -> None:
        self.parity = parity
        super().__init__(
            f"logits of the export differ by {parity.max_scaled_diff:.3g} (scaled) on {parity.images} images, "
            f"allowed is {parity.tolerance:.3g}"
        )


def write_export(folder: Path, state: Mapping[str, Tensor], record: ExportRecord) -> tuple[ExportedFile, ...]:
    """Write the three files of an export.

    Args:
        folder: made when missing; files of an earlier export in it are replaced.
        state: weights of ``record.architecture`` under timm's names, on any device.
        record: the description.

    Returns:
        The files: weights, loader, description.

    Raises:
        StateError: when the weights are not exactly those of the architecture.
        ExportError: when weights are not finite.
    """
    arch = record.architecture
    check_state(state, arch)
    broken = [name for name, tensor in state.items() if not torch.isfinite(tensor).all()]
    if broken:
        raise ExportError(f"weights are not finite: {', '.join(broken)}")
    folder.mkdir(parents=True, exist_ok=True)
    metadata = json.dumps({"architecture": arch.to_json()}, sort_keys=True, separators=(",", ":"))
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}
    save_file(tensors, folder / WEIGHTS_FILE, metadata={_METADATA_KEY: metadata})
    shutil.copyfile(Path(model.__file__), folder / MODEL_FILE)
    loadable = (_describe(folder / WEIGHTS_FILE), _describe(folder / MODEL_FILE))
    document = json.dumps(architecture_document(record, loadable), indent=2, ensure_ascii=False, allow_nan=False)
    (folder / ARCHITECTURE_FILE).write_text(document + "\n", encoding="utf-8")
    return (*loadable, _describe(folder / ARCHITECTURE_FILE))


def verify_export(
    folder: Path,
    images: Tensor,
    expected_logits: Tensor,
    tolerance: float = PARITY_TOLERANCE,
    *,
    timeout_s: float = 600.0,
) -> Parity:
    """Load the folder in a fresh process and compare its answers.

    The process runs Python in isolated mode, in a folder of its own, on the CPU, and cannot import this project.

    Args:
        folder: written by :func:`write_export`.
        images: float32 (B, C, H, W), preprocessed.
        expected_logits: (B, classes) of the network that was exported, computed in float32 on the CPU.
        tolerance: see :data:`PARITY_TOLERANCE`.
        timeout_s: after so many seconds the process is killed.

    Returns:
        The proof.

    Raises:
        ExportLoadError: when the folder does not load, run or answer in time in the process.
        ParityError: when a logit differs by more than ``tolerance * max(1, abs(logit))``.
        ValueError: when there is no image or not one row of logits for each.
    """
    if not 0 < len(images) == len(expected_logits):
        raise ValueError(
            f"{len(images)} images and logits of {len(expected_logits)}, expected equally many, at least 1"
        )
    folder = folder.resolve()
    # Beside the export, since a job writes nowhere but below its own folder.
    with tempfile.TemporaryDirectory(prefix="parity-", dir=folder.parent) as exchange_name:
        exchange = Path(exchange_name)
        save_file({"images": images.detach().cpu().float().contiguous()}, exchange / "images.safetensors")
        report = json.loads(_run_probe(folder, exchange, timeout_s))
    logits = torch.tensor(report["logits"], dtype=torch.float32)
    if report["training"]:
        raise ExportLoadError(f"{folder} loads a network in training mode")
    expected = expected_logits.detach().cpu().float()
    if logits.shape != expected.shape:
        raise ExportLoadError(f"{folder} answers with shape {tuple(logits.shape)}, expected {tuple(expected.shape)}")
    difference = (logits - expected).abs()
    parity = Parity(
        max_abs_diff=difference.max().item(),
        max_scaled_diff=(difference / expected.abs().clamp_min(1.0)).max().item(),
        tolerance=tolerance,
        images=len(images),
        params=report["params"],
    )
    if not parity.holds:
        raise ParityError(parity)
    return parity


def _run_probe(folder: Path, exchange: Path, timeout_s: float) -> str:
    try:
        done = subprocess.run(
            [sys.executable, "-I", parity_probe.__file__, str(folder), str(exchange)],
            cwd=exchange,
            stdin=subprocess.DEVNULL,  # ours may be a control pipe
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise ExportLoadError(f"{folder} did not answer within {timeout_s:g} s") from error
    if done.returncode:
        said = "\n".join(done.stderr.strip().splitlines()[-_STDERR_LINES:])
        raise ExportLoadError(f"{folder} does not load on its own (exit {done.returncode}): {said}")
    return done.stdout


def _describe(path: Path) -> ExportedFile:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return ExportedFile(path.name, path.stat().st_size, digest)
