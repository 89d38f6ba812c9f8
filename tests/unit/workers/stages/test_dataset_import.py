from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from service.errors import DatasetInvalid
from tests.channels import RecordingChannel
from tests.unit.workers.data.pictures import save
from workers.channel import StopRequested
from workers.protocol import Progress, Start
from workers.stages.run import run_job


def import_start(tmp_path: Path, **spec: Any) -> Start:
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    return Start(
        job_id="job_test",
        fence=1,
        kind="dataset_import",
        spec={"path": "pets", **spec},
        seed=0,
        run_dir=str(run_dir),
        cache_dir=str(tmp_path / "cache"),
        threads=1,
        device="cpu",
        checkpoint_s=15,
        lease_s=60,
        dataset={},
        import_root=str(tmp_path / "root"),
    )


@pytest.fixture
def pets(tmp_path: Path) -> Path:
    for i in range(6):
        save(tmp_path / "root/pets" / ("cat" if i % 2 else "dog") / f"{i}.png", seed=i)
    return tmp_path / "root/pets"


def test_import_ends_with_the_blob_and_its_facts(pets: Path, tmp_path: Path) -> None:
    (pets / "notes.txt").write_text("x")
    channel = RecordingChannel()
    start = import_start(tmp_path)
    result = run_job(start, channel)
    [artifact] = result.artifacts
    data = (Path(start.run_dir) / artifact.path).read_bytes()
    assert artifact.kind == "dataset"
    assert (hashlib.sha256(data).hexdigest(), len(data)) == (artifact.sha256, artifact.size_bytes)
    assert result.dataset is not None
    assert result.dataset["classes"] == ["cat", "dog"]
    assert result.dataset["counts"]["images"] == 6
    assert result.dataset["image"] == {"channels": 3, "min_side": 4, "max_side": 6}
    assert result.dataset["report"]["findings"][0]["path"] == "notes.txt"
    assert {report.stage for report in channel.of_type(Progress)} == {"import"}


def test_labels_can_be_left_out(pets: Path, tmp_path: Path) -> None:
    result = run_job(import_start(tmp_path, labels="none"), RecordingChannel())
    assert result.dataset is not None
    assert result.dataset["classes"] == []


def test_rejected_dataset_brings_its_report(pets: Path, tmp_path: Path) -> None:
    (pets / "cat/1.png").write_bytes(b"broken")
    with pytest.raises(DatasetInvalid) as caught:
        run_job(import_start(tmp_path), RecordingChannel())
    assert caught.value.extra["report"]["findings"][0]["path"] == "cat/1.png"


@pytest.mark.usefixtures("pets")
def test_import_can_be_cancelled(tmp_path: Path) -> None:
    channel = RecordingChannel()
    channel.request_stop("cancel")
    with pytest.raises(StopRequested):
        run_job(import_start(tmp_path), channel)


def test_worker_without_an_import_root_refuses(tmp_path: Path) -> None:
    start = import_start(tmp_path).model_copy(update={"import_root": None})
    with pytest.raises(DatasetInvalid, match="VITAILOR_IMPORT_ROOT"):
        run_job(start, RecordingChannel())
