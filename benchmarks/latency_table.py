"""How well a latency table of this machine predicts networks that it has not seen, and orders networks of equal MACs.

    python benchmarks/latency_table.py --space masktas-tiny --runtime torch

Run it while nothing else does. The pair has about equal MACs: one network is deep and narrow, the other shallow and
wide.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import torch

from models.architecture import Architecture
from search.cost import macs
from search.latency import MS, LatencyTable, Precision, Runtime
from search.presets import PresetName
from search.space import Space
from service.jobs.resolve import design_of, make_space, resolve_build, table_of
from service.jobs.spec import LatencyBuildSpec
from workers.latency.execution import Execution
from workers.latency.measure import Latency, Timing, levelled
from workers.latency.networks import measure_networks


def pair(space: Space) -> tuple[Architecture, Architecture]:
    """A deep narrow and a shallow wide network of the space, whose MACs lie as close together as uniform ones can."""

    def uniform(depth: int, width: int) -> list[Architecture]:
        return [
            space.decode((depth, *(ratio,) * depth, *(heads,) * depth, width))
            for ratio in space.mlp_ratio
            for heads in space.num_heads
        ]

    deep = uniform(space.depth[-1], space.embed_dim[0])
    wide = uniform(space.depth[0], space.embed_dim[-1])
    return min(((d, w) for d in deep for w in wide), key=lambda two: abs(macs(two[0]) - macs(two[1])))


def main() -> None:
    """Print two small tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--space", choices=[name.value for name in PresetName], default="masktas-tiny")
    parser.add_argument("--runtime", choices=["torch", "onnxruntime"], default="torch")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--networks", type=int, default=None)
    parser.add_argument("--held-out", type=int, default=20)
    asked = parser.parse_args()
    build = resolve_build(
        LatencyBuildSpec.model_validate(
            {
                "space": asked.space,
                "runtime": asked.runtime,
                "threads": asked.threads,
                "runs": asked.runs,
                "networks": asked.networks,
                "held_out": asked.held_out,
            }
        )
    )
    execution = Execution(
        runtime=Runtime(asked.runtime),
        precision=Precision.FP32,
        batch_size=1,
        threads=asked.threads,
        device=torch.device("cpu"),
    )
    chosen = design_of(build)
    classes = build.num_classes or 0
    two = [arch.with_classes(classes) for arch in pair(make_space(build.space))]
    networks = [*chosen.networks, *two]
    timing = Timing(percentile=build.percentile, warmup_runs=build.warmup_runs, runs=build.runs)
    taken: dict[int, Latency] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for group in measure_networks(networks, execution, timing, build.seed, Path(scratch)):
            taken |= group
    known = len(chosen.networks)
    times = levelled([taken[i] for i in range(len(networks))])
    table = table_of(build, chosen, times[:known], device=execution.label, threads=asked.threads)
    print_error(table, len(chosen.fitted))
    anchors = [latency.anchor_ns for latency in taken.values() if latency.anchor_ns is not None]
    print(f"the machine changed by {max(anchors) / min(anchors) - 1:.0%} meanwhile")
    print_pair(table, two, times[known:])


def print_error(table: LatencyTable, fitted: int) -> None:
    """What the table is worth."""
    setting = table.setting
    print(f"{setting.device}, {setting.runtime}, {setting.threads} threads, {setting.runs} runs")
    if table.mape is not None:
        worst = max(network.error for network in table.held_out)
        print(f"fitted to {fitted}, held out {len(table.held_out)}: mean error {table.mape:.2%}, worst {worst:.2%}")


def print_pair(table: LatencyTable, two: list[Architecture], taken_ns: list[int]) -> None:
    """Whether two networks of equal MACs are ordered as they were measured."""
    predicted = [table.predict_ns(arch) for arch in two]
    for name, arch, said, took in zip(("deep, narrow", "shallow, wide"), two, predicted, taken_ns, strict=True):
        print(f"{name:14} {macs(arch) / 1e9:8.4f} GMACs  predicted {said / MS:8.3f} ms  measured {took / MS:8.3f} ms")
    apart = abs(taken_ns[0] - taken_ns[1]) / max(taken_ns)
    right = (predicted[0] < predicted[1]) == (taken_ns[0] < taken_ns[1])
    print(f"order: {'right' if right else 'wrong'}; as measured they are {apart:.1%} apart")


if __name__ == "__main__":
    main()
