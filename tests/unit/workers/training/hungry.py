"""A training under a real limit of memory: ``python -m tests.unit.workers.training.hungry <spare megabytes>``.

Prints the images of a forward that fitted, and the last loss.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tests.unit.workers.training.toys import CPU, UNCHANGED, Watcher, images, loop_of, settings, teacher
from workers.memory import limit_data
from workers.training.engine import TrainingLoop
from workers.training.masked import ImageBatches, MaskedDistillation
from workers.training.optimizer import build_adamw
from workers.training.schedule import BatchOrder, WarmupCosine

IMAGES = 4096


def held_bytes() -> int:
    """Data of this process that counts against the limit."""
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmData")]
    return int(line.split()[1]) * 1024


def main(spare_mb: int) -> None:
    """Train three steps with so much memory beyond what the libraries hold; 0: without a limit."""
    data = images(IMAGES)
    objective = MaskedDistillation(settings(), teacher(), CPU)
    loop = TrainingLoop(
        objective=objective,
        batches=ImageBatches(data, BatchOrder(IMAGES, IMAGES, 0, ("supernet",)), UNCHANGED, CPU),
        optimizer=build_adamw(objective.named_parameters(), weight_decay=0.05),
        schedule=WarmupCosine.of_share(1e-3, 0.1, 3),
        compute=CPU,
        clip_grad=1.0,
        metrics_every=1,
    )
    loop_of(MaskedDistillation(settings(), teacher(), CPU), 1).run(Watcher())  # libraries take what they need for good
    if spare_mb:
        limit_data(os.getpid(), held_bytes() + spare_mb * 10**6)
    watcher = Watcher()
    loop.run(watcher)
    print(loop.micro.size, watcher.rows[3]["loss"])


if __name__ == "__main__":
    main(int(sys.argv[1]))
