from __future__ import annotations

import math
import random

import pytest
import torch
from torch import Tensor

from models.masked import (
    DecoderConfig,
    MaskedDecoder,
    PatchMask,
    patchify,
    random_masking,
    reconstruction_loss,
    sincos_positions,
    visible_patches,
)
from models.supernet import Supernet
from tests.unit.models.toys import LARGEST, random_subnet, randomise, seeded
from tests.unit.published import plain_vit

CONFIG = DecoderConfig(dim=16, depth=2, num_heads=2)


def decoder(seed: int = 3) -> MaskedDecoder:
    made = MaskedDecoder(LARGEST, CONFIG, seeded(seed))
    randomise(dict(made.named_parameters()), seeded(seed + 1))
    return made


def images(batch: int = 3, seed: int = 0) -> Tensor:
    return torch.randn(batch, 3, 12, 12, generator=seeded(seed))


def test_mask_fields_describe_one_permutation() -> None:
    mask = random_masking(50, 16, 4, seeded(0))
    assert mask.ids_keep.shape == (50, 4)
    shown = torch.zeros(50, 16).scatter(1, mask.ids_keep, 1.0)
    assert torch.equal(mask.hidden, 1 - shown)
    assert torch.equal(mask.ids_restore.sort(dim=1).values, torch.arange(16).repeat(50, 1))
    assert torch.equal(mask.ids_restore.gather(1, mask.ids_keep), torch.arange(4).repeat(50, 1))


def test_every_patch_is_kept_equally_often() -> None:
    shown = 1 - random_masking(4000, 16, 4, seeded(1)).hidden
    # 4000 draws with probability 1/4 have a standard error of 0.007.
    assert (shown.mean(dim=0) - 0.25).abs().max() < 0.03


def test_mask_is_a_function_of_the_generator() -> None:
    one, other = random_masking(4, 16, 4, seeded(7)), random_masking(4, 16, 4, seeded(7))
    assert torch.equal(one.ids_keep, other.ids_keep)
    assert not torch.equal(one.ids_keep, random_masking(4, 16, 4, seeded(8)).ids_keep)


def test_mask_moves_as_a_whole() -> None:
    moved = random_masking(2, 16, 4, seeded(0)).to("meta")
    assert isinstance(moved, PatchMask)
    assert {moved.ids_keep.device.type, moved.ids_restore.device.type, moved.hidden.device.type} == {"meta"}


@pytest.mark.parametrize("keep", [0, 17])
def test_impossible_number_of_visible_patches_is_refused(keep: int) -> None:
    with pytest.raises(ValueError, match=f"{keep} visible patches, allowed is 1 to 16"):
        random_masking(2, 16, keep, seeded(0))


@pytest.mark.parametrize(
    ("patches", "ratio", "expected"), [(196, 0.75, 49), (196, 0.9, 19), (16, 0.75, 4), (10, 0.9, 1)]
)
def test_visible_patches_round_down_but_not_by_floating_point(patches: int, ratio: float, expected: int) -> None:
    assert visible_patches(patches, ratio) == expected


@pytest.mark.parametrize("ratio", [0.0, 0.95, 1.0, -0.5])
def test_ratio_that_hides_nothing_or_everything_is_refused(ratio: float) -> None:
    with pytest.raises(ValueError, match=r"of 16 patches visible, allowed is 1 to 15"):
        visible_patches(16, ratio)


def test_patchify_orders_row_column_channel() -> None:
    x = torch.arange(2 * 2 * 4 * 4).view(2, 2, 4, 4).float()
    patches = patchify(x, 2)
    assert patches.shape == (2, 4, 8)
    for b in range(2):
        for row in range(2):
            for column in range(2):
                expected = [
                    x[b, c, 2 * row + i, 2 * column + j].item() for i in range(2) for j in range(2) for c in range(2)
                ]
                assert patches[b, 2 * row + column].tolist() == expected


def test_patchify_refuses_a_side_that_is_no_multiple() -> None:
    with pytest.raises(ValueError, match=r"shape \(1, 3, 12, 10\)"):
        patchify(torch.zeros(1, 3, 12, 10), 3)


def test_position_table_tells_rows_from_columns() -> None:
    table = sincos_positions(3, 8)
    assert table.shape == (9, 8)
    for row in range(3):
        for column in range(3):
            for half, place in enumerate((column, row)):
                for k in range(2):
                    wave = place / 10_000 ** (k / 2)
                    assert table[3 * row + column, 4 * half + k].item() == pytest.approx(math.sin(wave), abs=1e-7)
                    assert table[3 * row + column, 4 * half + 2 + k].item() == pytest.approx(math.cos(wave), abs=1e-7)


@pytest.mark.parametrize(("dim", "depth", "heads"), [(18, 1, 2), (16, 1, 3), (16, 0, 2), (0, 1, 1), (16, 1, 0)])
def test_impossible_decoder_is_refused(dim: int, depth: int, heads: int) -> None:
    with pytest.raises(ValueError, match="allowed is"):
        DecoderConfig(dim=dim, depth=depth, num_heads=heads)


def test_decoder_serves_every_width_and_uses_only_its_columns() -> None:
    rng = random.Random(0)
    net, dec, x = Supernet(LARGEST, seeded(0)), decoder(), images()
    mask = random_masking(3, 16, 4, seeded(0))
    for _ in range(5):
        arch = random_subnet(rng)
        dec.zero_grad()
        predicted = dec(net.final_norm(net.tokens(x, arch, mask.ids_keep), arch), mask.ids_restore)
        assert predicted.shape == (3, 16, 27)
        reconstruction_loss(predicted, x, mask.hidden, 3).backward()
        gradient = dec.embed.weight.grad
        assert gradient is not None
        assert (gradient[:, arch.embed_dim :] == 0).all()
        assert (gradient[:, : arch.embed_dim] != 0).any(dim=0).all()


def test_decoder_refuses_wider_tokens_and_foreign_masks() -> None:
    with pytest.raises(ValueError, match="29 wide, allowed is at most 28"):
        decoder()(torch.zeros(1, 5, 29), torch.arange(16).view(1, 16))
    with pytest.raises(ValueError, match=r"ids_restore has shape \(1, 9\), expected \(1, 16\)"):
        decoder()(torch.zeros(1, 5, 28), torch.arange(9).view(1, 9))


def test_decoder_of_mae_has_its_published_size() -> None:
    decoder = MaskedDecoder(plain_vit(768, 12), DecoderConfig(dim=512, depth=8, num_heads=16), seeded(0))
    positions = 197 * 512  # counted as parameters by MAE, fixed there as here
    assert sum(p.numel() for p in decoder.parameters()) == 26_109_184 - positions


def test_decoder_weights_depend_on_the_generator_alone() -> None:
    before = torch.random.get_rng_state()
    one, other = MaskedDecoder(LARGEST, CONFIG, seeded(1)), MaskedDecoder(LARGEST, CONFIG, seeded(1))
    assert torch.equal(torch.random.get_rng_state(), before)
    state = other.state_dict()
    assert all(torch.equal(tensor, state[name]) for name, tensor in one.state_dict().items())


def test_loss_is_zero_for_the_normalised_patches_and_ignores_visible_ones() -> None:
    x = images()
    hidden = random_masking(3, 16, 4, seeded(0)).hidden
    perfect = patchify(x, 3)
    perfect = (perfect - perfect.mean(-1, keepdim=True)) / (perfect.var(-1, keepdim=True) + 1e-6).sqrt()
    spoilt = torch.where(hidden.bool().unsqueeze(-1), perfect, 1000.0)
    assert reconstruction_loss(spoilt, x, hidden, 3).item() < 1e-10
    assert reconstruction_loss(spoilt, x, 1 - hidden, 3).item() > 1e5


def test_loss_averages_over_all_hidden_patches_of_the_batch() -> None:
    x = torch.ones(2, 1, 4, 4)  # one colour: normalised targets are 0
    hidden = torch.tensor([[1.0, 0, 0, 0], [1.0, 1, 1, 0]])
    predicted = torch.tensor([2.0, 1.0]).view(2, 1, 1).expand(2, 4, 4)
    assert reconstruction_loss(predicted, x, hidden, 2).item() == pytest.approx((4 + 1 + 1 + 1) / 4)


def test_loss_refuses_shapes_that_do_not_fit() -> None:
    with pytest.raises(ValueError, match="do not fit"):
        reconstruction_loss(torch.zeros(3, 16, 26), images(), torch.ones(3, 16), 3)
    with pytest.raises(ValueError, match="at least 2"):
        reconstruction_loss(torch.zeros(1, 4, 1), torch.zeros(1, 1, 2, 2), torch.ones(1, 4), 1)


def test_raw_targets_are_the_pixels_themselves() -> None:
    x = torch.rand(2, 1, 4, 4, generator=torch.Generator().manual_seed(0))
    hidden = torch.tensor([[1.0, 0.0, 1.0, 0.0], [0.0, 1.0, 1.0, 1.0]])
    patches = patchify(x, 2)
    assert reconstruction_loss(patches, x, hidden, 2, norm_targets=False).item() == 0.0
    shifted = reconstruction_loss(patches + 0.5, x, hidden, 2, norm_targets=False)
    assert shifted.item() == pytest.approx(0.25)
