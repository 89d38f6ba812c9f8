"""What weight sharing costs: a subnet run inside the supernet against the same subnet extracted to timm.

Both compute the same numbers (the script checks it), so the ratio is the price of slicing.  The two are measured in
turn, round by round, and the ratio is taken within each round, so that a change of the machine's load hits both.

    python benchmarks/supernet_forward.py [--rounds 20] [--threads 1] [--device cpu]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from models.architecture import Architecture, Pool
from models.extract import build_timm, extract_state
from models.slicing import LEADING, Cut, QkvSlicing
from models.supernet import Supernet

MICRO = Architecture(
    embed_dim=96,
    depth=5,
    num_heads=(4,) * 5,
    mlp_ratio=(4.0,) * 5,
    head_dim=16,
    img_size=8,
    patch_size=2,
    in_chans=1,
    num_classes=10,
)
TINY = Architecture(embed_dim=240, depth=14, num_heads=(4,) * 14, mlp_ratio=(4.0,) * 14)
DEIT = Architecture(
    embed_dim=384, depth=12, num_heads=(6,) * 12, mlp_ratio=(4.0,) * 12, pool=Pool.TOKEN, distilled=True
)
DEIT_HALF = replace(DEIT, embed_dim=192, head_dim=32)


@dataclass(frozen=True, slots=True)
class Case:
    """One row of the table."""

    name: str
    largest: Architecture
    arch: Architecture
    batch: int
    cut: Cut = LEADING


CASES = (
    Case("micro, largest", MICRO, MICRO, 128),
    Case("micro, middle", MICRO, replace(MICRO, embed_dim=64, num_heads=(3, 2, 4, 3, 2), mlp_ratio=(3.0,) * 5), 128),
    Case("micro, middle, one image", MICRO, replace(MICRO, embed_dim=64, num_heads=(3, 2, 4, 3, 2)), 1),
    Case("masktas-tiny, largest", TINY, TINY, 4),
    Case("masktas-tiny, middle", TINY, replace(TINY, embed_dim=216, num_heads=(3, 4) * 7, mlp_ratio=(3.5,) * 14), 4),
    Case("deit-small, half", DEIT, DEIT_HALF, 4),
    Case("deit-small, half, trailing", DEIT, DEIT_HALF, 4, Cut(trailing=True)),
    Case("deit-small, half, as released", DEIT, DEIT_HALF, 4, Cut(True, QkvSlicing.CONTIGUOUS, full_scale=True)),
)


def main() -> None:
    """Measure all cases and print one table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20, help="measurements of each case (default 20)")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch (default 1)")
    parser.add_argument("--device", default="cpu", help="torch device (default cpu)")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(f"torch {torch.__version__}, {options.device}, {options.threads} threads, median of {options.rounds} rounds")
    print(f"{'case':30}{'mode':10}{'sliced ms':>11}{'alone ms':>11}{'ratio':>8}{'quartiles':>16}{'max diff':>11}")
    for case in CASES:
        for mode in ("forward", "training"):
            print(measure(case, mode, options.rounds, torch.device(options.device)), flush=True)


def measure(case: Case, mode: str, rounds: int, device: torch.device) -> str:
    """One row: median times of both, median and quartiles of the ratio, largest difference of a logit."""
    generator = torch.Generator().manual_seed(0)
    supernet = Supernet(case.largest, generator).to(device)
    alone = build_timm(case.arch).to(device).eval()
    alone.load_state_dict(extract_state(supernet.state_dict(), case.largest, case.arch, case.cut))
    side = case.arch.img_size
    x = torch.randn(case.batch, case.arch.in_chans, side, side, generator=generator).to(device)

    forwards: tuple[Callable[[], Tensor], ...] = (lambda: supernet(x, case.arch, case.cut), lambda: alone(x))
    with torch.no_grad():
        sliced, apart = (forward() for forward in forwards)
        difference = (sliced - apart).abs().max().item()
    # The first rounds warm up.
    pairs = [tuple(timed_ms(forward, mode, device) for forward in forwards) for _ in range(rounds + 3)][3:]
    sliced_ms, alone_ms = (statistics.median(column) for column in zip(*pairs, strict=True))
    low, ratio, high = statistics.quantiles([s / a for s, a in pairs], n=4)
    spread = f"{low:.2f}-{high:.2f}"
    return f"{case.name:30}{mode:10}{sliced_ms:11.2f}{alone_ms:11.2f}{ratio:8.2f}{spread:>16}{difference:11.1e}"


def timed_ms(forward: Callable[[], Tensor], mode: str, device: torch.device) -> float:
    """Milliseconds of one forward pass, with the backward pass in training mode."""
    synchronise(device)
    start = time.perf_counter()
    if mode == "training":
        torch.autograd.backward(forward().square().mean())
    else:
        with torch.inference_mode():
            forward()
    synchronise(device)
    return (time.perf_counter() - start) * 1e3


def synchronise(device: torch.device) -> None:
    """Wait for queued kernels; a CPU has none."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


if __name__ == "__main__":
    main()
