"""Several candidates on one view after the other: each shared beginning is computed once, depth first.

A candidate's measures are the same, bit for bit, whichever others are measured with it: batches are of images alone,
so every layer runs on the same tensors in the same order as if the candidate were the only one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from models.architecture import Architecture
from models.relations import block_at
from models.spectrum import Moments, effective_rank
from models.supernet import KeptCuts, Subnet, patches_of
from search.measures import Measure
from search.prefixes import Node, build_trie, path_of
from workers.stages.scoring.readout import Batch, Readout
from workers.stages.scoring.settings import Measures, ScoringSettings, TrainedParts
from workers.training.compute import Compute

_RELATIONS = (Measure.CONSISTENCY, Measure.CONSISTENCY_BARE)


@dataclass(slots=True)
class _Member:
    """A candidate with what was measured so far.

    Attributes:
        subnet: its pieces.
        measures: asked for.
        blocks: after which relations are compared, by depth.
        feature_block: after which features are.
        depth: number of blocks.
        sums: float64 over the images so far, of ``averaged``.
        moments: of its features, when they are asked for.
        values: of the followed measure on each image so far, a tensor for each view; empty when none is followed.
        seen: agreements of the present view by measure, in the order of the depths.
        feature: of the present view, and of each of its images when it is followed.
    """

    subnet: Subnet
    measures: tuple[Measure, ...]
    blocks: list[int]
    feature_block: int
    depth: int
    sums: Tensor
    moments: Moments | None
    values: list[Tensor] = field(default_factory=list)
    seen: dict[Measure, list[Tensor]] = field(default_factory=dict)
    feature: tuple[Tensor, Tensor | None] | None = None

    @property
    def averaged(self) -> list[Measure]:
        """Measures that are means over the images."""
        return [measure for measure in self.measures if measure is not Measure.EFFECTIVE_RANK]

    @property
    def last_block(self) -> int:
        """The last block that has to be run."""
        needed = [self.depth] if set(self.measures) & {Measure.RECONSTRUCTION, Measure.EFFECTIVE_RANK} else []
        if set(self.measures) & set(_RELATIONS):
            needed += self.blocks
        if Measure.FEATURE in self.measures:
            needed.append(self.feature_block)
        return max(needed)


class Population:
    """Candidates that are measured together.

    Args:
        archs: without heads.
        measures: asked of each, at least one.
        parts: what was trained; it must not be trained while this lives.
        kept: keeps cut weights.
        settings: see :class:`ScoringSettings`.
        compute: device and precision.
        follow: measure whose value on each image is kept, of candidates that are asked for it.
    """

    def __init__(
        self,
        archs: Sequence[Architecture],
        measures: Sequence[Sequence[Measure]],
        parts: TrainedParts,
        kept: KeptCuts | None,
        settings: ScoringSettings,
        compute: Compute,
        follow: Measure | None = None,
    ) -> None:
        self._follow = follow
        self._parts = parts
        self._settings = settings
        self._compute = compute
        self._members = [self._member(arch, asked, kept) for arch, asked in zip(archs, measures, strict=True)]
        self._paths = [
            path_of(arch)[: 1 + member.last_block] for arch, member in zip(archs, self._members, strict=True)
        ]
        self._forest = build_trie(self._paths, settings.shared_prefixes)

    def look_at(self, batch: Batch, poll: Callable[[], None]) -> None:
        """Take in a view; ``poll`` is called after each tree of candidates, and may raise to stop."""
        patches = patches_of(batch.images, self._parts.supernet.largest.patch_size, batch.view.mask.ids_keep)
        for root in self._forest:
            subnet = self._members[root.members[0]].subnet
            with self._compute.forward():
                tokens = subnet.embed(patches, batch.view.mask.ids_keep)
            places = subnet.places(batch.view.mask.ids_keep, patches.device)
            for child in root.children:
                self._walk(child, tokens, places, batch, poll)

    def state(self) -> Callable[[], None]:
        """What puts the candidates back to where they are now, between two views."""
        kept = [(m.sums.clone(), len(m.values), copy(m.moments)) for m in self._members]

        def go_back() -> None:
            for member, (sums, looks, moments) in zip(self._members, kept, strict=True):
                member.sums, member.moments = sums.clone(), copy(moments)
                del member.values[looks:]
                member.seen, member.feature = {}, None

        return go_back

    def keep(self, staying: Sequence[int]) -> None:
        """Let only these candidates, by position, look at further views."""
        self._forest = build_trie(self._paths, self._settings.shared_prefixes, staying)

    def values(self, i: int) -> NDArray[np.float64]:
        """The followed measure of a candidate on each image that it has looked at, in the order of the views."""
        found = self._members[i].values
        return torch.cat(found).double().cpu().numpy() if found else np.zeros(0)

    def take_sums(self, i: int) -> list[float]:
        """What the views since the last call have added to a candidate's measures, in their order."""
        member = self._members[i]
        taken: list[float] = member.sums.tolist()
        member.sums = torch.zeros_like(member.sums)
        return taken

    def result(self, i: int, images: int) -> Measures:
        """Measures of a candidate, means over the ``images`` looks at an image that it has taken."""
        return _result(self._members[i], images)

    def _walk(self, node: Node, tokens: Tensor, places: Tensor | None, batch: Batch, poll: Callable[[], None]) -> None:
        while True:
            subnet = self._members[node.members[0]].subnet
            with self._compute.forward():
                tokens = subnet.block(node.level - 1, tokens, places)
            self._read(node, Readout(tokens, subnet, batch, self._parts, self._settings, self._compute))
            if len(node.children) != 1:
                break
            [node] = node.children  # goes on here instead of a level deeper, where these tokens would be kept
        if not node.children:
            poll()
        for child in node.children:
            self._walk(child, tokens, places, batch, poll)

    def _read(self, node: Node, readout: Readout) -> None:
        for i in node.members:
            member = self._members[i]
            for measure in _RELATIONS:
                if measure in member.measures:
                    seen = member.seen.setdefault(measure, [])
                    seen += [readout.agreement(measure, k) for k, b in enumerate(member.blocks) if b == node.level]
            if node.level == member.feature_block and Measure.FEATURE in member.measures:
                of_each = readout.feature_of_each if self._follow is Measure.FEATURE else None
                member.feature = (readout.feature, of_each)
            if node.level == member.last_block:
                self._take_in(member, readout)

    def _take_in(self, member: _Member, readout: Readout) -> None:
        sums: list[Tensor] = []
        for measure in member.averaged:
            summed, of_each = self._summed(measure, member, readout)
            sums.append(summed)
            if of_each is not None:
                member.values.append(of_each)
        if member.moments is not None:
            member.moments.add(readout.pooled)
        if sums:
            member.sums += torch.stack(sums)
        member.seen, member.feature = {}, None

    def _summed(self, measure: Measure, member: _Member, readout: Readout) -> tuple[Tensor, Tensor | None]:
        """A measure summed over the images of the view, float64, and of each of them when it is followed."""
        followed = measure is self._follow
        if measure is Measure.RECONSTRUCTION:
            return readout.reconstruction, readout.reconstruction_of_each if followed else None
        if measure is Measure.FEATURE:
            assert member.feature is not None, "its block is not behind the last one"
            return member.feature
        mean_B = torch.stack(member.seen[measure]).mean(dim=0)
        return mean_B.double().sum(), mean_B if followed else None

    def _member(self, arch: Architecture, measures: Sequence[Measure], kept: KeptCuts | None) -> _Member:
        averaged = sum(measure is not Measure.EFFECTIVE_RANK for measure in measures)
        return _Member(
            subnet=Subnet(self._parts.supernet, arch, kept=kept),
            measures=tuple(measures),
            blocks=[block_at(share, arch.depth) for share in self._settings.depths],
            feature_block=block_at(self._settings.distill.layer.share, arch.depth),
            depth=arch.depth,
            sums=torch.zeros(averaged, dtype=torch.float64, device=self._compute.device),
            moments=Moments() if averaged < len(measures) else None,
        )


def _result(member: _Member, images: int) -> Measures:
    found = dict(zip(member.averaged, (member.sums / images).tolist(), strict=True))
    if member.moments is not None:
        found[Measure.EFFECTIVE_RANK] = effective_rank(member.moments.covariance())
    return {measure.value: found[measure] if math.isfinite(found[measure]) else None for measure in member.measures}
