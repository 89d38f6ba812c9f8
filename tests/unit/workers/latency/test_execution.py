from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch

from models.architecture import Architecture
from models.extract import build_timm
from search.latency import Precision, Runtime
from workers.latency.execution import Execution, NotExecutable, write_onnx
from workers.latency.measure import Timing, measure
from workers.training.streams import torch_stream

CPU = torch.device("cpu")


def network(embed_dim: int = 16, depth: int = 1, *, rel_pos: bool = False) -> Architecture:
    return Architecture(
        embed_dim=embed_dim,
        depth=depth,
        num_heads=(2,) * depth,
        mlp_ratio=(2.0,) * depth,
        head_dim=8,
        img_size=16,
        patch_size=4,
        in_chans=3,
        num_classes=10,
        rel_pos=rel_pos,
    )


def execution(runtime: Runtime, precision: Precision = Precision.FP32, device: torch.device = CPU) -> Execution:
    return Execution(runtime=runtime, precision=precision, batch_size=2, threads=1, device=device)


@pytest.mark.parametrize("rel_pos", [False, True])
@torch.inference_mode()
def test_the_onnx_file_answers_as_the_network(rel_pos: bool, tmp_path: Path) -> None:
    arch = network(rel_pos=rel_pos)
    built = build_timm(arch, torch_stream(0)).eval()
    images = execution(Runtime.ONNXRUNTIME).images(arch, torch_stream(1))
    write_onnx(built, images, tmp_path / "a.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "a.onnx", providers=["CPUExecutionProvider"])
    [logits] = session.run(["logits"], {"images": images.numpy()})
    np.testing.assert_allclose(logits, built(images).numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("runtime", "precision"),
    [
        (Runtime.TORCH, Precision.FP32),
        (Runtime.TORCH, Precision.BF16),
        (Runtime.ONNXRUNTIME, Precision.FP32),
    ],
)
def test_a_larger_network_takes_longer(runtime: Runtime, precision: Precision, tmp_path: Path) -> None:
    how = execution(runtime, precision)
    passes = []
    for arch in (network(16, 1), network(96, 8)):
        built = build_timm(arch, torch_stream(0)).eval()
        passes.append(how.pass_of(built, how.images(arch, torch_stream(1)), tmp_path))
    with how.settled():
        small, large = measure(passes, Timing(warmup_runs=2, runs=7), np.random.default_rng(0))
    assert 0 < small.ns < large.ns
    assert list(tmp_path.iterdir()) == []


def test_the_number_of_threads_holds_for_the_measurement_only() -> None:
    before = torch.get_num_threads()
    how = Execution(runtime=Runtime.TORCH, precision=Precision.FP32, batch_size=1, threads=before + 1, device=CPU)
    with how.settled():
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(
    ("runtime", "precision"),
    [
        (Runtime.TORCH, Precision.FP16),
        (Runtime.TORCH, Precision.INT8),
        (Runtime.ONNXRUNTIME, Precision.BF16),
        (Runtime.ONNXRUNTIME, Precision.INT8),
    ],
)
def test_a_precision_that_a_processor_has_not_is_refused_with_those_that_it_has(
    runtime: Runtime, precision: Precision
) -> None:
    with pytest.raises(NotExecutable, match="computes in fp32"):
        execution(runtime, precision)


def test_a_label_names_the_processor_within_the_bounds_of_a_table() -> None:
    assert 0 < len(execution(Runtime.TORCH).label) <= 100
