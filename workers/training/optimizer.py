"""AdamW with the decay rules of Vision Transformers, and its state by parameter name.

Sampled subnets leave parts of the supernet without a gradient, and the optimizer treats two cases differently:

* A tensor that no slice of the step touches (a block beyond the sampled depth) has no gradient at all. It is skipped:
  weights, moments and its step count, and thereby its bias correction, stay as they are.
* A tensor of which only a slice was used has a gradient of zeros outside the slice. Its moments decay there and weight
  decay applies to the whole tensor, as in AutoFormer's training.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

_STATE_TENSORS = ("step", "exp_avg", "exp_avg_sq")
_RATE_SCALE = "rate_scale"

NamedParameters = Iterable[tuple[str, nn.Parameter]]


def build_adamw(
    parameters: NamedParameters,
    *,
    weight_decay: float,
    betas: tuple[float, float] = (0.9, 0.999),
    rate_scales: Mapping[str, float] | None = None,
) -> torch.optim.AdamW:
    """AdamW over named parameters; call :func:`set_rate` before each step.

    Args:
        parameters: names and parameters.
        weight_decay: for tensors with two or more axes; vectors and tokens of shape (1, 1, d) are not decayed.
        betas: decay of the moments.
        rate_scales: factor of the learning rate for parameters by name, 1 for others.
    """
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in parameters:
        decay = weight_decay if _is_matrix(parameter) else 0.0
        scale = (rate_scales or {}).get(name, 1.0)
        groups.setdefault((decay, scale), []).append(parameter)
    return torch.optim.AdamW(
        [{"params": members, "weight_decay": decay, _RATE_SCALE: scale} for (decay, scale), members in groups.items()],
        lr=0.0,
        betas=betas,
        fused=True,
    )


def _is_matrix(parameter: Tensor) -> bool:
    return sum(size > 1 for size in parameter.shape) > 1


def set_rate(optimizer: torch.optim.AdamW, rate: float) -> None:
    """Set the learning rate of every group, each with its own factor."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group[_RATE_SCALE]


def layer_rate_scales(names: Iterable[str], depth: int, decay: float) -> dict[str, float]:
    """Learning-rate factors that fall by ``decay`` for each layer further from the head (He et al. 2022, appendix A).

    Embedding, class token and positions are layer 0, block ``i`` is layer ``i + 1``, final norm and head come last.

    Args:
        names: timm's names of the parameters.
        depth: number of blocks.
        decay: factor per layer; 1 gives all layers the same rate.
    """
    return {name: decay ** (depth + 1 - _layer_of(name, depth)) for name in names}


def _layer_of(name: str, depth: int) -> int:
    first, _, rest = name.partition(".")
    if first in ("cls_token", "pos_embed", "patch_embed"):
        return 0
    return int(rest.split(".")[0]) + 1 if first == "blocks" else depth + 1


def optimizer_tensors(optimizer: torch.optim.AdamW, parameters: NamedParameters) -> dict[str, Tensor]:
    """The optimizer's state as ``{"<parameter>.<part>": tensor}``; parameters without a step so far have none."""
    state: Mapping[Tensor, Mapping[str, Tensor]] = optimizer.state
    return {
        f"{name}.{part}": state[parameter][part]
        for name, parameter in parameters
        if parameter in state
        for part in _STATE_TENSORS
    }


def restore_optimizer(optimizer: torch.optim.AdamW, parameters: NamedParameters, tensors: Mapping[str, Tensor]) -> None:
    """Put back what :func:`optimizer_tensors` gave; a parameter without tensors starts afresh.

    Raises:
        ValueError: tensors that belong to no parameter, or only some parts of one.
    """
    left = dict(tensors)
    for name, parameter in parameters:
        parts = {part: left.pop(f"{name}.{part}", None) for part in _STATE_TENSORS}
        missing = [part for part, tensor in parts.items() if tensor is None]
        optimizer.state.pop(parameter, None)
        if len(missing) == len(parts):
            continue
        if missing:
            raise ValueError(f"optimizer state of {name} lacks {', '.join(missing)}")
        # Copied into fresh tensors: memory of a mapped file is aligned differently, and some kernels' last bits
        # depend on that.
        optimizer.state[parameter] = {
            "step": torch.zeros((), device=parameter.device).copy_(parts["step"]),  # type: ignore[arg-type]
            "exp_avg": torch.empty_like(parameter).copy_(parts["exp_avg"]),  # type: ignore[arg-type]
            "exp_avg_sq": torch.empty_like(parameter).copy_(parts["exp_avg_sq"]),  # type: ignore[arg-type]
        }
    if left:
        raise ValueError(f"optimizer state of unknown parameters: {', '.join(sorted(left))}")
