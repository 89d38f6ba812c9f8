"""A student of full width and depth with ``beta`` 0 is a masked autoencoder."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from models.masked import DecoderConfig, random_masking
from tests.unit.models.toys import randomise, seeded
from tests.unit.reference_mae import ReferenceMae, place
from tests.unit.workers.training.toys import CPU, SPACE, settings, teacher
from workers.training.masked import MaskedDistillation
from workers.training.streams import torch_stream

FULL = replace(SPACE, embed_dim=(24,), depth=(3,), num_heads=(2,), mlp_ratio=(2.0,))
DECODER = DecoderConfig(dim=16, depth=2, num_heads=2)
PATCHES, STEP = 16, 3


def trained(mask_ratio: float, norm_targets: bool) -> MaskedDistillation:
    """An objective whose weights are far from their initial values, in which biases are 0 and gains 1."""
    plan = settings(space=FULL, decoder=DECODER, mask_ratio=mask_ratio, norm_targets=norm_targets, beta=0.0)
    objective = MaskedDistillation(plan, teacher(), CPU)
    randomise(dict(objective.named_parameters()), seeded(1))
    return objective


def reference(objective: MaskedDistillation, norm_targets: bool) -> ReferenceMae:
    assert objective.decoder is not None
    arch = FULL.largest()
    return ReferenceMae(
        objective.supernet.state_dict(),
        dict(objective.decoder.named_parameters()),
        heads=arch.num_heads,
        head_dim=arch.head_dim,
        decoder_heads=DECODER.num_heads,
        patch=arch.patch_size,
        grid=4,
        norm_targets=norm_targets,
    )


def images() -> Tensor:
    return torch.randn(3, 1, 8, 8, generator=seeded(0))


@pytest.mark.parametrize("norm_targets", [True, False], ids=["normalised", "raw"])
@pytest.mark.parametrize(("mask_ratio", "visible"), [(0.25, 12), (0.5, 8), (0.75, 4), (0.9, 1)])
def test_loss_with_beta_0_is_that_of_a_reference_autoencoder(
    mask_ratio: float, visible: int, norm_targets: bool
) -> None:
    objective, x = trained(mask_ratio, norm_targets), images()
    ids_keep = random_masking(3, PATCHES, visible, torch_stream(0, "supernet", "mask", STEP)).ids_keep
    [losses] = objective.losses(x, STEP)
    expected = reference(objective, norm_targets).loss(x, ids_keep)
    assert expected > 0.1
    assert losses.total.item() == pytest.approx(expected, abs=1e-6)


@torch.no_grad()
def test_predictions_in_double_precision_are_those_of_the_reference() -> None:
    objective, x = trained(0.75, norm_targets=True), images().double()
    twin = reference(objective, norm_targets=True)
    supernet, decoder = objective.supernet.double(), objective.decoder
    assert decoder is not None
    # Kept in single precision otherwise, in which it is as exact as the pixels.
    places = [place(k % 4, k // 4, DECODER.dim) for k in range(PATCHES)]
    decoder.positions_Te = torch.stack([torch.zeros(DECODER.dim), *places])
    arch, mask = FULL.largest(), random_masking(3, PATCHES, 4, seeded(5))
    tokens = supernet.final_norm(supernet.tokens(x, arch, mask.ids_keep), arch)
    predicted = decoder.double()(tokens, mask.ids_restore)
    for image, kept, found in zip(x, mask.ids_keep.tolist(), predicted, strict=True):
        torch.testing.assert_close(found, twin.predict(image, kept), rtol=0, atol=1e-12)
