"""Estimates beside real runs: five searches that differ in size, method and stages, on an idle worker of this machine.

Prints a Markdown table: what ``POST /search/validate`` has said, and what the job took from its start to its end.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

from service.client import Client
from service.embedded import Embedded
from service.settings import Settings

Json = dict[str, Any]

_CALIBRATION_LIMIT_S = 300.0
_POLL_S = 1.0

SEARCHES: dict[str, Json] = {
    "digits, short": {
        "teacher": {"pretrain": {"epochs": 10}},
        "supernet": {"epochs": 10},
        "search": {"population": 20, "generations": 4, "parents": 5},
        "retrain": {"epochs": 10, "top_k": 1},
    },
    "digits, search only is long": {
        "teacher": {"pretrain": {"epochs": 5}},
        "supernet": {"epochs": 5},
        "search": {"population": 50, "generations": 9, "max_evaluations": 500},
        "retrain": {"epochs": 5, "top_k": 1},
    },
    "digits, 32 px, three retrained": {
        "space": {"preset": "micro", "img_size": 32},
        "teacher": {"pretrain": {"epochs": 5}},
        "supernet": {"epochs": 8},
        "search": {"population": 10, "generations": 4, "parents": 5, "baseline": "none"},
        "retrain": {"epochs": 15, "top_k": 3},
    },
    "digits, backbone without labels": {
        "teacher": {"pretrain": {"epochs": 10}},
        "supernet": {"epochs": 20, "sampling": "sandwich", "batch_size": 32},
        "search": {"population": 20, "generations": 4, "parents": 5},
        "retrain": {"mode": "none"},
    },
    "digits, scala": {"method": "scala", "training": {"epochs": 10}, "widths": {"step": 0.25}},
}


def main() -> None:
    """Run all searches, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="vitailor-forecast-") as folder:
        Path(folder).chmod(0o711)
        settings = Settings(_env_file=None, data_dir=Path(folder) / "data", port=0, trainer_threads=1)
        with Embedded(settings, durable=False) as stack, Client(stack.url, stack.api_key) as client:
            _wait_for_figures(client)
            print("| search | low, s | likely, s | high, s | took, s | inside |\n| --- | --- | --- | --- | --- | --- |")
            for name, changes in SEARCHES.items():
                print(_row(client, name, {"method": "masktas", "dataset": "digits", **changes}), flush=True)


def _wait_for_figures(client: Client) -> None:
    give_up_at = time.monotonic() + _CALIBRATION_LIMIT_S
    while client.validate({"method": "masktas", "dataset": "digits"})["estimate"] is None:
        if time.monotonic() > give_up_at:
            raise SystemExit("the worker has not measured its speed: is the machine busy, or VITAILOR_CALIBRATE false?")
        time.sleep(_POLL_S)


def _row(client: Client, name: str, body: Json) -> str:
    span = client.validate(body)["estimate"]["wall_seconds"]
    job = client.search(body)
    began = time.monotonic()
    while not (job := client.job(job.id)).done:
        time.sleep(_POLL_S)
    took = time.monotonic() - began
    if job.status != "succeeded":
        raise SystemExit(f"{name}: {job.status}: {job.error}")
    inside = "yes" if span["low"] <= took <= span["high"] else "no"
    return f"| {name} | {span['low']:.0f} | {span['likely']:.0f} | {span['high']:.0f} | {took:.0f} | {inside} |"


if __name__ == "__main__":
    main()
