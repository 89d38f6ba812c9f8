"""Measures one network after the other on this machine, each in the same way."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from timm.models.vision_transformer import VisionTransformer

from models.architecture import Architecture
from models.extract import build_timm
from models.templates import model
from workers.latency.execution import Execution
from workers.latency.measure import Latency, Timing, measure
from workers.training.streams import numpy_stream, torch_stream


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkMeter:
    """What networks take on this machine.

    Attributes:
        execution: how they are computed.
        timing: how passes are timed.
        seed: of images, orders, and arbitrary weights.
        scratch: an existing folder for files that are needed meanwhile.
        hopeless_ns: see ``workers.latency.measure``.
    """

    execution: Execution
    timing: Timing
    seed: int
    scratch: Path
    hopeless_ns: float = math.inf

    def measure(self, arch: Architecture) -> float:
        """Milliseconds of a network with arbitrary weights: what it takes depends on its sizes alone."""
        return self._taken(build_timm(arch, torch_stream(self.seed, "latency", "weights")).eval(), arch).ms

    def measure_export(self, folder: Path, arch: Architecture) -> Latency:
        """What an exported network takes, loaded by the loader that goes with it."""
        return self._taken(model.load(folder), arch)

    def _taken(self, network: VisionTransformer, arch: Architecture) -> Latency:
        images = self.execution.images(arch, torch_stream(self.seed, "latency", "images"))
        with self.execution.settled():
            run = self.execution.pass_of(network, images, self.scratch)
            rng = numpy_stream(self.seed, "latency", "rounds")
            [taken] = measure([run], self.timing, rng, hopeless_ns=self.hopeless_ns)
        return taken
