"""Zero-cost measures against the formulas written down for timm's own network."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from models.architecture import Architecture
from models.extract import build_timm, extract_state
from models.supernet import Supernet
from models.zero_cost import DSS_CLASSES, AzNas, az_nas, dss, with_absolute_weights

LARGEST = Architecture(
    embed_dim=32, depth=3, num_heads=(2, 2, 2), mlp_ratio=(2.0, 2.0, 2.0), head_dim=8, img_size=16, patch_size=4
)
SMALL = replace(LARGEST, embed_dim=16, depth=2, num_heads=(1, 2), mlp_ratio=(2.0, 1.0))
SMALL = SMALL.with_classes(0)


def fresh(classes: int = 0) -> Supernet:
    return Supernet(LARGEST.with_classes(classes), torch.Generator().manual_seed(0))


def test_dss_is_the_published_sum_over_the_layers_of_the_cut_network() -> None:
    supernet = with_absolute_weights(fresh(DSS_CLASSES))
    arch = SMALL.with_classes(DSS_CLASSES)
    plain = build_timm(arch)
    plain.load_state_dict(extract_state(supernet.state_dict(), supernet.largest, arch))
    plain.eval()(torch.ones(1, 3, 16, 16)).sum().backward()
    expected = 0.0
    for name, weight in plain.named_parameters():
        if name.endswith(".weight") and "norm" not in name:
            assert weight.grad is not None
            w, g = weight.detach().flatten(1).double(), weight.grad.flatten(1).double()
            if "attn" in name:
                expected += float(torch.linalg.svdvals(w).sum() * torch.linalg.svdvals(g).sum())
            else:
                expected += float((w * g).abs().sum())
    assert dss(supernet, SMALL) == pytest.approx(expected, rel=1e-4)
    assert dss(supernet, SMALL.with_classes(7)) == dss(supernet, SMALL)


def test_az_nas_is_the_published_formula_over_the_blocks_of_the_cut_network() -> None:
    supernet, images = fresh(), torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    plain = build_timm(SMALL)
    plain.load_state_dict(extract_state(supernet.state_dict(), supernet.largest, SMALL))
    tokens = plain._pos_embed(plain.patch_embed(images))
    features = []
    for block in plain.eval().blocks:
        tokens = block(tokens)
        features.append(tokens)
    expressivity = 0.0
    for feature in features:
        share = torch.linalg.eigvalsh(torch.cov(feature.detach().flatten(0, 1).T.double(), correction=0))
        share = share[share > 0] / share.sum()
        expressivity -= float((share * share.log()).sum())
    signs = torch.randint(2, features[1].shape, generator=torch.Generator().manual_seed(2)).float() * 2 - 1
    (gradient,) = torch.autograd.grad(features[1], features[0], signs)
    s = float(torch.linalg.svdvals(gradient.flatten(0, 1).T @ signs.flatten(0, 1) / (4 * 17))[0])
    found = az_nas(supernet, SMALL, images, torch.Generator().manual_seed(2))
    assert found.expressivity == pytest.approx(expressivity, rel=1e-4)
    assert found.trainability == pytest.approx(2 - s - 1 / s, rel=1e-3)


def test_measures_leave_no_trace_and_repeat() -> None:
    supernet, images = fresh(DSS_CLASSES), torch.randn(2, 3, 16, 16)
    before = {name: value.clone() for name, value in supernet.state_dict().items()}

    def measured() -> tuple[AzNas, float]:
        with torch.inference_mode(False), torch.no_grad():
            return az_nas(supernet, SMALL, images, torch.Generator().manual_seed(2)), dss(supernet, SMALL)

    first = measured()
    az_nas(supernet, LARGEST, images, torch.Generator().manual_seed(3))
    assert measured() == first
    assert all(torch.equal(before[name], value) for name, value in supernet.state_dict().items())
    assert all(parameter.grad is None for parameter in supernet.parameters())


def test_larger_networks_promise_more_by_dss() -> None:
    supernet = with_absolute_weights(fresh(DSS_CLASSES))
    assert dss(supernet, LARGEST) > dss(supernet, SMALL)


def test_a_single_block_has_nothing_to_pass_gradients_to() -> None:
    one = replace(LARGEST, depth=1, num_heads=(2,), mlp_ratio=(2.0,))
    found = az_nas(fresh(), one, torch.randn(2, 3, 16, 16), torch.Generator())
    assert found.trainability == 0.0
    assert 0 < found.expressivity < math.log(32)
