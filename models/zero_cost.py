"""Zero-cost measures of a network: what its shape promises before anything is trained.

Both are taken of slices of one supernet with fresh weights, as their authors do.

* AZ-NAS (Lee and Ham 2024): ``expressivity``, the entropy of the spectrum of the features' covariance, summed over
  blocks (section 3.2.1); ``trainability``, the mean over blocks of ``2 - s - 1 / s``, where s is the largest singular
  value of an estimate of the block's Jacobian (section 3.2.3), 0 at best; and the complexity, which the caller knows as
  MACs. Features are read after each block, Jacobians are those of the second block and of later ones.
* DSS (Zhou et al. 2022, "Training-free Transformer Architecture Search", section 3.3): all weights by their absolute
  values, one image of ones, the gradient of the summed outputs. The diversity of attention layers is the product of
  the nuclear norms of weight and gradient, the saliency of all other linear layers the sum of their products.

Legend: B images, T tokens, d token width, m = B * T.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from models.architecture import Architecture
from models.slicing import slice_table
from models.supernet import Supernet, apply_slices

DSS_CLASSES = 1000
"""Outputs of the head that the gradient starts from. Without a head it would be zero: a LayerNorm's outputs, summed
over its channels, do not depend on its inputs."""

_DIVERSITY = ("attn.qkv.weight", "attn.proj.weight")
_SALIENCY = ("mlp.fc1.weight", "mlp.fc2.weight", "patch_embed.proj.weight", "head.weight")
_ALL = (*_DIVERSITY, *_SALIENCY)


@dataclass(frozen=True, slots=True)
class AzNas:
    """Two of the three parts of AZ-NAS; larger is better."""

    expressivity: float
    trainability: float


def az_nas(supernet: Supernet, arch: Architecture, x_BCHW: Tensor, generator: torch.Generator) -> AzNas:
    """Expressivity and trainability of a subnet.

    Args:
        supernet: with fresh weights.
        arch: the subnet.
        x_BCHW: images; the authors take normally distributed noise.
        generator: of the random signs that the Jacobians are estimated with, on the CPU.
    """
    with torch.enable_grad():
        features = supernet.features(x_BCHW, arch.with_classes(0), after=range(1, arch.depth + 1))
        slopes = []
        for before, after in zip(features[-2::-1], features[:0:-1], strict=True):
            signs = torch.randint(2, after.shape, generator=generator).to(after) * 2 - 1
            (gradient,) = torch.autograd.grad(after, before, signs)
            slopes.append(_trainability(gradient.flatten(0, 1), signs.flatten(0, 1)))
    expressivity = sum(_entropy(t_BTd.detach().flatten(0, 1)) for t_BTd in features)
    return AzNas(expressivity, sum(slopes) / len(slopes) if slopes else 0.0)


def _entropy(x_md: Tensor) -> float:
    """Of the normalised eigenvalues of the covariance."""
    centred = (x_md - x_md.mean(dim=0)).double()
    eigenvalues = torch.linalg.eigvalsh(centred.T @ centred / len(centred)).clamp(min=0)
    share = eigenvalues / eigenvalues.sum()
    return float(-torch.special.xlogy(share, share).sum())


def _trainability(gradient_md: Tensor, signs_md: Tensor) -> float:
    largest = float(torch.linalg.matrix_norm((gradient_md.T @ signs_md / len(signs_md)).double(), ord=2))
    return 2 - largest - 1 / max(largest, 1e-6)


def with_absolute_weights(supernet: Supernet) -> Supernet:
    """Make all weights positive, in place, as :func:`dss` needs them."""
    with torch.no_grad():
        for parameter in supernet.parameters():
            parameter.abs_()
    return supernet


def dss(supernet: Supernet, arch: Architecture) -> float:
    """DSS score of a subnet; larger is better.

    Args:
        supernet: of :func:`with_absolute_weights`, its largest network with a head of :data:`DSS_CLASSES`.
        arch: the subnet; its own classes do not matter.
    """
    arch = arch.with_classes(DSS_CLASSES)
    table = slice_table(supernet.largest, arch)
    whole = {name: p for name, p in supernet.named_parameters() if name in table and name.endswith(_ALL)}
    ones = next(iter(whole.values())).new_ones(1, arch.in_chans, arch.img_size, arch.img_size)
    with torch.enable_grad():
        gradients = torch.autograd.grad(supernet(ones, arch).sum(), list(whole.values()))
    total = 0.0
    for (name, weight), gradient in zip(whole.items(), gradients, strict=True):
        w, g = (apply_slices(t.detach(), table[name]).flatten(1).double() for t in (weight, gradient))
        if name.endswith(_DIVERSITY):
            total += float(torch.linalg.matrix_norm(w, ord="nuc") * torch.linalg.matrix_norm(g, ord="nuc"))
        else:
            total += float((w * g).abs().sum())
    return total
