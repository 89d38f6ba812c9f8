"""The layer by which decoder and projector read tokens of any subnet."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class PrefixLinear(nn.Linear):
    """A linear layer whose input may be narrower than it was built for: it then uses its leading input columns.

    It reads tokens of every subnet's width, as subnets keep the leading channels of the supernet's, or the trailing
    ones (``models.slicing.Cut``).
    """

    def forward(self, x: Tensor, trailing: bool = False) -> Tensor:
        """Map (..., d) to (..., out_features) for any d up to ``in_features``.

        Args:
            x: tokens.
            trailing: they are the trailing channels.

        Raises:
            ValueError: when the input is wider than the layer.
        """
        width = x.shape[-1]
        if width > self.in_features:
            raise ValueError(f"input is {width} wide, allowed is at most {self.in_features}")
        start = self.in_features - width if trailing else 0
        return F.linear(x, self.weight[:, start : start + width], self.bias)
