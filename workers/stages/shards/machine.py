"""What must be alike on two machines for the same floating-point numbers."""

from __future__ import annotations

from pathlib import Path

import torch

from workers.stages.search_context import SearchContext
from workers.versions import recorded_versions


def machine_of(ctx: SearchContext) -> dict[str, str | int]:
    """Versions, processor or GPU, and the number of threads: kernels are chosen by them, and sums divided."""
    device = ctx.compute.device
    network = torch.cuda.get_device_name(device) if device.type == "cuda" else "none"
    return {
        **recorded_versions(),
        "processor": _processor(),
        "kernels": torch.backends.cpu.get_cpu_capability(),
        "device": device.type,
        "gpu": network,
        "threads": ctx.start.threads,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # no Linux
        return "unknown"
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else "unknown"
