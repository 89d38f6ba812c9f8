"""The training of one network, by a recipe with everything on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from models.extract import build_timm
from service.jobs.resolve.retrain import resolve_retrain
from service.jobs.spec import RetrainSpec
from tests.unit.workers.training.toys import CPU, TEACHER, Interrupt, Watcher, images
from workers.data.dataset import LabelledSet
from workers.stages.supervised import supervised_loop
from workers.stages.training import Optim
from workers.training.engine import TrainingLoop
from workers.training.files import load_parameters
from workers.training.streams import torch_stream
from workers.training.supervised import LabelledBatch

ARCH = replace(TEACHER, num_classes=3)
EVERYTHING: dict[str, Any] = {
    "mode": "scratch",
    "recipe": "published",
    "epochs": 1,
    "batch_size": 8,
    "lr": 2e-3,
    "layer_decay": 0.8,
    "cutmix_share": 0.3,
    "color_jitter": 0.4,
    "crop_scale": [0.5, 1.0],
    "horizontal_flip": True,
}


def loop(**changes: Any) -> tuple[TrainingLoop[LabelledBatch], torch.nn.Module]:
    """A fresh training of a toy network; equal arguments give equal trainings."""
    data = LabelledSet(images(), np.arange(40) % 3, 3)
    spec = resolve_retrain(RetrainSpec.model_validate({**EVERYTHING, **changes}), "scratch", ARCH, len(data), [])
    assert spec.epochs is not None
    assert spec.batch_size is not None
    assert spec.lr is not None
    assert spec.warmup_fraction is not None
    optim = Optim(spec.epochs, spec.batch_size, spec.lr, spec.warmup_fraction)
    network = build_timm(ARCH, torch_stream(0, "init"))
    assert spec.layer_decay is not None
    training = supervised_loop(
        network, data, spec, optim, CPU, seed=0, stage=("retrain", 4), layer_decay=spec.layer_decay
    )
    return training, network


def trained(**changes: Any) -> dict[str, torch.Tensor]:
    training, network = loop(**changes)
    training.run(Watcher())
    return network.state_dict()


@pytest.fixture(scope="module")
def undisturbed() -> dict[str, torch.Tensor]:
    return trained()


@pytest.mark.parametrize("stop_at", [1, 4])
def test_a_resumed_training_ends_in_the_same_weights(
    stop_at: int, undisturbed: dict[str, torch.Tensor], tmp_path: Path
) -> None:
    first, _ = loop()
    with pytest.raises(Interrupt):
        first.run(Watcher(stop_at=stop_at))
    first.save(tmp_path / "loop.safetensors")
    second, network = loop()
    second.restore(tmp_path / "loop.safetensors")
    second.run(Watcher())
    state = network.state_dict()
    assert all(torch.equal(state[name], tensor) for name, tensor in undisturbed.items())


@pytest.mark.parametrize(
    "off",
    [
        {"crop_scale": [1.0, 1.0]},
        {"crop_scale": [1.0, 1.0], "max_shift": 0.25},
        {"horizontal_flip": False},
        {"randaugment_ops": 0},
        {"randaugment_magnitude": 3.0},
        {"randaugment_std": 0.0},
        {"color_jitter": 0.0},
        {"erasing": 0.0},
        {"mixup": 0.0},
        {"cutmix": 0.0},
        {"mix_probability": 0.5},
        {"cutmix_share": 0.0},
        {"drop_path": 0.0},
        {"repeats": 1},
        {"layer_decay": 1.0},
        {"min_lr": 1e-3},
        {"betas": [0.9, 0.95]},
        {"label_smoothing": 0.0},
        {"warmup_fraction": 0.3},
    ],
    ids=lambda off: "-".join(off),
)
def test_every_option_reaches_the_training(off: dict[str, Any], undisturbed: dict[str, torch.Tensor]) -> None:
    state = trained(**off)
    assert any(not torch.equal(state[name], tensor) for name, tensor in undisturbed.items())


def test_weights_load_into_a_plain_network(undisturbed: dict[str, torch.Tensor]) -> None:
    plain = build_timm(ARCH)
    load_parameters(dict(plain.named_parameters()), undisturbed)
    _, network = loop()
    load_parameters(dict(network.named_parameters()), undisturbed)
    x = torch.randn(4, 1, 8, 8, generator=torch_stream(0, "x"))
    with torch.inference_mode():
        assert torch.equal(plain.eval()(x), network.eval()(x))
