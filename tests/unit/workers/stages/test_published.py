"""The networks that MaskTAS published go through every stage at 224 pixels and leave as files that load elsewhere."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from models.architecture import Architecture
from search.cost import params
from search.published import PUBLISHED
from service.datasets.info import DatasetInfo
from tests.channels import RecordingChannel
from tests.stage_runs import TINY, merged, search_start
from tests.unit.workers.data.pictures import encoded, noise
from workers.data.importing import import_dataset
from workers.protocol import Result
from workers.stages.run import run_job

SIDE = 224
BATCH = 4  # of nine images that are trained on: two steps, or three

# One pass over the images in every stage; the teacher is as small as a teacher can be.
TOY: Mapping[str, Any] = {
    "method": "masktas",
    "dataset": "photos",
    "teacher": {
        "pretrain": {
            "architecture": {"embed_dim": 32, "depth": 1, "num_heads": 2, "head_dim": 16, "mlp_ratio": 2.0},
            "decoder": {"embed_dim": 16, "depth": 1, "num_heads": 2},
            "epochs": 1,
            "batch_size": BATCH,
        }
    },
    "supernet": {"decoder": {"embed_dim": 32, "depth": 1, "num_heads": 2}, "epochs": 1, "batch_size": BATCH},
    "retrain": {"epochs": 1, "batch_size": BATCH, "top_k": 1},
}


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> tuple[DatasetInfo, Path]:
    """Two classes of random colour images of 224 pixels, imported."""
    folder = tmp_path_factory.mktemp("photos")
    for i in range(14):
        split = "train" if i < 10 else "test"
        path = folder / "in" / split / ("cat" if i % 2 else "dog") / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encoded(noise(SIDE, SIDE, seed=i)))
    imported = import_dataset(folder / "in", folder / "photos.parquet")
    info = DatasetInfo(
        name="photos",
        id=None,
        digest=imported.digest,
        labelled=True,
        classes=imported.classes,
        images=imported.counts["images"],
        channels=imported.image["channels"],
        min_side=imported.image["min_side"],
        test_images=imported.counts["splits"]["test"],
    )
    return info, folder / "photos.parquet"


def exported(result: Result, run_dir: str) -> Architecture:
    """The architecture that the one exported folder describes."""
    [ref] = [artifact for artifact in result.artifacts if artifact.name == "architecture.json"]
    document = json.loads((Path(run_dir) / ref.path).read_text(encoding="utf-8"))
    assert document["files"]
    return Architecture.from_json({gene: document[gene] for gene in Architecture.__slots__})


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("name", "rel_pos"),
    [("masktas-tiny", False), ("masktas-tiny", True), ("masktas-small", False), ("masktas-base", False)],
    ids=["tiny", "tiny with relative position", "small", "base"],
)
def test_published_network_is_trained_and_exported_with_parity(
    photos: tuple[DatasetInfo, Path], tmp_path: Path, name: str, rel_pos: bool
) -> None:
    info, blob = photos
    body = {
        **TOY,
        "space": {"preset": name, "overrides": {"rel_pos": rel_pos}},
        "search": {"algorithm": "listed", "architectures": [name]},
    }
    start = search_start(body, tmp_path, dataset=info, blob=blob)
    result = run_job(start, RecordingChannel())
    arch = exported(result, start.run_dir)
    published = PUBLISHED[name].architecture
    assert arch.genotype == published.genotype
    assert (arch.img_size, arch.num_patches, arch.num_classes, arch.rel_pos) == (SIDE, 196, 2, rel_pos)
    assert result.result["best"]["costs"]["params_m"] == params(arch) / 1e6
    parity = result.result["parity"]
    assert (parity["networks"], parity["max_scaled_diff"] <= parity["tolerance"]) == (1, True)


def test_relative_position_goes_through_every_stage_and_leaves_with_parity(tmp_path: Path) -> None:
    genes = {"embed_dim": 16, "depth": 2, "num_heads": [2, 1], "mlp_ratio": [2.0, 1.0]}
    changes = {
        "space": {"overrides": {"rel_pos": True}},
        "search": {"algorithm": "listed", "architectures": [genes]},
        "retrain": {"top_k": 1},
    }
    start = search_start(merged(TINY, changes), tmp_path)
    result = run_job(start, RecordingChannel())
    arch = exported(result, start.run_dir)
    assert arch.rel_pos
    assert result.result["best"]["costs"]["params_m"] == params(arch) / 1e6
    assert result.result["parity"]["max_scaled_diff"] <= result.result["parity"]["tolerance"]
