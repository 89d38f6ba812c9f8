"""Runs an exported folder in a process of its own: ``python -I parity_probe.py FOLDER EXCHANGE``.

Reads ``images.safetensors`` from the exchange folder, loads the network by the export's own ``model.py`` and prints
what it answers as JSON; it writes no file, so that a full disk is met by whoever has asked.  The packages of this
project are made impossible to import first, since an installed project would otherwise satisfy an export that secretly
needs it.
"""

import importlib
import importlib.abc
import importlib.util
import json
import os
import sys
from math import prod
from pathlib import Path
from typing import Any

PROJECT_PACKAGES = ("models", "search", "service", "workers")
BATCH = 32


class ProjectBlocker(importlib.abc.MetaPathFinder):
    """Refuses the project's packages before any other finder is asked."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        """Raise ModuleNotFoundError for the project's packages; leave all others to the next finder."""
        if fullname.partition(".")[0] in PROJECT_PACKAGES:
            raise ModuleNotFoundError(f"{fullname} is not available to an exported network", name=fullname)


def block_project() -> None:
    """Make the project impossible to import and prove it by trying."""
    sys.meta_path.insert(0, ProjectBlocker())
    for package in PROJECT_PACKAGES:
        try:
            importlib.import_module(package)
        except ModuleNotFoundError:
            continue
        raise SystemExit(f"{package} could be imported, so the proof would be worth nothing")


def main(folder: Path, exchange: Path) -> None:
    """Probe without the project."""
    answer = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what libraries print is no answer
    block_project()
    with answer:
        json.dump(probe(folder, exchange), answer)


def probe(folder: Path, exchange: Path) -> dict[str, Any]:
    """Load, run, count: ``logits`` (B, classes), ``params``, and whether the network is in ``training`` mode."""
    import torch
    from safetensors import safe_open
    from safetensors.torch import load_file

    spec = importlib.util.spec_from_file_location("exported_model", folder / "model.py")
    if spec is None or spec.loader is None:
        raise SystemExit(f"{folder / 'model.py'} is no Python file")
    exported = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(exported)
    network = exported.load(folder)
    images = load_file(exchange / "images.safetensors")["images"]
    with torch.inference_mode():
        logits = torch.cat([network(images[i : i + BATCH]) for i in range(0, len(images), BATCH)])
    params = 0
    with safe_open(folder / "weights.safetensors", framework="pt") as weights:
        for name in weights.keys():  # noqa: SIM118  # not a mapping
            params += prod(weights.get_slice(name).get_shape())
    # JSON keeps the numbers: a 32-bit float is written as the shortest text that reads back as the same 64-bit one.
    return {"logits": logits.tolist(), "params": params, "training": network.training}


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
