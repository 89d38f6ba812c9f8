"""Measures how fast a trainer is on this machine: ``python -m workers.calibrate --device D --threads N --began T``.

Prints a :class:`service.forecast.calibration.Calibration` as JSON, and ends when stdin closes. A small, a large and a
middle supernet are trained for a few steps: the first two give the speeds, the last tells how well they predict.
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import threading
import time
from collections.abc import Callable
from statistics import median

import torch

from models.architecture import Architecture
from models.supernet import Supernet
from search.cost import macs, params
from service.forecast.calibration import Calibration, fit_speeds
from service.forecast.quantity import Work
from service.forecast.work import TRAINING
from workers.training.compute import Compute, choose_compute
from workers.training.streams import torch_stream

_REPEATS = 5
_WARM_UP = 2
_CLASSES = 10
_KB_PER_MB = 1024


def _network(width: int, heads: int, depth: int, img_size: int, patch_size: int) -> Architecture:
    return Architecture(
        embed_dim=width,
        depth=depth,
        num_heads=(heads,) * depth,
        mlp_ratio=(4.0,) * depth,
        head_dim=width // heads,
        img_size=img_size,
        patch_size=patch_size,
        in_chans=3,
        num_classes=_CLASSES,
    )


SMALL, MIDDLE, LARGE = (
    (_network(48, 3, 4, 8, 2), 64),
    (_network(96, 3, 6, 24, 4), 64),
    (_network(192, 3, 4, 32, 4), 64),
)
"""Networks and the images of a batch."""


def calibrate(device: str, threads: int, began: float) -> Calibration:
    """Measure; takes some ten seconds of one core.

    Args:
        device: as in the settings.
        threads: of a trainer.
        began: when this process was started, in seconds since the epoch.
    """
    start_s = max(0.0, time.time() - began)
    base_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / _KB_PER_MB
    torch.set_num_threads(threads)
    compute = choose_compute(device, "auto")
    small, large, middle = (_step(compute, arch, batch) for arch, batch in (SMALL, LARGE, MIDDLE))
    macs_per_s, pass_s = fit_speeds(small, large)
    speeds = Calibration(
        device=str(compute.device),
        threads=threads,
        macs_per_s=macs_per_s,
        pass_s=pass_s,
        update_s=_update_s(compute),
        start_s=start_s,
        base_mb=base_mb,
        error=0.0,
    )
    work, seconds = middle
    return speeds.model_copy(update={"error": abs(speeds.seconds(work) - seconds) / seconds})


def _step(compute: Compute, arch: Architecture, batch: int) -> tuple[Work, float]:
    """Work of a training step without the optimizer, and its seconds."""
    supernet = Supernet(arch, torch_stream(0, "calibrate", "init")).to(compute.device)
    shape = (batch, arch.in_chans, arch.img_size, arch.img_size)
    images = torch.randn(shape, generator=torch_stream(0, "calibrate", "images")).to(compute.device)

    def step() -> None:
        with compute.forward():
            loss = supernet(images, arch).square().mean()
        loss.backward()
        supernet.zero_grad()

    work = Work(macs=TRAINING * batch * macs(arch), passes=TRAINING * arch.depth)
    return work, _seconds(step, compute)


def _update_s(compute: Compute) -> float:
    arch, _ = LARGE
    supernet = Supernet(arch, torch_stream(0, "calibrate", "init")).to(compute.device)
    optimizer = torch.optim.AdamW(supernet.parameters(), lr=0.0, fused=True)
    for parameter in supernet.parameters():
        parameter.grad = torch.zeros_like(parameter)
    return _seconds(optimizer.step, compute) / params(arch)


def _seconds(run: Callable[[], object], compute: Compute) -> float:
    taken = []
    for _ in range(_WARM_UP + _REPEATS):
        began = time.perf_counter()
        run()
        if compute.device.type == "cuda":
            torch.cuda.synchronize(compute.device)
        taken.append(time.perf_counter() - began)
    return median(taken[_WARM_UP:])


def _end_with_parent() -> None:
    sys.stdin.read()
    os._exit(1)


def main() -> None:
    """Print one line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--began", type=float, required=True)
    chosen = parser.parse_args()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    sys.stdout.write(calibrate(chosen.device, chosen.threads, chosen.began).model_dump_json() + "\n")


if __name__ == "__main__":
    main()
