"""Own images: from a folder on the server to a dataset that a search can name, through the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from service.client import Client
from service.embedded import Embedded
from tests.e2e.commands import run
from tests.stage_runs import TINY, merged
from workers.data.digits import read_digits

pytestmark = pytest.mark.e2e

PER_CLASS = 12


@pytest.fixture(scope="module")
def write_images(stack: Embedded) -> Callable[[str, bool], None]:
    """Writes real digits as PNG files below the server's import root, with or without class folders."""
    digits = read_digits()

    def write(name: str, labelled: bool) -> None:
        root = stack.settings.import_root
        assert root is not None
        for label in range(10):
            folder = root / name / (f"digit {label}" if labelled else "")
            folder.mkdir(parents=True, exist_ok=True)
            for i in (digits.labels == label).nonzero()[0][:PER_CLASS]:
                Image.fromarray(digits.pixels[i]).save(folder / f"{i}.png")

    return write


def test_class_folders_become_a_labelled_dataset(
    cli_environment: dict[str, str], client: Client, write_images: Callable[[str, bool], None]
) -> None:
    write_images("labelled", True)
    imported = run(cli_environment, "import", "labelled", "--name", "digits as files", "--wait")
    assert imported.returncode == 0, imported.stdout + imported.stderr
    dataset = client.dataset(imported.stdout.split()[0])
    assert dataset.status == "ready"
    assert dataset.classes == [f"digit {label}" for label in range(10)]
    assert dataset.counts["images"] == 10 * PER_CLASS
    assert dataset.name in run(cli_environment, "datasets").stdout
    checked = run(cli_environment, "validate", "--dataset", dataset.id, "--method", "masktas")
    assert checked.returncode == 0, checked.stderr


def test_images_without_folders_become_an_unlabelled_dataset(
    cli_environment: dict[str, str], client: Client, write_images: Callable[[str, bool], None]
) -> None:
    write_images("flat", False)
    imported = run(cli_environment, "import", "flat", "--name", "unlabelled digits", "--wait")
    assert imported.returncode == 0, imported.stdout + imported.stderr
    dataset = client.dataset(imported.stdout.split()[0])
    assert dataset.classes == []
    labels_needed = run(
        cli_environment, "validate", "--dataset", dataset.id, "--method", "masktas", "--set", "retrain.mode=finetune"
    )
    assert labels_needed.returncode == 2
    assert "/retrain/mode" in labels_needed.stderr


def test_a_folder_without_labels_is_searched(
    client: Client, write_images: Callable[[str, bool], None], tmp_path: Path
) -> None:
    """Teacher, supernet and search need none; what comes out is a backbone, of which nobody can say how accurate."""
    write_images("unsorted", False)
    dataset = client.import_dataset("unsorted digits", "unsorted")
    assert dataset.job is not None
    assert list(client.follow(dataset.job))[-1].type == "end"
    body = merged(TINY, {"dataset": dataset.id, "constraints": [{"metric": "params_m", "max": 0.012}]})
    job = client.search({name: part for name, part in body.items() if name != "retrain"})
    events = list(client.follow(job.id))
    job = client.job(job.id)
    assert job.status == "succeeded", job.error
    assert {event.data["stage"] for event in events if event.type == "metric"} == {"teacher", "supernet", "search"}
    assert job.result is not None
    assert job.result["holdout"] is None
    winner = client.winner(job.id)
    assert winner is not None
    assert winner.accuracy is None or winner.accuracy["val"] is None
    files = [file for file in client.artifacts(job.id) if file.architecture == winner.id]
    client.download_all(files, tmp_path / "winner")
    document = json.loads((tmp_path / "winner" / "architecture.json").read_text())
    assert (document["num_classes"], document["classes"]) == (0, [])
    assert document["costs"]["params_m"] <= 0.012


@pytest.mark.parametrize("path", ["no/such/folder", "../outside", "/etc"])
def test_what_is_not_below_the_import_root_is_refused(
    cli_environment: dict[str, str], client: Client, tmp_path: Path, path: str
) -> None:
    refused = run(cli_environment, "import", path, "--name", "elsewhere", "--wait")
    assert refused.returncode in (1, 2)  # at once, or by the import itself
    assert refused.stderr or "error:" in refused.stdout
    assert [d.name for d in client.datasets() if d.name == "elsewhere" and d.status == "ready"] == []
