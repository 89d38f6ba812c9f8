"""What a search occupies: memory of its trainer, and bytes in the store and in its run directory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from models.architecture import Architecture
from search.cost import params

_FLOAT_BYTES = 4
_MB = 1_000_000
_TRAINED_COPIES = 4  # weights, gradients and two moments
_SAVED_COPIES = 3  # weights and two moments


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSize:
    """What a training holds.

    Attributes:
        stage: that it belongs to.
        weights: parameters that are trained.
        frozen: parameters beside them.
        activations: floats that a backward pass needs, of the largest summand of a step.
        batch: floats of a batch of images.
    """

    stage: str
    weights: int
    frozen: int = 0
    activations: float = 0.0
    batch: float = 0.0

    @property
    def memory_bytes(self) -> float:
        """At once."""
        # A batch is held as it was read and as it was changed.
        floats = _TRAINED_COPIES * self.weights + self.frozen + self.activations + 2 * self.batch
        return _FLOAT_BYTES * floats

    @property
    def checkpoint_bytes(self) -> float:
        """Of one checkpoint in the midst of it."""
        return _FLOAT_BYTES * float(_SAVED_COPIES * self.weights)


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """What a search holds and leaves.

    Attributes:
        trainings: in their order; a stage may have several of one size, of which one is named.
        other_bytes: memory that searches and measurements need, such as a teacher's relations.
        images_bytes: of the decoded dataset, which is mapped into memory.
        left_bytes: of the files that stay in the store: teacher, supernet, exports.
    """

    trainings: tuple[TrainingSize, ...]
    other_bytes: float = 0.0
    images_bytes: float = 0.0
    left_bytes: float = 0.0

    def memory_mb(self, base_mb: float) -> float:
        """Of the trainer at its largest, given what a process with its libraries takes."""
        largest = max((training.memory_bytes for training in self.trainings), default=0.0)
        return base_mb + (max(largest, self.other_bytes) + self.images_bytes) / _MB

    def disk_mb(self, seconds: Mapping[str, float], checkpoint_s: float) -> tuple[float, float]:
        """Least and most that the job adds to the disk.

        Args:
            seconds: by stage.
            checkpoint_s: time between checkpoints inside a stage.

        Returns:
            Without checkpoints inside of stages, and with one each ``checkpoint_s``: the store keeps what they bring.
        """
        kept = 2 * self.left_bytes  # in the store, and in the run directory while the job runs
        saved = sum(
            training.checkpoint_bytes * (1 + seconds.get(training.stage, 0.0) / max(checkpoint_s, 1.0))
            for training in self.trainings
        )
        return kept / _MB, (kept + saved) / _MB


def activations(arch: Architecture, tokens: float, batch: int) -> float:
    """Floats that the backward pass through all blocks needs.

    Of each token of a block: the stream before and after attention, both normed, queries, keys, values and the attended
    values, and the hidden layer before and after its activation. Fused attention keeps no matrix of pairs.
    """
    each = sum(4 * arch.embed_dim + 4 * q + 2 * f for q, f in zip(arch.qkv_dims, arch.mlp_dims, strict=True))
    return float(batch) * tokens * each


def file_bytes(networks: Iterable[Architecture]) -> float:
    """Of the weights of networks."""
    return float(sum(_FLOAT_BYTES * params(network) for network in networks))


def pixel_bytes(images: int, channels: int, side: int) -> float:
    """Of decoded images."""
    return float(images) * channels * side * side
