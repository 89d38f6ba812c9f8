"""MAE from the formulas of He et al. 2022, one image at a time in float64; shares no code with the product."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor


class ReferenceMae:
    """A masked autoencoder over copied weights.

    Args:
        encoder: weights under the names of a timm encoder.
        decoder: weights of ``embed``, ``mask_token``, ``blocks``, ``norm`` and ``predict``.
        heads: of each encoder block.
        head_dim: of the encoder.
        decoder_heads: of each decoder block.
        patch: side of a patch in pixels.
        grid: patches along a side.
        norm_targets: normalise the values of each patch.
    """

    def __init__(
        self,
        encoder: Mapping[str, Tensor],
        decoder: Mapping[str, Tensor],
        *,
        heads: tuple[int, ...],
        head_dim: int,
        decoder_heads: int,
        patch: int,
        grid: int,
        norm_targets: bool = True,
    ) -> None:
        self.encoder = {name: t.double() for name, t in encoder.items()}
        self.decoder = {name: t.double() for name, t in decoder.items()}
        self.heads, self.head_dim, self.decoder_heads = heads, head_dim, decoder_heads
        self.patch, self.grid, self.norm_targets = patch, grid, norm_targets

    def loss(self, x: Tensor, ids_keep: Tensor) -> float:
        """Mean squared error over all hidden patches of images (B, C, H, W) with these visible patches (B, V)."""
        errors = []
        for image, kept in zip(x.double(), ids_keep.tolist(), strict=True):
            predicted = self.predict(image, kept)
            for k in set(range(self.grid**2)) - set(kept):
                errors.append((predicted[k] - self.target(image, k)).square().mean().item())
        return sum(errors) / len(errors)

    def target(self, image: Tensor, k: int) -> Tensor:
        """Values of patch k in the order row, column, channel."""
        values = self._cut(image, k).permute(1, 2, 0).reshape(-1)
        if not self.norm_targets:
            return values
        variance = (values - values.mean()).square().sum() / (len(values) - 1)
        return (values - values.mean()) / (variance + 1e-6).sqrt()

    def predict(self, image: Tensor, kept: list[int]) -> Tensor:
        """Values of all patches (N, P)."""
        d, grid = self.decoder, self.grid
        tokens = self.encode(image, kept) @ d["embed.weight"].T + d["embed.bias"]
        full = [tokens[0]]
        for k in range(grid * grid):
            seen = tokens[1 + kept.index(k)] if k in kept else d["mask_token"][0, 0]
            full.append(seen + place(k % grid, k // grid, len(seen)))
        tokens = torch.stack(full)
        width = tokens.shape[1]
        for i in range(1 + max(int(name.split(".")[1]) for name in d if name.startswith("blocks."))):
            tokens = _block(d, f"blocks.{i}.", tokens, self.decoder_heads, width // self.decoder_heads)
        tokens = _layer_norm(tokens, d["norm.weight"], d["norm.bias"])
        return tokens[1:] @ d["predict.weight"].T + d["predict.bias"]

    def encode(self, image: Tensor, kept: list[int]) -> Tensor:
        """Class token and visible patches after the final norm."""
        e = self.encoder
        kernel, bias = e["patch_embed.proj.weight"], e["patch_embed.proj.bias"]
        positions = e["pos_embed"][0]
        rows = [e["cls_token"][0, 0] + positions[0]]
        for k in kept:
            projected = torch.tensordot(kernel, self._cut(image, k), dims=([1, 2, 3], [0, 1, 2]))
            rows.append(projected + bias + positions[1 + k])
        tokens = torch.stack(rows)
        for i, heads in enumerate(self.heads):
            tokens = _block(e, f"blocks.{i}.", tokens, heads, self.head_dim)
        return _layer_norm(tokens, e["norm.weight"], e["norm.bias"])

    def _cut(self, image: Tensor, k: int) -> Tensor:
        row, column = divmod(k, self.grid)
        p = self.patch
        return image[:, p * row : p * row + p, p * column : p * column + p]


def place(column: int, row: int, width: int) -> Tensor:
    """Fixed position of a decoder token: sines and cosines of the column, then of the row."""
    quarter = width // 4
    values = []
    for place in (column, row):
        angles = [place / 10_000 ** (i / quarter) for i in range(quarter)]
        values += [math.sin(a) for a in angles] + [math.cos(a) for a in angles]
    return torch.tensor(values, dtype=torch.float64)


def _block(w: Mapping[str, Tensor], name: str, x: Tensor, heads: int, k: int) -> Tensor:
    y = _layer_norm(x, w[name + "norm1.weight"], w[name + "norm1.bias"])
    q, key, value = (y @ w[name + "attn.qkv.weight"].T + w[name + "attn.qkv.bias"]).chunk(3, dim=1)
    mixed = []
    for h in range(heads):
        part = slice(h * k, (h + 1) * k)
        weights = (q[:, part] @ key[:, part].T / math.sqrt(k)).softmax(dim=1)
        mixed.append(weights @ value[:, part])
    x = x + torch.cat(mixed, dim=1) @ w[name + "attn.proj.weight"].T + w[name + "attn.proj.bias"]
    y = _layer_norm(x, w[name + "norm2.weight"], w[name + "norm2.bias"])
    y = y @ w[name + "mlp.fc1.weight"].T + w[name + "mlp.fc1.bias"]
    y = y * 0.5 * (1 + torch.erf(y / math.sqrt(2)))
    return x + y @ w[name + "mlp.fc2.weight"].T + w[name + "mlp.fc2.bias"]


def _layer_norm(x: Tensor, gain: Tensor, bias: Tensor) -> Tensor:
    centred = x - x.mean(dim=1, keepdim=True)
    return centred / (centred.square().mean(dim=1, keepdim=True) + 1e-6).sqrt() * gain + bias
