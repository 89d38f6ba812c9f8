"""Runs the stages of a search without supervisor, database or store: what a trainer does between its two pipes."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from service.datasets.builtin import BUILTINS
from service.datasets.info import DatasetInfo
from service.jobs.resolve import resolve_search, resolve_slimmable
from service.jobs.spec import SearchSpec, SlimmableSpec
from service.supernets.info import SupernetInfo
from service.teachers.info import TeacherInfo
from workers.protocol import BlobRef, CheckpointMessage, Resume, Start

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"

TINY: Mapping[str, Any] = {
    "method": "masktas",
    "dataset": "digits",
    "teacher": {
        "pretrain": {
            "architecture": {"embed_dim": 32, "depth": 1, "num_heads": 2, "head_dim": 16, "mlp_ratio": 2.0},
            "decoder": {"embed_dim": 16, "depth": 1, "num_heads": 2},
            "epochs": 1,
            "batch_size": 128,
        }
    },
    "space": {
        "preset": "micro",
        "overrides": {"embed_dim": [16, 32], "depth": [1, 2], "num_heads": [1, 2], "mlp_ratio": [1.0, 2.0]},
    },
    "constraints": [{"metric": "params_m", "max": 0.015}],
    "supernet": {"decoder": {"embed_dim": 16, "depth": 1, "num_heads": 2}, "epochs": 1, "batch_size": 128},
    "search": {"population": 6, "generations": 2, "parents": 3, "evaluation": {"images": 64}},
    "retrain": {"epochs": 1, "batch_size": 128, "top_k": 2},
    "seed": 0,
}
"""A search that is complete and over in seconds; what it finds is of no use."""

TINY_SCALA: Mapping[str, Any] = {
    "method": "scala",
    "dataset": "digits",
    "network": {"embed_dim": 32, "num_heads": 2, "depth": 2, "patch_size": 4},
    "widths": {"smallest": 0.25, "step": 0.25, "max_dip": 100.0},
    "training": {"epochs": 1, "batch_size": 256},
    "constraints": [{"metric": "params_m", "max": 0.02}],
    "export": {"top_k": 2},
    "seed": 0,
}
"""The same over widths: four are trained, nine lie between."""


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """``base`` with nested ``changes``."""
    result = dict(base)
    for key, value in changes.items():
        both = isinstance(value, Mapping) and isinstance(result.get(key), Mapping)
        result[key] = merged(result[key], value) if both else value
    return result


def read_example(name: str) -> dict[str, Any]:
    """The body of a file of ``examples/``."""
    body: dict[str, Any] = yaml.safe_load((EXAMPLES / name).read_text())
    return body


def search_start(
    body: Mapping[str, Any],
    folder: Path,
    *,
    dataset: DatasetInfo = BUILTINS["digits"],
    blob: Path | None = None,
    teacher: tuple[TeacherInfo, Path] | None = None,
    warm: SupernetInfo | None = None,
    threads: int = 1,
    checkpoint_s: float = 1e9,
    fence: int = 1,
) -> Start:
    """The order that a supervisor would give for a search body; each fence has a run directory of its own."""
    info, weights = teacher or (None, None)
    spec: SearchSpec | SlimmableSpec
    if body["method"] == "masktas":
        spec = resolve_search(SearchSpec.model_validate(body), dataset, registered=info).spec
    else:
        spec = resolve_slimmable(SlimmableSpec.model_validate(body), dataset, registered=info, warm=warm).spec
    inputs = [BlobRef(name="dataset", path=str(blob), sha256=dataset.digest)] if blob else []
    if info is not None:
        inputs.append(BlobRef(name="teacher", path=str(weights), sha256=info.digest))
    run_dir = folder / "runs" / str(fence)
    run_dir.mkdir(parents=True)
    return Start(
        job_id="job_test",
        fence=fence,
        kind="search",
        spec=spec.model_dump(mode="json"),
        seed=spec.seed,
        run_dir=str(run_dir),
        cache_dir=str(folder / "cache"),
        threads=threads,
        device="cpu",
        checkpoint_s=checkpoint_s,
        lease_s=60,
        dataset=dataset.to_json(),
        teacher=info.to_json() if info else {},
        inputs=inputs,
    )


def resumed(start: Start, checkpoint: CheckpointMessage | None, folder: Path) -> Start:
    """The order of the next attempt: its folder holds the files of the checkpoint, if any, and nothing else."""
    fence = start.fence + 1
    run_dir = folder / "runs" / str(fence)
    run_dir.mkdir(parents=True)
    resume = None
    if checkpoint is not None:
        for ref in checkpoint.files:
            shutil.copyfile(Path(start.run_dir) / ref.path, run_dir / ref.name)
        names = sorted(ref.name for ref in checkpoint.files)
        resume = Resume(stage=checkpoint.stage, state=checkpoint.state, files=names)
    return start.model_copy(update={"fence": fence, "run_dir": str(run_dir), "resume": resume})
