"""The networks that leave the service, whichever method found and trained them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor

from models.architecture import Architecture
from models.extract import build_timm, extract_state
from workers.stages.context import Json
from workers.stages.delivery_context import DeliveryContext
from workers.stages.retrain import load_retrained
from workers.stages.search_context import SearchContext
from workers.stages.supernet import SUPERNET_FILE
from workers.training.files import read_tensors


@dataclass(frozen=True, slots=True)
class Trained:
    """A network as it was trained, on the CPU.

    Attributes:
        state: its weights under timm's names, as they are to be exported.
        answer: its logits (B, classes) for images (B, C, H, W), which the export has to repeat.
    """

    state: Mapping[str, Tensor]
    answer: Callable[[Tensor], Tensor]

    @classmethod
    def of(cls, network: VisionTransformer) -> Trained:
        """A network of its own, in eval mode."""

        @torch.inference_mode()
        def answer(images: Tensor) -> Tensor:
            logits: Tensor = network(images)
            return logits

        return cls(network.state_dict(), answer)


@dataclass(frozen=True, slots=True)
class Finalist:
    """A network that leaves the service.

    Attributes:
        n: of the candidate.
        architecture: as exported; without a head when nothing was trained to tell classes apart.
        score: what the search ranked it by.
        scores: it, and all other measures, by name.
        val: validation accuracy, None when it has no head.
        recipe: of its supervised training by the names of the job's fields, None without any.
        load: reads it from the job's files.
    """

    n: int
    architecture: Architecture
    score: float
    scores: Mapping[str, float]
    val: float | None
    recipe: Mapping[str, Any] | None
    load: Callable[[], Trained]


def search_finalists(ctx: SearchContext) -> list[Finalist]:
    """The retrained networks, the winner first: by validation accuracy, then by score.

    Those that are beyond a limit on latency when measured from their exported files come last.

    Without retrained ones it is the best-scored candidate, as a backbone without a head.
    """
    best = {entry["n"]: entry for entry in ctx.outputs["search"]["best"]}
    networks = ctx.outputs["retrain"]["networks"]
    retrained = in_time(ctx, sorted(networks, key=lambda net: (-net["val"], -net["score"], net["n"])))
    if not retrained:
        return [_finalist(ctx, ctx.outputs["search"]["best"][0], None)]
    return [_finalist(ctx, best[net["n"]], net["val"]) for net in retrained]


def in_time(ctx: DeliveryContext, networks: Iterable[Json]) -> list[Json]:
    """Networks in their order, but those last that are beyond a limit on latency when measured from their exports."""
    exported = ctx.outputs.get("export", {}).get("latency", [])
    slow = {entry["n"] for entry in exported if not entry["feasible"]}
    return sorted(networks, key=lambda net: net["n"] in slow)


def _finalist(ctx: SearchContext, entry: Json, val: float | None) -> Finalist:
    n = entry["n"]
    arch = ctx.space.decode(entry["genotype"], 0 if val is None else len(ctx.classes))

    def load() -> Trained:
        return Trained.of(_inherited(ctx, arch) if val is None else load_retrained(ctx, n, arch))

    return Finalist(
        n=n,
        architecture=arch,
        score=entry["score"],
        scores={name: value for name, value in entry["scores"].items() if value is not None},
        val=val,
        recipe=None if val is None else ctx.spec.retrain.model_dump(mode="json"),
        load=load,
    )


def _inherited(ctx: SearchContext, arch: Architecture) -> VisionTransformer:
    """A network with the supernet's own weights."""
    network = build_timm(arch)
    tensors, _ = read_tensors(ctx.path(SUPERNET_FILE))
    network.load_state_dict(extract_state(tensors, ctx.space.largest(), arch))
    return network.eval()
