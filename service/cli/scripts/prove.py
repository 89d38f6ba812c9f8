"""Use a downloaded network as a stranger would, and print what came out as JSON.

    python -I prove.py FOLDER

Nothing of the project can be imported here: what runs is the folder's own ``model.py``, torch and timm. The images are
scikit-learn's handwritten digits, prepared as ``architecture.json`` says.
"""

import importlib.util
import json
import math
import sys
from pathlib import Path
from types import ModuleType

import torch
from safetensors import safe_open
from sklearn.datasets import load_digits

_SHOWN = 20
_FORBIDDEN = ("models", "search", "service", "workers")


def main(folder: Path) -> None:
    """Load the network, count the numbers in its file, and classify every digit."""
    # An import of a name that maps to None fails, also where the project is installed beside torch.
    sys.modules.update(dict.fromkeys(_FORBIDDEN))  # type: ignore[arg-type]
    document = json.loads((folder / "architecture.json").read_text(encoding="utf-8"))
    network = _model_of(folder).load(folder)
    digits = load_digits()
    # scikit-learn counts ink from 0 to 16; the dataset has 8-bit grey values, which networks see as 0 to 1.
    grey_BHW = (torch.tensor(digits.images, dtype=torch.float32) * (255 / 16)).round() / 255
    images_BCHW = _prepare(grey_BHW[:, None], document["preprocessing"])
    with torch.inference_mode():
        logits_BK = network(images_BCHW)
    labels_B = torch.tensor(digits.target)
    predictions_B = logits_BK.argmax(dim=1)
    print(
        json.dumps(
            {
                "parameters": _count(folder / "weights.safetensors"),
                "predictions": predictions_B[:_SHOWN].tolist(),
                "labels": labels_B[:_SHOWN].tolist(),
                "right": int((predictions_B == labels_B).sum()),
                "images": len(labels_B),
            }
        )
    )


def _model_of(folder: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("model", folder / "model.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _prepare(images_BCHW: torch.Tensor, preprocessing: dict[str, list[float]]) -> torch.Tensor:
    shape = (1, -1, 1, 1)
    mean = torch.tensor(preprocessing["mean"]).view(shape)
    std = torch.tensor(preprocessing["std"]).view(shape)
    return (images_BCHW - mean) / std


def _count(weights: Path) -> int:
    with safe_open(weights, framework="pt") as file:
        return sum(math.prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118 - not a mapping


if __name__ == "__main__":
    main(Path(sys.argv[1]))
