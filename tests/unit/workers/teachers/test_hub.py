"""timm's networks by name, with a cache on disk and no hub anywhere."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import timm
import torch
from huggingface_hub import constants
from safetensors.torch import save_file

from service.errors import TeacherInvalid, TeacherUnavailable
from service.jobs.spec import TeacherSource
from tests.published_files import random
from workers.teachers.acquire import acquire, timm_layout
from workers.teachers.hub import find_network

TOY = "test_vit.r160_in1k"
"""timm's network for tests of itself: width 64, depth 6, 160 pixels."""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the hub's client."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def use_hub(monkeypatch: pytest.MonkeyPatch, port: int) -> None:
    """Let the hub's client talk to a port of this host."""
    old, new = constants.ENDPOINT, f"http://127.0.0.1:{port}"
    for name in ("HUGGINGFACE_CO_URL_TEMPLATE", "ENDPOINT"):
        monkeypatch.setattr(constants, name, getattr(constants, name).replace(old, new))


@pytest.fixture
def dead_hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An address that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        use_hub(monkeypatch, server.getsockname()[1])
        monkeypatch.setattr("workers.teachers.hub._PROBE_S", 0.3)
        yield


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A hub on this host, as far as its client looks; it serves the files of the folder."""
    folder = tmp_path / "served"
    folder.mkdir()

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            file = folder / Path(self.path).name
            self.send_response(200 if file.exists() else 404)
            if file.exists():
                self.send_header("ETag", '"' + "e" * 40 + '"')
                self.send_header("X-Repo-Commit", "c" * 40)
            self.send_header("Content-Length", str(file.stat().st_size if file.exists() else 0))
            self.end_headers()

        def do_GET(self) -> None:
            self.do_HEAD()
            self.wfile.write((folder / Path(self.path).name).read_bytes())

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        use_hub(monkeypatch, server.server_port)
        yield folder
        server.shutdown()


def fill(cache: Path, name: str) -> dict[str, torch.Tensor]:
    """Put weights into the cache as the hub's client does."""
    torch.manual_seed(1)
    state = timm.create_model(name, pretrained=False).state_dict()
    state = {key: tensor + 0.1 * random(*tensor.shape) for key, tensor in state.items()}
    snapshot = cache / f"models--timm--{name}" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot.parents[1] / "refs").mkdir()
    (snapshot.parents[1] / "refs" / "main").write_text("abc")
    save_file(state, snapshot / "model.safetensors")
    return state


def test_cached_network_becomes_a_teacher_without_any_hub(cache: Path, dead_hub: None) -> None:
    state = fill(cache, TOY)
    found = acquire(TeacherSource(timm="test_vit"), None)
    assert (found.name, found.facts["source"]) == (TOY, {"timm": TOY})
    assert (found.mean, found.licence.name) == ((0.5, 0.5, 0.5), "apache-2.0")
    arch = found.layout.arch
    assert (arch.embed_dim, arch.depth, arch.num_heads[0], arch.img_size, arch.patch_size) == (64, 6, 2, 160, 16)
    assert (found.facts["dropped"], found.architecture.num_classes) == ([], 1000)
    assert torch.equal(found.head["head.weight"], state["head.weight"])
    assert torch.equal(found.state["blocks.5.mlp.fc2.weight"], state["blocks.5.mlp.fc2.weight"])


@pytest.mark.parametrize("file", ["model.safetensors", "pytorch_model.bin"])
def test_weights_are_fetched_from_the_hub_into_the_cache(cache: Path, hub: Path, file: str) -> None:
    state = timm.create_model(TOY, pretrained=False).state_dict()
    (save_file if file.endswith(".safetensors") else torch.save)(state, hub / file)
    found = acquire(TeacherSource(timm=TOY), None)
    assert torch.equal(found.state["norm.weight"], state["norm.weight"])
    (hub / file).unlink()
    assert acquire(TeacherSource(timm=TOY), None).name == TOY  # from the cache


def test_hub_without_the_file_is_told_apart_from_no_hub(cache: Path, hub: Path) -> None:
    with pytest.raises(TeacherInvalid, match=r"holds none of model\.safetensors, pytorch_model\.bin"):
        acquire(TeacherSource(timm=TOY), None)


def test_hub_that_does_not_answer_is_told_soon_and_with_a_way_out(cache: Path, dead_hub: None) -> None:
    began = time.monotonic()
    with pytest.raises(
        TeacherUnavailable, match=r"127\.0\.0\.1:\d+ cannot be reached.*register it by its path"
    ) as caught:
        acquire(TeacherSource(timm=TOY), None)
    assert time.monotonic() - began < 30  # the hub's own client takes five tries of ten seconds for each file
    assert caught.value.to_json()["code"] == "teacher_unavailable"


def test_offline_setting_asks_nobody(cache: Path, dead_hub: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(TeacherUnavailable, match="HF_HUB_OFFLINE forbids"):
        acquire(TeacherSource(timm=TOY), None)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("vit_enormous", "has no network or weights 'vit_enormous'"),
        ("vit_base_patch16_224.nobody", "has no network or weights"),
        ("resnet18", "is a ResNet"),
        ("vit_base_patch16_xp_224", "made of ParallelScalingBlock"),
        ("test_vit2", "class token"),
        ("test_vit4", "class token|no weights"),
    ],
)
def test_names_that_are_no_teacher_are_refused_before_the_hub_is_asked(cache: Path, name: str, why: str) -> None:
    with pytest.raises(TeacherInvalid, match=why):
        acquire(TeacherSource(timm=name), None)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("vit_base_patch16_224.mae", (768, 12, 12, 14, 0, "gelu", 1e-6)),
        ("vit_huge_patch14_224.mae", (1280, 32, 16, 16, 0, "gelu", 1e-6)),
        ("vit_small_patch14_reg4_dinov2.lvd142m", (384, 12, 6, 37, 4, "gelu", 1e-6)),
        ("vit_giant_patch14_dinov2.lvd142m", (1536, 40, 24, 37, 0, "swiglu", 1e-6)),
        ("deit_tiny_distilled_patch16_224.fb_in1k", (192, 12, 3, 14, 1, "gelu", 1e-6)),
        ("deit3_small_patch16_224.fb_in1k", (384, 12, 6, 14, 0, "gelu", 1e-6)),
        ("vit_base_patch16_clip_quickgelu_224.openai", (768, 12, 12, 14, 0, "quick_gelu", 1e-5)),
    ],
)
def test_published_networks_are_understood_without_their_weights(name: str, expected: tuple[object, ...]) -> None:
    layout = timm_layout(find_network(name)).layout
    arch = layout.arch
    found = (arch.embed_dim, arch.depth, arch.num_heads[0], layout.grid)
    assert (*found, layout.registers, layout.activation, arch.norm_eps) == expected
